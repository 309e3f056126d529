"""A grid of voxels in space: shape and affine, in nibabel's convention (RAS, millimeters)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from monai.data import MetaTensor

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""From RAS (nibabel, MONAI) to LPS (ITK, DICOM) and back."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Where the voxels of an image are.

    Attributes:
        shape: voxels along the array's axes (X, Y, Z).
        affine: from array indices to RAS millimeters, (4, 4) float64.
    """

    shape: tuple[int, int, int]
    affine: np.ndarray

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
        corners = np.array(np.meshgrid(*[(0, size - 1) for size in self.shape], indexing="ij")).reshape(3, -1).T
        world = self.to_world(corners)
        return np.stack([world.min(0), world.max(0)])

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


def affine_displacement(grid: Grid, matrix: np.ndarray) -> np.ndarray:
    """How far an affine map (4, 4) of RAS mm moves each voxel's center: [3, X, Y, Z], mm, float32."""
    to_shift = (matrix - np.eye(4)) @ grid.affine
    i, j, k = (np.arange(size, dtype=np.float64) for size in grid.shape)
    out = np.empty((3, *grid.shape), dtype=np.float32)
    for axis in range(3):
        a, b, c, offset = to_shift[axis]
        out[axis] = (a * i + offset)[:, None, None] + (b * j)[:, None] + c * k
    return out
