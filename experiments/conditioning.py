"""`python -m experiments.conditioning --dataset_dir DIR`: does it help to say where five points belong?

Every ordered pair of the validation people is registered; then a simulated expert, who sees both label maps, works on
the structures that came out worst: five marks where the registration is worst (`worst`), five at the structure's tips
(`tips`), or its corrected outline (`outline`). `worst_still` and `outline_still` do not refine the mean again, `exact`
is `worst_still` without a discrepancy of the model either. Dice of the structure and the error at as many held-out
points of the same kind, before and after. Writes a CSV file, after every
pair, and the table of docs/conditioning.md from it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nibabel as nib
import numpy as np
from monai.bundle import ConfigParser
from scipy.spatial import cKDTree

from experiments.simulated_expert import Marks, marks_at_tips, marks_where_worst
from scripts.core.seg35 import SEG35
from scripts.data.corrections import read_correction
from scripts.data.splits import read_split
from scripts.evidence.knowledge import Knowledge
from scripts.evidence.landmarks import Landmarks
from scripts.evidence.outline import outline_points
from scripts.posterior.conclusions import conclude
from scripts.posterior.conditioning import condition_again
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.result import RegistrationResult
from scripts.posterior.sampler import Sampler
from scripts.registration.space import PairSpace

ROOT = Path(__file__).parents[1]
METHODS = ("worst", "worst_still", "exact", "tips", "outline", "outline_still")
COLUMNS = (
    "weights", "moving", "fixed", "structure", "method", "marks", "dice_before", "dice_after", "dice_all_before",
    "dice_all_after", "held_out_before_mm", "held_out_after_mm", "marks_before_mm", "marks_after_mm", "ess_before",
    "ess_after", "seconds",
)  # fmt: skip
SMALLEST = 150
"""Voxels of a structure in either image; below it five marks are most of its outline."""
WIDESPREAD = ("cortex", "white-matter", "csf", "wm", "vessel", "hypointens")
"""Parts of names of tissues that are no structure one would mark five points in."""


def main() -> None:
    """Run the pairs, write the CSV file and the table."""
    arguments = _parser().parse_args()
    rows: list[dict[str, Any]] = []
    if arguments.dataset_dir is not None:
        model = load_model(arguments.ckpt_path, arguments.num_proposals, arguments.num_samples)
        people = read_split(arguments.split_file).parts["val"]
        for moving, fixed in list(itertools.permutations(people, 2))[: arguments.pairs]:
            item = load_pair(model, arguments.dataset_dir, moving, fixed)
            for row in run_pair(item, model["sampler"], arguments.structures, arguments.methods):
                rows.append({"weights": arguments.name, "moving": moving, "fixed": fixed, **row})
                print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
            write_rows(rows, arguments.csv)
    replace_table(arguments.docs, table(read_rows(arguments.csv)))
    print(f"{arguments.csv} and the table in {arguments.docs} are written")


def load_model(ckpt_path: Path, num_proposals: int, num_samples: int, **overrides: Any) -> dict[str, Any]:
    """Sampler and preprocessing of configs/inference.json, with these weights.

    Args:
        ckpt_path: the weights.
        num_proposals: drawn for each pair.
        num_samples: resampled of them.
        overrides: values of the config.
    """
    parser = ConfigParser()
    parser.read_config(str(ROOT / "configs/inference.json"))
    given = {"bundle_root": str(ROOT), "align": "none", "device": "$torch.device('cpu')", "ckpt_path": str(ckpt_path)}
    parser.update({**given, **overrides})
    sampler: Sampler = parser.get_parsed_content("sampler")
    counts = {"num_proposals": num_proposals, "num_samples": num_samples}
    settings = {**counts, "detail_steps": 0, "num_modes": 0, "progress": False}
    return {"sampler": sampler.with_settings(**settings), "preprocessing": parser.get_parsed_content("preprocessing")}


def load_pair(model: Mapping[str, Any], folder: Path, moving: str, fixed: str) -> dict[str, Any]:
    """A prepared pair of the neurite-OASIS layout."""
    files = {}
    for role, person in (("moving", moving), ("fixed", fixed)):
        files[role] = str(folder / person / "aligned_norm.nii.gz")
        files[f"{role}_label"] = str(folder / person / "aligned_seg35.nii.gz")
    return {**model["preprocessing"](files), "moving_name": moving, "fixed_name": fixed}


def run_pair(
    item: Mapping[str, Any], sampler: Sampler, structures: int = 1, methods: Iterable[str] = METHODS
) -> Iterable[dict[str, Any]]:
    """Rows of one pair: for each of the worst structures and each method."""
    pair = PairImages.of_item(item, sampler.factor)
    stored = sampler.posterior(pair)
    before = conclude(item, pair, stored, sampler.settings)
    fixed, moving = (item[f"{role}_label"].as_tensor()[0].numpy() for role in ("fixed", "moving"))
    for label in worst_structures(before, moving, fixed, structures):
        inside = (fixed == label, moving == label)
        mean = stored.mean.numpy()
        worst = marks_where_worst(*inside, mean, stored.space)
        for method in methods:
            marks = marks_at_tips(*inside, stored.space) if method == "tips" else worst
            start = time.perf_counter()
            settings = sampler.settings
            if method == "exact" or method.endswith("_still"):
                settings = replace(settings, refine_steps=0)
            given = condition_again(stored, pair, _knowledge(method, marks, label, fixed, stored.space), settings)
            after = conclude(item, pair, given, settings)
            seconds = time.perf_counter() - start
            yield {
                "structure": SEG35[label].name, "method": method,
                "marks": 0 if method.startswith("outline") else len(marks.given),
                **_compare("dice", _dice(before, label), _dice(after, label), 4),
                **_compare("dice_all", before.diagnostics["dice_after"], after.diagnostics["dice_after"], 4),
                **_errors("held_out", marks.held_out, stored, given, None if method == "tips" else inside[1]),
                **_errors("marks", marks.given, stored, given),
                **_compare("ess", stored.draws.ess, given.draws.ess, 1),
                "seconds": round(seconds, 1),
            }  # fmt: skip


def worst_structures(result: RegistrationResult, moving: np.ndarray, fixed: np.ndarray, count: int) -> list[int]:
    """The structures with the lowest Dice among those that are compact and not tiny."""
    assert result.labels is not None
    rows = [
        row
        for row in result.labels.volumes
        if row.dice is not None
        and not any(word in row.name.lower() for word in WIDESPREAD)
        and min((moving == row.label).sum(), (fixed == row.label).sum()) >= SMALLEST
    ]
    return [row.label for row in sorted(rows, key=lambda row: (row.dice, row.label))[:count]]


def _knowledge(method: str, marks: Marks, label: int, fixed: np.ndarray, space: PairSpace) -> Knowledge:
    """What the expert gives."""
    if not method.startswith("outline"):
        return Knowledge(marks.given, None, method != "exact")
    with TemporaryDirectory() as folder:  # as a person would have it: a file
        path = Path(folder) / "corrected.nii.gz"
        nib.save(nib.Nifti1Image(np.where(fixed == label, fixed, 0).astype(np.int16), space.fixed.affine), path)
        return Knowledge(None, read_correction(path, space.fixed, [label]))


def _dice(result: RegistrationResult, label: int) -> float:
    assert result.labels is not None
    return next(row.dice for row in result.labels.volumes if row.label == label and row.dice is not None)


def _errors(
    name: str, points: Landmarks, before: Posterior, after: Posterior, structure: np.ndarray | None = None
) -> dict[str, float]:
    """Mean error at points under both mean fields: from their partners, or from a structure's outline where that is
    all that is known about where they belong.
    """
    errors = []
    for part in (before, after):
        field, space = part.mean.numpy(), part.space
        if structure is None:
            errors.append(float(points.distances(field, space).mean()))
        else:
            carried = space.align(points.fixed + space.displacement_at(field, points.fixed))
            errors.append(float(cKDTree(outline_points(structure, space.moving)).query(carried)[0].mean()))
    return {f"{name}_before_mm": round(errors[0], 3), f"{name}_after_mm": round(errors[1], 3)}


def _compare(name: str, before: float, after: float, digits: int) -> dict[str, float]:
    return {f"{name}_before": round(float(before), digits), f"{name}_after": round(float(after), digits)}


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """The CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of the CSV file."""
    if not path.is_file():
        raise SystemExit(f"{path} does not exist; run the experiment with --dataset_dir first")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table(rows: list[dict[str, str]]) -> str:
    """Means over pairs and structures, a line for each method, as Markdown."""
    lines = [
        "| what the expert gave | runs | Dice of the structure | Dice of all structures | error at held-out points, mm "
        "| error at the marks, mm | better in |",
        "|---|---|---|---|---|---|---|",
    ]
    words = {
        "worst": "5 points where the registration was worst",
        "worst_still": "the same, the mean not refined again",
        "exact": "the same, nor a discrepancy of the model",
        "tips": "5 points at the structure's tips",
        "outline": "the structure's outline",
        "outline_still": "the same, the mean not refined again",
    }
    for method in dict.fromkeys(row["method"] for row in rows):
        part = [row for row in rows if row["method"] == method]

        def pair(name: str, unit: str = "", digits: int = 3, part: list[dict[str, str]] = part) -> str:
            before, after = (
                np.mean([float(row[f"{name}_{when}{unit}"]) for row in part]) for when in ("before", "after")
            )
            return f"{before:.{digits}f} → {after:.{digits}f}"

        better = sum(float(row["dice_after"]) > float(row["dice_before"]) for row in part)
        marks = pair("marks", "_mm", 2) if not method.startswith("outline") else "–"
        lines.append(
            f"| {words[method]} | {len(part)} | {pair('dice')} | {pair('dice_all')} | {pair('held_out', '_mm', 2)} "
            f"| {marks} | {better} of {len(part)} |"
        )
    weights = ", ".join(sorted({row["weights"] for row in rows}))
    return "\n".join([*lines, "", f"Weights: {weights}."])


def replace_table(path: Path, text: str) -> None:
    """Put the table between the two marks of a Markdown file."""
    begin, end = "<!-- table: begin -->", "<!-- table: end -->"
    content = path.read_text(encoding="utf-8")
    head, tail = content.split(begin)[0], content.split(end)[1]
    path.write_text(f"{head}{begin}\n{text}\n{end}{tail}", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.conditioning", description=__doc__)
    parser.add_argument("--dataset_dir", type=Path, help="folders of people; without it only the table is made")
    parser.add_argument("--ckpt_path", type=Path, default=ROOT / "models/model.pt")
    parser.add_argument("--name", default="models/model.pt", help="of the weights, for the table")
    parser.add_argument("--split_file", type=Path, default=ROOT / "configs/splits/oasis.json")
    parser.add_argument("--pairs", type=int, default=6, help="ordered pairs of the validation people")
    parser.add_argument("--structures", type=int, default=2, help="worst structures of each pair")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--num_proposals", type=int, default=200)
    parser.add_argument("--num_samples", type=int, default=40)
    parser.add_argument("--csv", type=Path, default=ROOT / "docs/results/conditioning.csv")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs/conditioning.md")
    return parser


if __name__ == "__main__":
    main()
