"""Labels carried over by every sampled field: probabilities, entropy, volumes with credible intervals."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from scripts.core.atomic import writing
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.core.seg35 import SEG35
from scripts.posterior.calibrated import VolumeErrors
from scripts.posterior.dice import dice_from_counts, label_counts, overlap_counts
from scripts.posterior.label_maps import encode_labels
from scripts.posterior.label_samples import LabelSamples
from scripts.posterior.result import LabelResult, StructureVolume
from scripts.registration.space import PairSpace

SEG35_AT_LEAST = 25
"""So many different labels from 1 to 35 are taken for those of seg35."""
MOST_STRUCTURES = 2000
"""More different values than this are no anatomical labels."""


def label_values(label_map: Tensor) -> list[int]:
    """The labels in a map, without 0, in order. Raises DataError when there is none, or far too many."""
    values = [int(value) for value in label_map.unique() if value != 0]
    if not values:
        raise DataError("moving_label: the map is empty, all values are 0")
    if len(values) > MOST_STRUCTURES:
        raise DataError(f"moving_label: {len(values)} different values; is this an intensity image?")
    return values


def structure_names(values: list[int], names: Mapping[int, str] | None = None) -> dict[int, str]:
    """A name for each label: the given one, else that of seg35 if the map seems to be such a one, else its number.

    Small numbers alone do not make it seg35: maps of tissues have 1, 2, 3, and parts of FreeSurfer's have few above 35.
    """
    given = dict(names or {})
    seems_seg35 = max(values) <= len(SEG35) and len(values) >= SEG35_AT_LEAST
    known = {number: label.name for number, label in SEG35.items()} if seems_seg35 else {}
    return {value: given.get(value) or known.get(value) or f"label {value}" for value in values}


class LabelAccumulator:
    """Warps the moving label map by one sampled field after the other.

    Args:
        moving_label: on the moving file's grid, [X', Y', Z'], integers.
        fixed_label: the fixed image's own map, to compare with.
        source: the map's grid; None for the moving file's.
        calibration: what makes intervals of the samples' spread; None for the samples' own.
        blur: of the probabilities, see :meth:`~scripts.posterior.label_samples.LabelSamples.smooth`.
    """

    def __init__(
        self,
        moving_label: Tensor,
        space: PairSpace,
        names: Mapping[int, str] | None = None,
        fixed_label: Tensor | None = None,
        source: Grid | None = None,
        calibration: VolumeErrors | None = None,
        blur: float = 0.0,
    ) -> None:
        self.space, self.source = space, source
        self.values = label_values(moving_label)
        self.names = structure_names(self.values, names)
        self.moving_label = moving_label.to(torch.int32)
        self.fixed_label, self.calibration, self.blur = fixed_label, calibration, blur
        self._samples = LabelSamples(self.values, voxel_volume=space.fixed.voxel_volume)

    def add(self, displacement: Tensor, weight: float, local: Tensor | None = None) -> None:
        """Take one field into account.

        Args:
            displacement: at the fixed file's voxels [3, X, Y, Z], mm.
            weight: how often it counts.
            local: see :meth:`~scripts.posterior.label_samples.LabelSamples.add`.
        """
        self._samples.add(self.space.warp_labels(self.moving_label, displacement, self.source), weight, local)

    def result(self) -> LabelResult:
        """What the samples say together; there is nothing to be added after it."""
        self._samples.smooth(self.blur)
        summary = self._samples.summary()
        volumes = [
            self._calibrated(StructureVolume(value, self.names[value], mean, lower, upper, own, dice), log_std, before)
            for value, (own, dice), mean, lower, upper, log_std, before in zip(
                self.values, self._compare(summary.label),
                *(part.tolist() for part in self._samples.volume_interval(0.95)),
                self._samples.log_volume_std.tolist(), self.moving_volumes(), strict=True,
            )
        ]  # fmt: skip
        return LabelResult(
            label=summary.label.cpu().numpy(),
            probability=summary.probability.float().cpu().numpy(),
            entropy=summary.entropy.float().cpu().numpy(),
            volumes=volumes,
            fixed_label=None if self.fixed_label is None else self.fixed_label.cpu().numpy(),
        )

    def moving_volumes(self) -> list[float]:
        """Of the moving person's structures, in mm³ of the fixed person's space: after the alignment alone."""
        shrunk = abs(float(np.linalg.det(self.space.alignment[:3, :3])))
        voxel = (self.source or self.space.moving).voxel_volume / shrunk
        codes = encode_labels(self.moving_label, self.values)
        return (label_counts(codes, len(self.values)) * voxel).tolist()

    def _calibrated(self, volume: StructureVolume, log_std: float, before: float) -> StructureVolume:
        """The volume and its intervals as calibrated; as it is without a calibration, or without any voxel."""
        errors = self.calibration
        if errors is None or not volume.mean > 0:
            return replace(volume, registration=(volume.lower, volume.upper))
        center = errors.center(volume.name, volume.mean, before)
        lower, upper = errors.interval(volume.name, center, log_std)
        alone = errors.interval(volume.name, center, log_std, rater=False)
        return replace(volume, mean=center, lower=lower, upper=upper, registration=(alone.lower, alone.upper))

    def dice(self, label_map: Tensor) -> float:
        """Mean Dice of a label map against the fixed image's own, over the structures that both have."""
        scores = [score for _, score in self._compare(label_map) if score is not None]
        return float(np.mean(scores)) if scores else float("nan")

    def _compare(self, label_map: Tensor) -> list[tuple[float | None, float | None]]:
        """For each structure its volume in the fixed image's own map, and the Dice of a map against it.

        None without such a map; the Dice is None without such a structure.
        """
        if self.fixed_label is None:
            return [(None, None)] * len(self.values)
        own, found = (encode_labels(part.cpu(), self.values) for part in (self.fixed_label, label_map))
        count = len(self.values)
        sizes = label_counts(own, count)
        dice = dice_from_counts(overlap_counts(found, own, count), label_counts(found, count), sizes).tolist()
        volumes = (sizes * self.space.fixed.voxel_volume).tolist()
        return [(volume, score if volume else None) for volume, score in zip(volumes, dice, strict=True)]


def write_volumes(volumes: list[StructureVolume], path: Path) -> None:
    """`volumes.csv`: one row a structure.

    `lower_95_mm3` and `upper_95_mm3` are for the volume that another rater would find; the last two columns for the
    registration's error alone.
    """
    header = ["label", "name", "volume_mm3", "lower_95_mm3", "upper_95_mm3", "fixed_volume_mm3", "dice"]
    with writing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "registration_lower_95_mm3", "registration_upper_95_mm3"])
        for row in volumes:
            figures = [f"{value:.1f}" for value in (row.mean, row.lower, row.upper)]
            own = "" if row.fixed is None else f"{row.fixed:.1f}"
            alone = [f"{value:.1f}" for value in row.registration or (row.lower, row.upper)]
            writer.writerow([row.label, row.name, *figures, own, "" if row.dice is None else f"{row.dice:.4f}", *alone])
