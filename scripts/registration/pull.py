"""Pulling a volume onto another grid through a displacement in millimeters: one interpolation, whatever the grids.

Inside the model, images share one grid and `scripts.registration.warp` is used. Results are for the files' own grids:
the fixed image's voxels take their values straight from the moving file's voxels. Places outside are 0, and a voxel
reaches half its size around its center, as in ITK's resampler.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scripts.registration.backends import compiled
from scripts.registration.errors import ShapeError


def pull(volume: Tensor, displacement: Tensor, matrix: np.ndarray, per_mm: np.ndarray, nearest: bool = False) -> Tensor:
    """Intensities, by trilinear interpolation, or labels, by the nearest voxel, at displaced places.

    Args:
        volume: the source, shape [X', Y', Z']; labels may be integers of any kind.
        displacement: at each voxel of the result, in mm, shape [3, X, Y, Z], float32.
        matrix: from the result's indices to the source's, (4, 4): inv(A_source) @ A_result for RAS affines.
        per_mm: from a displacement in mm to one in the source's indices, (3, 3): the inverse of A_source[:3, :3].

    Returns:
        shape [X, Y, Z]; float32, or the labels' dtype.

    Raises:
        ShapeError: for other shapes.
    """
    if volume.ndim != 3:
        raise ShapeError("the volume", "(X, Y, Z)", volume.shape)
    if displacement.ndim != 4 or displacement.shape[0] != 3:
        raise ShapeError("the displacement", "(3, X, Y, Z)", displacement.shape)
    if matrix.shape != (4, 4) or per_mm.shape != (3, 3):
        raise ShapeError("the matrices", "(4, 4) and (3, 3)", (*matrix.shape, *per_mm.shape))
    volume = volume if nearest else volume.float()
    fast = compiled("numba_warp", displacement)
    if fast is not None:
        return fast.pull(volume, displacement, matrix, per_mm, nearest)
    places, inside = _places(volume, displacement, matrix, per_mm)
    if nearest:
        index = tuple((p + 0.5).floor().long().clamp(0, n - 1) for p, n in zip(places, volume.shape, strict=True))
        return torch.where(inside, volume[index], 0)
    sizes = [size - 1 for size in volume.shape]
    out = volume.new_zeros(displacement.shape[1:])
    at = [place.clamp(0, size) for place, size in zip(places, sizes, strict=True)]
    low = [place.floor().long() for place in at]
    for corner in range(8):
        weight: Tensor | float = 1.0
        index = ()
        for axis in range(3):
            upper = corner >> axis & 1
            fraction = at[axis] - low[axis]
            weight = weight * (fraction if upper else 1 - fraction)
            index = (*index, (low[axis] + upper).clamp_max(sizes[axis]))
        out += volume[index] * weight
    return out * inside


def _places(
    volume: Tensor, displacement: Tensor, matrix: np.ndarray, per_mm: np.ndarray
) -> tuple[list[Tensor], Tensor]:
    """Indices in the source along each axis, three of [X, Y, Z], and whether a place is inside, [X, Y, Z]."""
    device, shape = displacement.device, displacement.shape[1:]
    axes = [torch.arange(size, device=device, dtype=torch.float64) for size in shape]
    i, j, k = axes[0][:, None, None], axes[1][:, None], axes[2]
    places = []
    inside = torch.ones(shape, dtype=torch.bool, device=device)
    for axis, size in enumerate(volume.shape):
        m, n = matrix[axis].tolist(), per_mm[axis].tolist()
        place = m[0] * i + m[1] * j + m[2] * k + m[3]
        place = place + sum(n[c] * displacement[c] for c in range(3))
        inside &= (place >= -0.5) & (place < size - 0.5)
        places.append(place.to(torch.float64 if displacement.dtype == torch.float64 else torch.float32))
    return places, inside
