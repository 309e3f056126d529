"""How the grids of one registration hang together: the files' own, and the one on which the model works.

    fixed file ── same axes, other spacing and extent ── work grid ── half the resolution ── field grid
    moving file ── alignment (an affine) ── fixed file's space

A sampled field is a cubic B-spline with control points on the field grid. The fixed file's axes are parallel to the
work grid's, so the spline is evaluated at the file's own voxels, exactly and an axis at a time. Detail that was found
beyond the model's resolution is a second spline, with control points on the work grid, that every field gets added.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.ndimage import map_coordinates
from torch import Tensor

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.registration.pull import pull
from scripts.registration.spline import evaluate, upsample


@dataclass(frozen=True, eq=False)
class PairSpace:
    """The grids of one registration.

    Attributes:
        work: the grid of the images that the model saw.
        alignment: from fixed RAS mm to moving RAS mm, (4, 4).
        factor: work voxels along the edge of a field voxel.
        detail: control points on the work grid of what is added to every field, in work voxels, [3, X, Y, Z]; None for
            nothing. See :mod:`scripts.inference.detail`.
    """

    fixed: Grid
    moving: Grid
    work: Grid
    alignment: np.ndarray = field(default_factory=lambda: np.eye(4))
    factor: int = 2
    detail: Tensor | None = None

    def check(self) -> None:
        """Fail early for grids that do not fit each other.

        Raises:
            DataError: when the fixed file's axes are not perpendicular.
        """
        self._axes()

    def displacement(self, control_points: Tensor) -> Tensor:
        """Displacements at the fixed file's voxels, RAS mm, detail included, without the alignment.

        Control points of fields in work voxels, [N, 3, x, y, z], to [N, 3, X, Y, Z].
        """
        order, positions = self._axes()
        at = [(where + 0.5) / self.factor - 0.5 for where in positions]
        # First the few control points to mm, then to many voxels.
        values = evaluate(self.to_mm(control_points), at)
        if self._detail_at_fixed is not None:
            values = values + self._detail_at_fixed.to(values)
        return values.permute(0, 1, *(2 + axis for axis in order)).contiguous()

    @functools.cached_property
    def _detail_at_fixed(self) -> Tensor | None:
        """The detail at the fixed file's voxels, its axes in the work grid's order, RAS mm; once for all samples."""
        return None if self.detail is None else evaluate(self.to_mm(self.detail[None]), self._axes()[1])

    def on_work(self, control_points: Tensor) -> Tensor:
        """Displacements on the work grid in work voxels, [N, 3, X, Y, Z], of control points [N, 3, x, y, z]."""
        ddf = upsample(control_points, self.factor, self.work.shape)
        return ddf if self._detail_on_work is None else ddf + self._detail_on_work.to(ddf)

    @functools.cached_property
    def _detail_on_work(self) -> Tensor | None:
        return None if self.detail is None else upsample(self.detail[None], 1, self.work.shape)

    def to_fixed(self, volumes: Tensor) -> Tensor:
        """Bring volumes [N, C, …] on the work grid to the fixed file's [N, C, X, Y, Z], by linear interpolation."""
        order, positions = self._axes()
        return evaluate(volumes, positions, degree=1).permute(0, 1, *(2 + axis for axis in order)).contiguous()

    def to_mm(self, vectors: Tensor) -> Tensor:
        """Vectors [N, 3, …] in work voxels to RAS mm."""
        matrix = _matrix(tuple(self.work.affine[:3, :3].ravel().tolist()), vectors.dtype, vectors.device)
        return torch.einsum("ij,nj...->ni...", matrix, vectors)

    def in_fixed_voxels(self, displacement: Tensor) -> Tensor:
        """Displacements [N, 3, X, Y, Z] in RAS mm to voxels of the fixed file's axes."""
        matrix = torch.from_numpy(np.linalg.inv(self.fixed.affine[:3, :3])).to(displacement)
        return torch.einsum("ij,nj...->ni...", matrix, displacement)

    def displacement_at(self, control_points: np.ndarray, points: np.ndarray) -> np.ndarray:
        """The same of one field, [3, x, y, z], at any places of the fixed space; RAS mm, (P, 3) both."""
        where = (self.work.to_indices(points) + 0.5) / self.factor - 0.5
        return _spline_at(control_points, where) @ self.work.affine[:3, :3].T + self.detail_at(points)

    def detail_at(self, points: np.ndarray) -> np.ndarray:
        """What the detail adds at any places of the fixed space; RAS mm, (P, 3) both."""
        if self.detail is None:
            return np.zeros_like(points, dtype=np.float64)
        return _spline_at(self.detail.cpu().numpy(), self.work.to_indices(points)) @ self.work.affine[:3, :3].T

    def align(self, points: np.ndarray) -> np.ndarray:
        """Points of the fixed space (P, 3), RAS mm, to the moving file's space."""
        return points @ self.alignment[:3, :3].T + self.alignment[:3, 3]

    def warp(self, moving: Tensor, displacement: Tensor, source: Grid | None = None, nearest: bool = False) -> Tensor:
        """Pull a volume of the moving space [X', Y', Z'] to the fixed grid by a displacement [3, X, Y, Z] in mm."""
        to_source = np.linalg.inv((source or self.moving).affine) @ self.alignment
        return pull(moving, displacement, to_source @ self.fixed.affine, to_source[:3, :3], nearest)

    def warp_labels(self, labels: Tensor, displacement: Tensor, source: Grid | None = None) -> Tensor:
        """The same for a label map, by the nearest voxel."""
        return self.warp(labels, displacement, source, nearest=True)

    def _axes(self) -> tuple[list[int], list[Tensor]]:
        """For each axis of the fixed file the work axis along it; for each work axis the fixed voxels' places on it."""
        matrix = np.linalg.inv(self.work.affine) @ self.fixed.affine
        order = [int(np.abs(matrix[:3, axis]).argmax()) for axis in range(3)]
        pattern = np.zeros((3, 3), dtype=bool)
        pattern[order, range(3)] = True
        # A hundredth of a voxel over the longest axis.
        if sorted(order) != [0, 1, 2] or np.abs(matrix[:3, :3][~pattern]).max() * max(self.fixed.shape) > 0.01:
            raise DataError("the fixed image's axes are not perpendicular (a sheared affine); resample it first")
        positions = [torch.empty(0)] * 3
        for axis, work_axis in enumerate(order):
            indices = torch.arange(self.fixed.shape[axis], dtype=torch.float64)
            positions[work_axis] = matrix[work_axis, axis] * indices + matrix[work_axis, 3]
        return order, positions


def _spline_at(control_points: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The spline of control points [3, x, y, z] at places (P, 3) on their grid; (P, 3)."""
    # Without prefilter, SciPy takes the values as control points of the same B-spline.
    vectors = [map_coordinates(part, where.T, order=3, prefilter=False, mode="nearest") for part in control_points]
    return np.stack(vectors, axis=1)


@functools.lru_cache(maxsize=4)
def _matrix(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A 3x3 matrix; kept, because a copy to a GPU for every sample would make it wait."""
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device).reshape(3, 3)
