"""The ribbon around a structure's true boundary, in which calibration is measured (decision 15).

Far from a boundary every sample agrees, and the many easy voxels would hide the few that matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from scripts.posterior.boxes import Box, grow, label_boxes
from scripts.posterior.label_maps import encode_labels


class Ribbon(NamedTuple):
    """The voxels near one structure's boundary, kept as a mask within a box because most of a volume is far away."""

    box: Box
    """Where the mask lies in the volume."""
    mask: Tensor
    """True in the ribbon, bool, shape [x, y, z] of the box."""

    def select(self, volume: Tensor) -> Tensor:
        """Take the ribbon's voxels from a volume: shape [..., X, Y, Z] to [..., N]."""
        return volume[(..., *self.box)][..., self.mask]


def dilate(mask: Tensor, steps: int = 1) -> Tensor:
    """Dilate a mask by the cross of a voxel and its six face neighbors, ``steps`` times.

    Equivalent to "within ``steps`` voxels in city-block distance"; nothing enters from outside the volume.
    """
    if mask.numel() == 0:
        return mask
    for _ in range(steps):
        grown = mask.clone()
        for axis, size in enumerate(mask.shape):
            grown.narrow(axis, 1, size - 1).logical_or_(mask.narrow(axis, 0, size - 1))
            grown.narrow(axis, 0, size - 1).logical_or_(mask.narrow(axis, 1, size - 1))
        mask = grown
    return mask


def boundary_ribbon(structure: Tensor, radius: int = 3) -> Tensor:
    """Mark the voxels within ``radius`` voxels of a structure's boundary (decision 15).

    The boundary is made of the structure's own voxels that have a face neighbor outside it. The edge of the image is
    not a boundary: a structure cut by the field of view does not end there.
    """
    return dilate(structure & dilate(~structure), radius)


def label_ribbons(truth: Tensor, labels: Sequence[int], radius: int = 3) -> list[Ribbon]:
    """The ribbon of every structure of a true label map [X, Y, Z]; empty for one that is absent."""
    if truth.ndim != 3:
        raise ValueError(f"expected a label map of shape [X, Y, Z], got {tuple(truth.shape)}")
    if radius < 0:
        raise ValueError(f"expected a radius of 0 or more voxels, got {radius}")
    codes = encode_labels(truth, labels)
    ribbons = []
    for code, tight in enumerate(label_boxes(codes, len(labels)), start=1):
        # One voxel more than the radius, so that the outside is seen even with a radius of 0.
        box = grow(tight, radius + 1, codes.shape)
        ribbons.append(Ribbon(box, boundary_ribbon(codes[box] == code, radius)))
    return ribbons
