"""What the samples of a registration through files say, judged by the fixed image's own labels."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scripts.core.seg35 import SCORED
from scripts.evaluation.pair_report import LabeledPair, score_ribbons
from scripts.evaluation.pair_result import PairResult
from scripts.posterior.field_moments import FieldMoments
from scripts.posterior.folds import fold_percentage
from scripts.posterior.label_samples import LabelSamples
from scripts.posterior.stored import StoredPosterior
from scripts.registration.warp import warp_labels

VOLUMES_FILE = "volumes.csv"
RADIUS = 3
"""Of the ribbon in voxels (decision 15)."""


class VolumeRow(NamedTuple):
    """A structure's volume in one pair, mm³: what the samples say (mean, 95 % interval), and what it is."""

    fixed: str
    moving: str
    label: int
    mean: float
    lower: float
    upper: float
    true: float


def score_samples(
    result: PairResult, stored: StoredPosterior, pair: LabeledPair, labels: Sequence[int] = SCORED
) -> tuple[PairResult, list[VolumeRow]]:
    """A pair's result with what needs samples: calibration in ribbons, the Oracle, sampling figures; and volumes.

    Args:
        result: of the mean field.
        stored: its posterior; its fixed grid is that of the pair's arrays.
        pair: label maps, and the voxel size.
        labels: the label ids to score.
    """
    truth, space = pair.fixed_label[0, 0], stored.space
    samples = LabelSamples(labels, truth=truth, voxel_volume=space.fixed.voxel_volume)
    moments, fold_oracle = FieldMoments(), float("nan")
    for _, count, points in stored.samples():
        mm = space.displacement(points[None])
        ddf = space.in_fixed_voxels(mm)
        samples.add(warp_labels(pair.moving_label, ddf)[0, 0], count)
        if samples.oracle == len(samples) - 1:  # the best so far
            fold_oracle = float(fold_percentage(ddf))
        moments.add(mm, count)
    total = moments.variance[0].sum(0)  # [X, Y, Z], mm²
    ribbons, curves = score_ribbons(samples, total / 3, truth, RADIUS)
    variance = float(total[truth > 0].double().mean())
    dice = samples.dice[samples.oracle]
    pair_scores = {
        **result.pair,
        "dice_oracle": float(dice.nanmean()),
        "fold_oracle": fold_oracle,
        "displacement_variance": variance / 3,
        "displacement_variance_total": variance,
        "ess": stored.posterior.ess,
        "khat": stored.posterior.khat,
        "max_weight": float(stored.posterior.weights.max()),
        "unique": float(len(samples)),
        "samples": moments.weight,
    }
    structures = {**result.structures, **ribbons, "dice_oracle": dice.tolist()}
    interval = samples.volume_interval(0.95)
    rows = []
    for i, label in enumerate(samples.labels):
        true = float((truth == label).sum()) * space.fixed.voxel_volume
        mean, lower, upper = (float(part[i]) for part in interval)
        rows.append(VolumeRow(pair.names[0], pair.names[1], int(label), mean, lower, upper, true))
    return replace(result, structures=structures, pair=pair_scores, curves=curves), rows


def append_volumes(path: Path, rows: Sequence[VolumeRow]) -> None:
    """Add rows to a CSV file, with its header if it is new."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(VolumeRow._fields)
        writer.writerows([*row[:3], *(f"{value:.1f}" for value in row[3:])] for row in rows)


def read_volumes(path: Path) -> list[VolumeRow]:
    """The rows of the file; a pair that was written twice, after an interruption, counts once."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [
            VolumeRow(
                row["fixed"], row["moving"], int(row["label"]), *(float(row[key]) for key in VolumeRow._fields[3:])
            )
            for row in csv.DictReader(file)
        ]
    return list({(row.fixed, row.moving, row.label): row for row in rows}.values())
