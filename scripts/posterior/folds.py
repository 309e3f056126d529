"""Folds of a deformation: where the map x + u(x) turns space inside out (decision 20)."""

from __future__ import annotations

import torch
from torch import Tensor


def jacobian_determinant(ddf: Tensor) -> Tensor:
    """Local volume change of the map φ(x) = x + u(x), det(I + ∇u), at every voxel.

    Central differences inside. On the image's border, where a central difference would need a voxel outside, the
    one-sided difference: the map keeps the image's shape (so that it can be saved beside the image and averaged under
    its masks), and a one-sided difference is what a linear interpolation of the field does there.

    Displacements are in voxels of the image's grid, component i along axis i: [B, 3, X, Y, Z] to [B, X, Y, Z]. In mm
    the determinant is the same, because the change of units A (I + ∇u) A⁻¹ leaves it alone.

    Raises:
        ValueError: when the shape is not [B, 3, X, Y, Z] with at least two voxels along each axis, the displacements
            are not floating point, or some are not finite (looked at on the CPU).
    """
    if ddf.ndim != 5 or ddf.shape[1] != 3 or min(ddf.shape[2:]) < 2:
        raise ValueError(
            "expected a displacement field of shape [B, 3, X, Y, Z] with at least 2 voxels along each axis, "
            f"got {tuple(ddf.shape)}"
        )
    if not ddf.is_floating_point():
        raise ValueError(f"expected floating-point displacements, got {ddf.dtype}")
    # The sum is fifteen times cheaper than a test of every value, and not finite if any of them is not. Not on a GPU,
    # which would have to be waited for: there, samples that are not finite show in their log-densities.
    if ddf.device.type == "cpu" and not bool(ddf.sum().isfinite()) and (broken := int((~ddf.isfinite()).sum())):
        # A comparison with NaN is False: without this check a broken field would count as free of folds.
        raise ValueError(f"expected finite displacements, got {broken} values that are not")
    slab = 8 if ddf.device.type == "cpu" else ddf.shape[2]
    return torch.stack([_determinant_by_slabs(field, slab) for field in ddf.as_subclass(Tensor)])


def _determinant_by_slabs(field: Tensor, slab: int) -> Tensor:
    """det(I + ∇u) of one field [3, X, Y, Z] as [X, Y, Z], a few slices at a time.

    The nine derivatives of a slab stay in the processor's cache: three times faster than whole volumes, and the memory
    needed beside the result does not grow with the volume.
    """
    size = field.shape[1]
    parts = []
    for start in range(0, size, slab):
        # A slice more on each side gives the slab's edges their central difference.
        first, stop = max(start - 1, 0), min(start + slab + 1, size)
        parts.append(_determinant(field[:, first:stop])[start - first : start - first + slab])
    return torch.cat(parts)


def _determinant(field: Tensor) -> Tensor:
    """det(I + ∇u) of one field [3, X, Y, Z], expanded along the first row of the 3×3 matrix; shape [X, Y, Z]."""
    # J_ij = δ_ij + ∂u_i / ∂x_j
    (xx, yx, zx), (xy, yy, zy), (xz, yz, zz) = (_derivative(field, axis) for axis in (1, 2, 3))
    for diagonal in (xx, yy, zz):
        diagonal += 1
    return xx * (yy * zz - yz * zy) - xy * (yx * zz - yz * zx) + xz * (yx * zy - yy * zx)


def _derivative(field: Tensor, axis: int) -> Tensor:
    """∂u / ∂x_axis with a step of one voxel: central differences, one-sided at the two ends; same shape."""
    size = field.shape[axis]
    after, before = field.narrow(axis, 1, size - 1), field.narrow(axis, 0, size - 1)
    step = after - before  # u(x + 1) - u(x)
    central = (step.narrow(axis, 1, size - 2) + step.narrow(axis, 0, size - 2)) / 2
    return torch.cat([step.narrow(axis, 0, 1), central, step.narrow(axis, size - 2, 1)], dim=axis)


def fold_percentage(ddf: Tensor) -> Tensor:
    """Percentage of voxels at which the deformation folds, det J ≤ 0 (decision 20), float64, [B].

    Fields and errors are those of :func:`jacobian_determinant`.
    """
    return 100.0 * (jacobian_determinant(ddf) <= 0).double().mean(dim=(1, 2, 3))
