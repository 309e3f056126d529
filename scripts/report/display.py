"""How volumes are shown: always as RAS (left is left, up is up), whatever the orientation of their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import nibabel as nib
import numpy as np
from scipy.ndimage import affine_transform, gaussian_filter

from scripts.core.grid import Grid

PLANES = ("axial", "coronal", "sagittal")
"""In the order in which they are shown; the plane's own axis is 2, 1, 0 of RAS."""

_AXIS = {"axial": 2, "coronal": 1, "sagittal": 0}
EDGES = {"axial": "LRPA", "coronal": "LRIS", "sagittal": "PAIS"}
"""What is at the left, right, lower and upper edge of a slice."""


class Frame:
    """The fixed image's grid with its axes flipped and permuted to the nearest RAS directions.

    No voxel is interpolated. An oblique grid stays oblique: its slices are those of the scanner, `tilt` says by how
    much they differ from the world's.

    Args:
        grid: of the arrays to be shown.
    """

    def __init__(self, grid: Grid) -> None:
        self.orientation = nib.io_orientation(grid.affine)
        affine = grid.affine @ nib.orientations.inv_ornt_aff(self.orientation, grid.shape)
        order = np.argsort(self.orientation[:, 0])
        x, y, z = (int(grid.shape[axis]) for axis in order)
        self.grid = Grid((x, y, z), affine)

    @property
    def tilt(self) -> float:
        """Largest angle between a shown axis and the RAS direction that it stands for, in degrees."""
        cosines = np.diag(self.grid.affine[:3, :3]) / self.grid.spacing
        return float(np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0))).max())

    def show(self, volume: np.ndarray) -> np.ndarray:
        """An array [..., X, Y, Z] of the grid, as RAS [..., X', Y', Z']; a view where possible."""
        volume = np.asarray(volume)
        lead = volume.ndim - 3
        identity = [[axis, 1] for axis in range(lead)]
        moved = [[axis + lead, flip] for axis, flip in self.orientation]
        shown: np.ndarray = nib.apply_orientation(volume, np.array(identity + moved))
        return shown


def plane_slice(volume: np.ndarray, plane: str, index: Sequence[int]) -> np.ndarray:
    """The slice of an RAS volume [X, Y, Z] through `index`, as a picture [rows, columns] with its first row on top."""
    where: list[slice | int] = [slice(None)] * 3
    where[_AXIS[plane]] = int(index[_AXIS[plane]])
    return volume[tuple(where)].T[::-1]  # np.take would first copy a volume that is a view


def plane_sizes(spacing: np.ndarray, plane: str) -> tuple[float, float]:
    """Height and width in mm of a pixel of `plane_slice`."""
    width, height = (float(spacing[axis]) for axis in range(3) if axis != _AXIS[plane])
    return height, width


def crop_box(mask: np.ndarray, spacing: np.ndarray, margin: float = 8.0) -> tuple[slice, slice, slice]:
    """The box around a mask [X, Y, Z] with a margin in mm; everything where the mask is empty."""
    box = []
    for axis in range(3):
        inside = np.flatnonzero(mask.any(axis=tuple(other for other in range(3) if other != axis)))
        if not len(inside):
            return (slice(0, mask.shape[0]), slice(0, mask.shape[1]), slice(0, mask.shape[2]))
        pad = int(np.ceil(margin / spacing[axis]))
        box.append(slice(max(0, int(inside[0]) - pad), min(mask.shape[axis], int(inside[-1]) + 1 + pad)))
    return box[0], box[1], box[2]


def intensity_window(volume: np.ndarray, brain: np.ndarray) -> tuple[float, float]:
    """Intensities shown as black and white: the brain's darkest 0.5 %, and a tenth more than its brightest 0.5 %."""
    values = volume[brain] if brain.any() else volume.ravel()
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(values, [0.5, 99.5]))
    return (low, high + 0.1 * (high - low)) if high > low else (low, low + 1.0)


def to_unit(volume: np.ndarray, window: tuple[float, float]) -> np.ndarray:
    """Intensities as 0..1 of a window, clipped; what is not finite becomes 0."""
    low, high = window
    return np.nan_to_num(np.clip((volume - low) / (high - low), 0.0, 1.0), nan=0.0).astype(np.float32)


@dataclass(frozen=True)
class Coarse:
    """A coarser grid for volumes that are embedded in the page: about 2 mm are enough to look at and keep it small.

    Attributes:
        source: the grid of the volumes.
        grid: the coarser one, equal to `source` where that is coarse enough.
        factors: voxels of `source` along a voxel of `grid`, (3,).
    """

    source: Grid
    grid: Grid
    factors: np.ndarray

    @classmethod
    def of(cls, source: Grid, spacing: float = 2.0) -> Coarse:
        """Coarsen the axes whose voxels are clearly smaller than `spacing` mm."""
        factors = np.where(source.spacing < 0.75 * spacing, spacing / source.spacing, 1.0)
        x, y, z = (
            max(1, int(np.ceil(size / factor - 1e-6))) for size, factor in zip(source.shape, factors, strict=True)
        )
        # The outer edges of both grids' first voxels coincide: output o lies at (o + 1/2) f - 1/2 of the source.
        to_source = np.diag([*factors, 1.0])
        to_source[:3, 3] = factors / 2 - 0.5
        return cls(source, Grid((x, y, z), source.affine @ to_source), factors)

    @property
    def changed(self) -> bool:
        """Whether volumes are resampled at all."""
        return bool((self.factors != 1.0).any())

    def mean(self, volume: np.ndarray) -> np.ndarray:
        """An intensity volume [X, Y, Z], smoothed as far as the coarser voxels demand, float32."""
        volume = np.asarray(volume, dtype=np.float32)
        if not self.changed:
            return volume
        # A box of f voxels has the variance (f² - 1) / 12.
        return self._resample(gaussian_filter(volume, np.sqrt((self.factors**2 - 1) / 12)), order=1)

    def nearest(self, volume: np.ndarray) -> np.ndarray:
        """A label volume [X, Y, Z], without new values."""
        return self._resample(np.asarray(volume), order=0) if self.changed else np.asarray(volume)

    def _resample(self, volume: np.ndarray, order: int) -> np.ndarray:
        offset = self.factors / 2 - 0.5
        # For nearest neighbors, stay clear of the ties exactly between two voxels.
        offset = offset - 1e-3 if order == 0 else offset
        resampled: np.ndarray = affine_transform(
            volume, self.factors, offset, output_shape=self.grid.shape, order=order, mode="nearest"
        )
        return resampled
