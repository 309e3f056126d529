"""The figures of the results page: the paper's, from the committed CSV files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from experiments import example_figure
from experiments.results.result_tables import NOTHING, VARIANTS
from experiments.results.store import FOLDER, read_group, title
from experiments.training_figure import draw, read_columns
from scripts.evaluation.plots import Models, accuracy_calibration, boxes, ladder

IMAGES = Path("docs/images/results")
BOXES = ("v_lc", "i_lc", "s_lc", "s_lc_10l", "vxm5")
"""All eleven models side by side would be too thin to read."""
DPI = 100
CAPTIONS = {
    "ladder": "Dice of μ, of the mean field and of the Oracle sample; bars are standard deviations over pairs.",
    "accuracy_calibration": "Accuracy against calibration by structure; the best corner is the lower right.",
    "dice": "Dice of the mean field by structure, left and right together.",
    "oracle": "Dice of the Oracle sample by structure.",
    "ece": "Expected calibration error by structure.",
    "ause": "Area under the sparsification error, by label entropy, by structure.",
    "training": "Training stability on the validation pairs: Dice, displacement variance, share of effective samples.",
    "examples": "Samples of two test pairs as points, larger if drawn more often. Left: where the Oracle gains most. "
    "Right: where the fields come nearest to two groups (the title says whether they are distinct), in the plane of "
    "their first two principal components.",
}


def figures(folder: Path = FOLDER) -> dict[str, Callable[[], Figure]]:
    """Every figure for which there are results, by the name of its file."""
    variants = read_group("variants", folder)
    shown: Models = {title(name): variants[name] for name in VARIANTS if name in variants}
    few: Models = {title(name): variants[name] for name in BOXES if name in variants}
    made: dict[str, Callable[[], Figure]] = {}
    if shown:
        made["ladder"] = lambda: ladder(shown)
    if len(shown) > 1:
        made["accuracy_calibration"] = lambda: accuracy_calibration(shown)
    if few:
        scores = {"dice": "dice_mean", "oracle": "dice_oracle", "ece": "ece", "ause": "ause_label"}
        made |= {name: lambda score=score: boxes(few, score) for name, score in scores.items()}  # type: ignore[misc]
    paths = {path.stem: path for path in (folder / "training").glob("*.csv") if path.stem in VARIANTS}
    if paths:
        order = [name for name in VARIANTS if name in paths]
        made["training"] = lambda: draw({title(name): read_columns(paths[name]) for name in order})
    examples = folder / "examples.csv"
    if examples.is_file():
        made["examples"] = lambda: example_figure.draw(example_figure.read(examples))
    return made


def links(folder: Path = FOLDER) -> str:
    """Markdown of all figures for which there are results, for a page in docs/."""
    parts = [f"![{CAPTIONS[name]}](images/results/{name}.png)\n\n*{CAPTIONS[name]}*\n" for name in figures(folder)]
    return "\n".join(parts) or NOTHING


def draw_all(folder: Path = FOLDER, images: Path = IMAGES) -> list[Path]:
    """Draw what there are results for; returns the pictures' paths."""
    made = figures(folder)
    if made:
        images.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in made.items():
        paths.append(images / f"{name}.png")
        figure().savefig(paths[-1], dpi=DPI)
    return paths
