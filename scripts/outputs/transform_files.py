"""The mean field and its inverse as transforms that other tools read."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import affine_transform

from scripts.core.grid import Grid, affine_displacement
from scripts.files.inverse import invert
from scripts.files.itk import write_displacement, write_inverse_transform, write_transform
from scripts.outputs.filing import Filing, ResultHandler


class Transforms(ResultHandler):
    """`transform.h5` and `displacement.nii.gz`, and the same of the inverse map."""

    def __call__(self, filing: Filing) -> None:
        """Write; the inverse's errors go to the diagnostics."""
        result, write, folder = filing.result, filing.write, filing.folder
        grid, alignment, moving = result.grid, result.alignment, filing.posterior.space.moving
        write(write_displacement, folder / "displacement.nii.gz", result.displacement, grid, alignment)
        write(write_transform, folder / "transform.h5", result.displacement, grid, alignment)
        inverse = invert(result.displacement, grid)
        result.diagnostics["inverse_error_mm"] = inverse.mean_error_mm
        result.diagnostics["inverse_largest_error_mm"] = inverse.max_error_mm
        total = total_inverse(inverse.field, grid, alignment, moving)
        write(write_displacement, folder / "inverse_displacement.nii.gz", total, moving)
        write(write_inverse_transform, folder / "inverse_transform.h5", inverse.field, grid, alignment)


def total_inverse(field: np.ndarray, grid: Grid, alignment: np.ndarray, moving: Grid) -> np.ndarray:
    """φ⁻¹(y) − y at the moving grid's voxels y: the inverse alignment first, then the inverse field there.

    On the moving grid, because φ⁻¹ takes points of the moving image: where the two files lie far from each other, the
    fixed grid has none of them, and outside of a field others take it for zero.

    Args:
        field: inverse of the displacement without the alignment, [3, X, Y, Z], RAS mm.
        grid: of the fixed image.
        alignment: from fixed to moving RAS mm, (4, 4).
        moving: grid of the moving image, (X', Y', Z').

    Returns:
        shape [3, X', Y', Z'], RAS mm.
    """
    if np.array_equal(alignment, np.eye(4)) and moving.same_as(grid, 0.0):
        return field
    back = np.linalg.inv(alignment)
    between = np.linalg.inv(grid.affine) @ back @ moving.affine
    moved = [
        affine_transform(part, between[:3, :3], between[:3, 3], moving.shape, order=1, mode="nearest") for part in field
    ]
    return np.stack(moved).astype(np.float32) + affine_displacement(moving, back)
