"""The images of a pair at twice the model's resolution, for what the model is too coarse to see.

They exist only where both files have such resolution. Their grid is the work grid with each voxel cut into eight.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.transforms import SpatialResample, Transform

from scripts.core.grid import Grid
from scripts.core.pair_keys import fine_key
from scripts.data.antialias import antialiased

IMAGES = ("fixed", "moving")
FINE_ENOUGH = 0.75
"""All edges of both files' voxels must be at most so many work voxels: 1.5 mm where the model works at 2 mm."""


class KeepFined(Transform):
    """Keep images and mask as they are before they become coarser, if they are fine enough.

    Args:
        pixdim: voxel size of the work grid, in mm.
    """

    def __init__(self, pixdim: float) -> None:
        self.pixdim = pixdim

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Keep the volumes of one pair."""
        item = dict(data)
        edges = [float(Grid.of(item[key]).spacing.max()) for key in IMAGES]  # thick slices hold no such detail
        if max(edges) <= FINE_ENOUGH * self.pixdim:
            for key in (*IMAGES, "fixed_mask"):
                if key in item:
                    item[fine_key(key)] = item[key]
        return item


class SampleFined(Transform):
    """Bring what :class:`KeepFined` kept onto the work grid's voxels, each cut into eight."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Sample the volumes of one pair."""
        item = dict(data)
        grid = halved(Grid.of(item["fixed"]))
        for key in (*IMAGES, "fixed_mask"):
            if fine_key(key) not in item:
                continue
            volume = item[fine_key(key)]
            nearest = key == "fixed_mask"
            if not nearest:
                volume = antialiased(volume, float(grid.spacing.mean()))
            sampled = SpatialResample(mode="nearest" if nearest else "bilinear", padding_mode="zeros", dtype=np.float32)
            item[fine_key(key)] = sampled(volume, dst_affine=torch.as_tensor(grid.affine), spatial_size=grid.shape)
        return item


def halved(grid: Grid) -> Grid:
    """The grid with each voxel cut into eight."""
    x, y, z = (2 * size for size in grid.shape)
    to_whole = np.diag([0.5, 0.5, 0.5, 1.0])
    to_whole[:3, 3] = -0.25
    return Grid((x, y, z), grid.affine @ to_whole)
