"""The paper's figures from folders of results: box plots, accuracy against calibration, curves, the ladder of Dice.

Left and right structures are shown as one. Colors are those of Okabe and Ito, which color-blind readers can tell apart;
where models are points, each has a marker of its own as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.evaluation.pair_result import FRACTIONS, PairResult
from scripts.evaluation.results import PathLike, structure_name

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GRAY = "0.6"
DPI = 150
LABELS = {
    "dice_mu": "DSC of μ",
    "dice_mean": "DSC of the mean field",
    "dice_oracle": "DSC of the Oracle sample",
    "ece": "ECE",
    "ause_label": "AUSE by label entropy",
    "ause_displacement": "AUSE by displacement variance",
}

Models = Mapping[str, Sequence[PairResult]]
"""Name of a model to its results."""


def draw_figures(models: Models, output_dir: PathLike) -> list[Path]:
    """Draw all figures of one model or several. Raises ValueError when a model has no results."""
    empty = [name for name, results in models.items() if not results]
    if empty or not models:
        raise ValueError(f"expected results to draw, got none{' of ' + ', '.join(empty) if empty else ''}")
    pictures: dict[str, Callable[[], Figure]] = {
        "ladder": lambda: ladder(models),
        "dice": lambda: boxes(models, "dice_mean"),
        "oracle": lambda: boxes(models, "dice_oracle"),
        "ece": lambda: boxes(models, "ece"),
        "ause": lambda: boxes(models, "ause_label"),
        "ause_displacement": lambda: boxes(models, "ause_displacement"),
        "accuracy_calibration": lambda: accuracy_calibration(models),
        "reliability": lambda: reliability(models),
        "sparsification": lambda: sparsification(models),
    }
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in pictures.items():
        paths.append(output_dir / f"{name}.png")
        draw().savefig(paths[-1], dpi=DPI)
    return paths


def merged_scores(results: Sequence[PairResult], score: str) -> dict[str, np.ndarray]:
    """Scores by structure without its side: {name: values of all pairs and both sides, [N], without NaN}."""
    values: dict[str, list[float]] = {}
    for result in results:
        for label, value in zip(result.labels, result.structures[score], strict=True):
            name = structure_name(label).removeprefix("Left-").removeprefix("Right-").replace("-", " ")
            values.setdefault(name, []).append(value)
    arrays = {name: np.array(numbers) for name, numbers in values.items()}
    return {name: numbers[np.isfinite(numbers)] for name, numbers in arrays.items()}


def boxes(models: Models, score: str) -> Figure:
    """Box plots of one score by structure, the models side by side; the box is the quartiles, the line the median."""
    scores = {name: merged_scores(results, score) for name, results in models.items()}
    structures = list(next(iter(scores.values())))
    figure, axes = _figure(max(7.0, 1.5 + len(structures) * (0.3 + 0.14 * len(models))), 4.2)
    slot = 0.8 / len(models)
    for i, (name, by_structure) in enumerate(scores.items()):
        color, _ = _style(i)
        axes.boxplot(
            [by_structure.get(structure, np.empty(0)) for structure in structures],
            positions=np.arange(len(structures)) + (i - (len(models) - 1) / 2) * slot,
            widths=0.8 * slot,
            patch_artist=True,
            boxprops={"facecolor": color, "edgecolor": color, "alpha": 0.75},
            medianprops={"color": "black"},
            whiskerprops={"color": color},
            capprops={"color": color},
            flierprops={"marker": ".", "markersize": 2, "markeredgecolor": color},
            manage_ticks=False,
        )
        axes.plot([], [], color=color, linewidth=6, alpha=0.75, label=name)
    axes.set(ylabel=LABELS[score], xlim=(-0.6, len(structures) - 0.4))
    axes.set_xticks(range(len(structures)), structures, rotation=40, ha="right", rotation_mode="anchor")
    axes.grid(axis="y", color="0.9")
    if len(models) > 1:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(len(models), 6), frameon=False)
    return figure


def accuracy_calibration(models: Models) -> Figure:
    """AUSE against Dice by structure, with standard deviations in gray; the best corner is the lower right.

    Several models: a panel a structure. One model: all its structures in one panel.
    """
    points: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for model, results in models.items():
        dice, ause = (merged_scores(results, score) for score in ("dice_mean", "ause_label"))
        for structure in dice:
            if len(dice[structure]) and len(ause[structure]):
                points.setdefault(structure, {})[model] = (dice[structure], ause[structure])
    if len(models) == 1:
        return _one_model(points)
    columns = min(6, len(points))
    rows = -(-len(points) // columns)
    figure = Figure(figsize=(2.3 * columns, 2.1 * rows + 0.8), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (structure, by_model) in zip(panels, points.items(), strict=False):
        _clean(axes)
        for i, model in enumerate(models):
            if model in by_model:
                _point(axes, *by_model[model], *_style(i), model)
        axes.set_title(structure, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.locator_params(nbins=4)
        axes.margins(0.15)
    for axes in figure.axes[len(points) :]:
        axes.set_axis_off()
    figure.supxlabel(f"{LABELS['dice_mean']} →", fontsize=10)
    figure.supylabel(f"← {LABELS['ause_label']}", fontsize=10)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(models), 6), frameon=False)
    return figure


def reliability(models: Models) -> Figure:
    """Claimed against observed frequency of the structures, all ribbons together, and where the voxels are."""
    figure = Figure(figsize=(4.6, 5.4), layout="constrained")
    axes, counts = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    axes.plot([0, 1], [0, 1], color=GRAY, linestyle="--", linewidth=1, label="perfect")
    for i, (name, results) in enumerate(models.items()):
        voxels, claimed, true = (
            np.sum([result.curves[f"reliability_{part}"] for result in results], axis=0)
            for part in ("voxels", "claimed", "true")
        )
        filled = voxels > 0
        color, marker = _style(i)
        lines = axes.plot(claimed[filled] / voxels[filled], true[filled] / voxels[filled], label=name)
        centers = (np.arange(len(voxels)) + 0.5) / len(voxels)
        lines += counts.plot(centers[filled], voxels[filled] / voxels.sum())
        for line in lines:
            line.set(color=color, marker=marker, markersize=5)
    axes.set(ylabel="observed frequency of the structure", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    counts.set(xlabel="claimed probability", ylabel="share", yscale="log")
    for panel in (axes, counts):
        _clean(panel)
        panel.grid(color="0.9")
    axes.legend(frameon=False)
    return figure


def sparsification(models: Models) -> Figure:
    """Mean error of the voxels that remain when the most uncertain are taken away, beside the oracle's (dashed)."""
    figure = Figure(figsize=(8.4, 3.8), layout="constrained")
    removed = 1 - np.array(FRACTIONS)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, kind in zip(panels, ("label", "displacement"), strict=True):
        for i, (name, results) in enumerate(models.items()):
            color, _ = _style(i)
            for curve, line in ((kind, "-"), ("oracle", "--")):
                rows = [row for result in results if (row := result.curves[f"sparsification_{curve}"])]
                if rows:
                    mean = np.mean(rows, axis=0)
                    axes.plot(removed, mean, line, color=color, label=name if line == "-" else None)
        _clean(axes)
        axes.grid(color="0.9")
        axes.set(xlabel="fraction of voxels removed", xlim=(0, 1))
        by = "label entropy" if kind == "label" else "displacement variance"
        axes.set_title(f"most uncertain first, by {by}", fontsize=10)
    panels[0].set_ylabel("mean error of the rest")
    panels[0].set_ylim(bottom=0)  # after all curves: the panels share the axis
    panels[0].plot([], [], "--", color=GRAY, label="oracle")
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def ladder(models: Models) -> Figure:
    """Dice of μ, of the mean field and of the Oracle sample for each model, with standard deviations over pairs."""
    figure, axes = _figure(1.8 + 1.1 * max(len(models), 2), 3.8)
    steps = (("dice_mu", "μ", "v"), ("dice_mean", "mean field", "o"), ("dice_oracle", "Oracle", "^"))
    for i, (score, label, marker) in enumerate(steps):
        values = [[result.pair[score] for result in results] for results in models.values()]
        places = np.arange(len(models)) + 0.22 * (i - 1)
        deviations = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in values]
        axes.errorbar(places, [np.mean(v) for v in values], deviations, fmt="none", ecolor=GRAY, capsize=3, zorder=1)
        axes.plot(places, [np.mean(v) for v in values], marker, color=COLORS[i], markersize=7, label=label)
    for k, results in enumerate(models.values()):
        rungs = [np.mean([result.pair[score] for result in results]) for score, _, _ in steps]
        axes.plot(k + 0.22 * np.arange(-1, 2), rungs, color=GRAY, linewidth=1, zorder=1)
    axes.set(ylabel="DSC, mean over structures", xlim=(-0.6, len(models) - 0.4))
    axes.set_xticks(range(len(models)), list(models))
    axes.grid(axis="y", color="0.9")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


def _one_model(points: Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]) -> Figure:
    figure, axes = _figure(7.5, 5.5)
    for number, (structure, by_model) in enumerate(points.items(), start=1):
        ((dice, ause),) = by_model.values()
        _point(axes, dice, ause, COLORS[0], "o", f"{number}  {structure}", 11)
        axes.text(dice.mean(), ause.mean(), str(number), color="white", fontsize=7, ha="center", va="center_baseline")
    axes.set(xlabel=f"{LABELS['dice_mean']} →", ylabel=f"← {LABELS['ause_label']}")
    axes.grid(color="0.9")
    # The number says which: names beside the points would cover each other.
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, markerscale=0, handlelength=0, fontsize=8)
    return figure


def _style(model: int) -> tuple[str, str]:
    """Color and marker of the model with this number; after all colors, they come again with other markers."""
    return COLORS[model % len(COLORS)], MARKERS[(model + model // len(COLORS)) % len(MARKERS)]


def _point(axes: Axes, x: np.ndarray, y: np.ndarray, color: str, marker: str, label: str, size: float = 6) -> None:
    """The means of two scores, with their standard deviations as a gray cross."""
    axes.errorbar(x.mean(), y.mean(), y.std(), x.std(), fmt="none", ecolor=GRAY, elinewidth=1, zorder=1)
    axes.plot(x.mean(), y.mean(), marker, color=color, markersize=size, label=label, zorder=2)


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure with one panel. Not through pyplot, whose figures stay in memory until they are closed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    _clean(axes)
    return figure, axes


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
