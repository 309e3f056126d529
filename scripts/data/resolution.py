"""Images before they are sampled at the model's voxels: smoothed for larger ones, or kept for smaller ones.

What the model is too coarse to see is found at twice its resolution, where both files have such resolution: on the work
grid with each voxel cut into eight.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import GaussianSmooth, SpatialResample

from scripts.core.grid import Grid
from scripts.core.pair_keys import fine_key

IMAGES = ("fixed", "moving")
FINE_ENOUGH = 0.75
"""All edges of both files' voxels must be at most so many work voxels: 1.5 mm where the model works at 2 mm."""


def antialiased(image: MetaTensor, pixdim: float) -> MetaTensor:
    """Smooth an image [1, X, Y, Z] before it is sampled at steps of `pixdim` mm, so that nothing turns up as noise.

    A voxel that is f times as long averages over f small ones: a box of variance (f² − 1)/12.
    """
    ratio = pixdim / Grid.of(image).spacing
    sigma = np.sqrt(np.maximum(ratio**2 - 1, 0) / 12)
    # MONAI's smoothing needs positive widths; 0.01 voxels change nothing.
    return GaussianSmooth(np.maximum(sigma, 0.01).tolist())(image) if (sigma > 0.2).any() else image


def smooth_pair(data: Mapping[Hashable, Any], pixdim: float, fine: bool = True) -> dict[Hashable, Any]:
    """Smooth both images for the work grid; fine enough ones stay as they were beside that (not with `fine` False)."""
    item = dict(data)
    edges = [float(Grid.of(item[key]).spacing.max()) for key in IMAGES]  # thick slices hold no such detail
    if fine and max(edges) <= FINE_ENOUGH * pixdim:
        item |= {fine_key(key): item[key] for key in (*IMAGES, "fixed_mask") if key in item}
    return item | {key: antialiased(item[key], pixdim) for key in IMAGES}


def sample_fine(data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Bring what :func:`smooth_pair` kept onto the work grid's voxels, each cut into eight."""
    item = dict(data)
    grid = halved(Grid.of(item["fixed"]))
    for key, mode in (("fixed", "bilinear"), ("moving", "bilinear"), ("fixed_mask", "nearest")):
        if fine_key(key) not in item:
            continue
        volume = item[fine_key(key)]
        if key in IMAGES:
            volume = antialiased(volume, float(grid.spacing.mean()))
        sample = SpatialResample(mode=mode, padding_mode="zeros", dtype=np.float32)
        item[fine_key(key)] = sample(volume, dst_affine=torch.as_tensor(grid.affine), spatial_size=grid.shape)
    return item


def halved(grid: Grid) -> Grid:
    """The grid with each voxel cut into eight."""
    x, y, z = (2 * size for size in grid.shape)
    to_whole = np.diag([0.5, 0.5, 0.5, 1.0])
    to_whole[:3, 3] = -0.25
    return Grid((x, y, z), grid.affine @ to_whole)
