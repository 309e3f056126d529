"""A grid of voxels in space: shape and affine, in nibabel's convention (RAS, millimeters)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from monai.data import MetaTensor

from scripts.core.errors import DataError

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""From RAS (nibabel, MONAI) to LPS (ITK, DICOM) and back."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the voxels of an image are."""

    shape: tuple[int, int, int]  # voxels along the array's axes (X, Y, Z)
    affine: np.ndarray  # from array indices to RAS millimeters, (4, 4) float64

    @classmethod
    def of(cls, volume: MetaTensor) -> Grid:
        """The grid of a volume [1, X, Y, Z]."""
        x, y, z = (int(size) for size in volume.shape[1:])
        return cls((x, y, z), np.asarray(volume.affine, dtype=np.float64))

    @property
    def spacing(self) -> np.ndarray:
        """Edges of a voxel in mm, (3,)."""
        return np.linalg.norm(self.affine[:3, :3], axis=0)

    @property
    def voxel_volume(self) -> float:
        """Volume of a voxel in mm³."""
        return float(abs(np.linalg.det(self.affine[:3, :3])))

    @property
    def bounds(self) -> np.ndarray:
        """Smallest and largest RAS coordinates of the voxels' centers in mm, (2, 3)."""
        corners = self.corners()
        return np.stack([corners.min(0), corners.max(0)])

    def corners(self, margin: float = 0.0) -> np.ndarray:
        """Corners of the box around the voxels' centers and `margin` voxels more, in RAS mm, (8, 3)."""
        ends = [(-margin, size - 1 + margin) for size in self.shape]
        return self.to_world(np.array(list(itertools.product(*ends))))

    def to_world(self, indices: np.ndarray) -> np.ndarray:
        """Array indices (N, 3) to RAS mm (N, 3)."""
        return np.asarray(indices) @ self.affine[:3, :3].T + self.affine[:3, 3]

    def to_indices(self, points: np.ndarray) -> np.ndarray:
        """RAS mm (N, 3) to array indices (N, 3), as floats."""
        inverse = np.linalg.inv(self.affine)
        return np.asarray(points) @ inverse[:3, :3].T + inverse[:3, 3]

    def same_as(self, other: Grid, tolerance: float = 1e-3) -> bool:
        """Whether both have the same voxels, to a part of a millimeter."""
        return self.shape == other.shape and float(np.abs(self.affine - other.affine).max()) < tolerance


def check_grid(what: str, found: Grid, expected: Grid, owner: str, advice: str = "") -> None:
    """Refuse a volume that does not lie on its owner's grid, to a hundredth of a voxel, by a DataError."""
    if not found.same_as(expected, 0.01 * float(expected.spacing.min())):
        shapes = f"(shape {found.shape}) is not that of {owner} (shape {expected.shape})"
        raise DataError(f"{what}: its grid {shapes}{advice}")


def affine_displacement(grid: Grid, matrix: np.ndarray) -> np.ndarray:
    """How far an affine map (4, 4) of RAS mm moves each voxel's center: [3, X, Y, Z], mm, float32."""
    to_shift = (matrix - np.eye(4)) @ grid.affine
    i, j, k = (np.arange(size, dtype=np.float64) for size in grid.shape)
    out = np.empty((3, *grid.shape), dtype=np.float32)
    for axis in range(3):
        a, b, c, offset = to_shift[axis]
        out[axis] = (a * i + offset)[:, None, None] + (b * j)[:, None] + c * k
    return out


def are_apart(one: Grid, other: Grid) -> bool:
    """Whether two volumes have no point of space in common.

    They are compared as they lie, also when oblique: two convex bodies are apart exactly if they are along one of the
    normals of their faces or one of the cross products of their edges.
    """
    edges = [grid.affine[:3, :3].T for grid in (one, other)]  # rows, each (3, 3)
    normals = [np.linalg.inv(rows).T for rows in edges]
    crossed = [np.cross(a, b) for a, b in itertools.product(*edges)]
    corners = [grid.corners(margin=0.5) for grid in (one, other)]  # at the outer edges of the voxels
    for axis in (*normals[0], *normals[1], *crossed):
        first, second = (points @ axis for points in corners)
        if first.max() < second.min() or second.max() < first.min():
            return True
    return False


def bounds_text(grid: Grid) -> str:
    """The box around a volume's voxels in words."""
    low, high = grid.bounds
    return ", ".join(f"{name} {a:.0f}..{b:.0f}" for name, a, b in zip("RAS", low, high, strict=True)) + " mm"
