"""`python -m experiments.uncertainty.fit`: intervals of volumes from `residuals`, checked by leaving people out.

    python -m experiments.uncertainty.fit --dataset_dir /data/oasis1mm [--write models/model.pt]

Everything is fitted on training people, whose label maps took no part in training. A pair is held out whenever one of
its two people is; raters' differences are those of people who were labeled twice (`same_person` in the split). With
`--write` the result goes into a model file.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import fire
import nibabel as nib
import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from experiments.uncertainty.people import SPLIT
from experiments.uncertainty.registered import LABEL, WORK
from scripts.core.seg35 import SCORED, SEG35
from scripts.evaluation.fit_temperature import write_fitted
from scripts.inference.model_file import load_model
from scripts.posterior.calibrated import LEVELS, Calibration, Kind, VolumeErrors, without_side
from scripts.posterior.spread import named_spread

STEADY = 6.0
"""A kind's bias and slope are drawn to nothing as if so many more pairs had had none."""


@dataclass(frozen=True)
class Residual:
    """One structure of one pair."""

    fixed: str
    moving: str
    name: str
    expected: float
    log_std: float
    true: float
    moving_volume: float

    @property
    def error(self) -> float:
        """log(true / expected)."""
        return math.log(self.true / self.expected)

    @property
    def change(self) -> float:
        """log(expected / moving)."""
        return math.log(self.expected / self.moving_volume)


def read(path: Path) -> list[Residual]:
    """The table of `experiments.uncertainty.residuals`."""
    rows = []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        numbers = [float(row[key]) for key in ("expected", "log_std", "true", "moving_volume")]
        if min(numbers[0], *numbers[2:]) > 0:
            rows.append(Residual(row["fixed"], row["moving"], row["name"], *numbers))
    return rows


def raters(dataset_dir: Path) -> dict[str, float]:
    """Standard deviation of log volume between two labelings of one person, by kind."""
    squares: dict[str, list[float]] = {}
    for pair in json.loads(SPLIT.read_text(encoding="utf-8"))["same_person"]:
        maps = [np.asarray(nib.load(dataset_dir / name / LABEL).dataobj).astype(int) for name in pair]  # type: ignore[attr-defined]
        counts = [np.bincount(labels.ravel(), minlength=36) for labels in maps]
        for label in SCORED:
            one, two = (float(count[label]) for count in counts)
            if one and two:
                squares.setdefault(without_side(SEG35[label].name), []).append(math.log(one / two) ** 2 / 2)
    return {name: math.sqrt(float(np.mean(values))) for name, values in squares.items()}


def fit(rows: Sequence[Residual], rater: dict[str, float]) -> VolumeErrors:
    """Bias, slope and floor of each kind."""
    by_kind: dict[str, list[Residual]] = {}
    for row in rows:
        by_kind.setdefault(without_side(row.name), []).append(row)
    kinds = {name: _kind(group, rater.get(name, 0.0)) for name, group in by_kind.items()}
    other = Kind(
        0.0, 0.0, *(float(np.median([getattr(k, part) for k in kinds.values()])) for part in ("floor", "rater"))
    )
    return VolumeErrors(kinds, other)


def held_out(rows: Sequence[Residual], rater: dict[str, float]) -> list[tuple[Residual, float]]:
    """Each volume with its |standardized error| under what was fitted without the fixed person."""
    found = []
    for person in sorted({row.fixed for row in rows}):
        errors = fit([row for row in rows if person not in (row.fixed, row.moving)], rater)
        found += [(row, abs(standard_error(errors, row))) for row in rows if row.fixed == person]
    return found


def _kind(rows: Sequence[Residual], rater: float) -> Kind:
    error, change = (np.array([getattr(row, name) for row in rows]) for name in ("error", "change"))
    spread = np.array([row.log_std for row in rows])
    weights = 1 / (np.var(error) + spread**2)
    # Weighted least squares with a ridge: few people, and left and right of one are not independent.
    ridge = STEADY * np.mean(weights) * np.diag([1.0, np.mean(change**2) + 1e-12])
    design = np.stack([np.ones_like(change), change], axis=1)
    normal = design.T @ (weights[:, None] * design) + ridge
    bias, slope = np.linalg.solve(normal, design.T @ (weights * error))
    rest = error - design @ [bias, slope]
    # By moments. Two numbers were fitted to as many independent errors as there are people, not pairs.
    free = len({row.fixed for row in rows})
    total = np.mean(rest**2) * free / max(free - 2, 1)
    return Kind(float(bias), float(slope), math.sqrt(max(total - np.mean(spread**2), 1e-6)), rater)


def standard_error(errors: VolumeErrors, row: Residual) -> float:
    """log(true / center) in standard deviations."""
    center = errors.center(row.name, row.expected, row.moving_volume)
    return math.log(row.true / center) / errors.deviation(row.name, row.log_std, rater=True)


def coverage(errors: VolumeErrors, rows: Sequence[Residual]) -> dict[str, float]:
    """Shares of volumes in their intervals, and how wide these are."""
    z = np.abs([standard_error(errors, row) for row in rows])
    out = {f"in {level} %": float(np.mean(z <= errors.quantiles[level])) for level in LEVELS}
    widths, misses = [], []
    for row in rows:
        center = errors.center(row.name, row.expected, row.moving_volume)
        lower, upper = errors.interval(row.name, center, row.log_std)
        widths.append((upper - lower) / row.true)
        misses.append(abs(center - row.true) / row.true)
    out |= {"median width": float(np.median(widths)), "median error": float(np.median(misses))}
    return out


def main(dataset_dir: str, table: str = str(WORK / "volumes.csv"), write: str | None = None) -> None:
    """Fit, check by leaving out each person in turn, and keep."""
    rows, rater = read(Path(table)), raters(Path(dataset_dir))
    people = sorted({row.fixed for row in rows})
    held = held_out(rows, rater)
    # The quantiles are those of people who were left out, as what was fitted to a person is too near; and as Student's
    # t has it for so few people, two numbers of whom were fitted.
    quantiles = {}
    for level in LEVELS:
        tail = (1 + level / 100) / 2
        few = float(student.ppf(tail, len(people) - 2) / normal.ppf(tail))
        quantiles[level] = few * float(np.quantile([z for _, z in held], level / 100))
    errors = replace(fit(rows, rater), quantiles=quantiles)
    print(f"{len(people)} people, {len(rows)} volumes; quantiles {quantiles}")
    print({name: round(value, 3) for name, value in coverage(errors, rows).items()})
    print("each person left out, with the quantiles of the others:")
    for level in LEVELS:
        inside = []
        for person in people:
            limit = np.quantile([z for row, z in held if row.fixed != person], level / 100)
            inside += [z <= limit for row, z in held if row.fixed == person]
        print(f"  in {level} %: {np.mean(inside):.3f}")
    for name, kind in sorted(errors.kinds.items()):
        inside = [z <= quantiles[95] for row, z in held if without_side(row.name) == name]
        figures = f"bias {kind.bias:+.3f} slope {kind.slope:+.2f} floor {kind.floor:.3f} rater {kind.rater:.3f}"
        print(f"{name:26} {figures} in {np.mean(inside):.2f}")
    if write is not None:
        model = load_model(write)
        known = Calibration.of(model.calibration)
        notes = {**known.notes, "volumes": f"{len(people)} training people, {len(rows)} volumes, 1 mm"}
        spread = named_spread("curvature").settings()
        model.calibration = Calibration(spread, errors, known.points, known.failure, notes).plain()
        write_fitted(model, Path(write))


if __name__ == "__main__":
    fire.Fire(main)
