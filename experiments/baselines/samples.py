"""Volumes that the samples of a registration through files claim, and the fixed image's own."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from scripts.core.seg35 import SCORED
from scripts.evaluation.pair_report import LabeledPair
from scripts.posterior.posterior import Posterior

VOLUMES_FILE = "volumes.csv"


class VolumeRow(NamedTuple):
    """A structure's volume in one pair, mm³: what the samples say (mean, 95 % interval), and what it is."""

    fixed: str
    moving: str
    label: int
    mean: float
    lower: float
    upper: float
    true: float


def volumes_of(posterior: Posterior, pair: LabeledPair, labels: Sequence[int] = SCORED) -> list[VolumeRow]:
    """What the samples say about each structure's volume, and what it is.

    Args:
        posterior: of the pair.
        pair: label maps.
        labels: the structures.
    """
    samples = posterior.labels(pair.moving_label, list(labels))
    rows = []
    for label, mean, lower, upper in zip(labels, *samples.volume_interval(0.95), strict=True):
        true = float((pair.fixed_label == label).sum()) * posterior.space.fixed.voxel_volume
        rows.append(VolumeRow(*pair.names, int(label), float(mean), float(lower), float(upper), true))
    return rows


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
