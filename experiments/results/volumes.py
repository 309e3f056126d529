"""How often a structure's volume lies inside of the interval that the samples give it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from experiments.baselines.samples import VolumeRow, read_volumes
from experiments.results.result_tables import NOTHING, markdown
from scripts.core.seg35 import SEG35

FILE = "volumes.csv"
PARTS = {
    "cortex and white matter of the cerebrum": ("Cerebral",),
    "cerebellum, brain stem": ("Cerebellum", "Brain-Stem"),
    "ventricles": ("Ventricle", "Vent"),
    "thalamus, caudate, putamen, pallidum, accumbens, ventral DC": (
        "Thalamus", "Caudate", "Putamen", "Pallidum", "Accumbens", "VentralDC",
    ),
    "hippocampus, amygdala": ("Hippocampus", "Amygdala"),
}  # fmt: skip
"""Parts of the brain by pieces of their structures' names; the first that fits."""


def part_of(label: int) -> str:
    """The part of the brain that a structure belongs to."""
    name = SEG35[label].name.removeprefix("Left-").removeprefix("Right-")
    words = {name, *name.split("-")}
    return next((part for part, pieces in PARTS.items() if words & set(pieces)), "others")


def volume_table(path: Path) -> str:
    """Coverage of the 95 % intervals, their width, and the error of the mean volume, for parts of the brain."""
    if not path.is_file():
        return NOTHING
    rows = [row for row in read_volumes(path) if row.true > 0]
    groups = {"all 31 structures": rows} | {part: [r for r in rows if part_of(r.label) == part] for part in PARTS}
    lines = [[name, *_cells(part)] for name, part in groups.items() if part]
    pairs = len({(row.fixed, row.moving) for row in rows})
    header = [
        "Structures",
        "Volumes",
        "Inside of their 95 % interval",
        "Width of the interval",
        "Error of the mean volume",
    ]
    return f"{markdown(header, lines)}\n{pairs} pairs; width and error are medians, as shares of the true volume.\n"


def _cells(rows: Sequence[VolumeRow]) -> list[str]:
    inside = sum(row.lower <= row.true <= row.upper for row in rows)
    width = statistics.median((row.upper - row.lower) / row.true for row in rows)
    error = statistics.median(abs(row.mean - row.true) / row.true for row in rows)
    return [str(len(rows)), f"{100 * inside / len(rows):.0f} %", f"{100 * width:.0f} %", f"{100 * error:.0f} %"]
