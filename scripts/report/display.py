"""How volumes are shown: always as RAS (left is left, up is up), whatever the orientation of their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import nibabel as nib
import numpy as np
from monai.transforms.utils import generate_spatial_bounding_box
from scipy.ndimage import affine_transform, gaussian_filter

from scripts.core.grid import Grid

Box = tuple[slice, ...]


class Plane(NamedTuple):
    """A kind of slices: its own axis among those of RAS, and what is at the left, right, lower and upper edge."""

    name: str
    axis: int
    edges: str

    @property
    def axes(self) -> list[int]:
        """The axes that run along a slice's columns and rows."""
        return [axis for axis in range(3) if axis != self.axis]

    def cut(self, volume: np.ndarray, index: Sequence[int], box: Box) -> np.ndarray:
        """The slice of an RAS volume [X, Y, Z] through `index`, within a box: [rows, columns], first row on top."""
        where: list[slice | int] = list(box)
        where[self.axis] = index[self.axis]
        return volume[tuple(where)].T[::-1]  # np.take would first copy a volume that is a view


PLANES = (Plane("axial", 2, "LRPA"), Plane("coronal", 1, "LRIS"), Plane("sagittal", 0, "PAIS"))
"""In the order in which they are shown."""


class Frame:
    """The fixed image's grid with its axes flipped and permuted to the nearest RAS directions.

    No voxel is interpolated. An oblique grid stays oblique: its slices are those of the scanner, `tilt` says by how
    much they differ from the world's.
    """

    def __init__(self, grid: Grid) -> None:
        self.orientation = nib.io_orientation(grid.affine)
        affine = grid.affine @ nib.orientations.inv_ornt_aff(self.orientation, grid.shape)
        x, y, z = (grid.shape[axis] for axis in np.argsort(self.orientation[:, 0]))
        self.grid = Grid((x, y, z), affine)

    @property
    def tilt(self) -> float:
        """Largest angle between a shown axis and the RAS direction that it stands for, in degrees."""
        cosines = np.diag(self.grid.affine[:3, :3]) / self.grid.spacing
        return float(np.degrees(np.arccos(np.clip(cosines, -1.0, 1.0))).max())

    def show(self, volume: np.ndarray) -> np.ndarray:
        """An array [X, Y, Z] of the grid, as RAS [X', Y', Z']; a view where possible."""
        shown: np.ndarray = nib.apply_orientation(volume, self.orientation)
        return shown


def crop_box(mask: np.ndarray, spacing: np.ndarray, margin: float = 8.0) -> Box:
    """The box around a mask [X, Y, Z], not empty, with a margin in mm."""
    pad = np.ceil(margin / spacing).astype(int).tolist()
    start, end = generate_spatial_bounding_box(mask[None], margin=pad, allow_smaller=True)
    return tuple(slice(int(first), int(last)) for first, last in zip(start, end, strict=True))


def intensity_window(volume: np.ndarray, brain: np.ndarray) -> tuple[float, float]:
    """Intensities shown as black and white: the brain's darkest 0.5 %, and a tenth more than its brightest 0.5 %."""
    values = volume[brain]
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = (float(value) for value in np.percentile(values, [0.5, 99.5]))
    return (low, high + 0.1 * (high - low)) if high > low else (low, low + 1.0)


def to_unit(volume: np.ndarray, window: tuple[float, float]) -> np.ndarray:
    """Intensities as 0..1 of a window, clipped; what is not finite becomes 0."""
    low, high = window
    return np.nan_to_num(np.clip((volume - low) / (high - low), 0.0, 1.0), nan=0.0).astype(np.float32)


class Coarse(NamedTuple):
    """A coarser grid for volumes that are embedded in the page: about 2 mm are enough to look at and keep it small."""

    grid: Grid  # that of the volumes where it is coarse enough
    factors: np.ndarray  # voxels of the volumes along a voxel of `grid`, (3,)

    @classmethod
    def of(cls, source: Grid, spacing: float = 2.0) -> Coarse:
        """Coarsen the axes whose voxels are clearly smaller than `spacing` mm."""
        factors = np.where(source.spacing < 0.75 * spacing, spacing / source.spacing, 1.0)
        x, y, z = (max(1, int(size)) for size in np.ceil(source.shape / factors - 1e-6))
        # The outer edges of both grids' first voxels coincide: output o lies at (o + 1/2) f - 1/2 of the source.
        to_source = np.diag([*factors, 1.0])
        to_source[:3, 3] = factors / 2 - 0.5
        return cls(Grid((x, y, z), source.affine @ to_source), factors)

    @property
    def changed(self) -> bool:
        """Whether volumes are resampled at all."""
        return bool((self.factors != 1.0).any())

    def mean(self, volume: np.ndarray) -> np.ndarray:
        """An intensity volume [X, Y, Z], smoothed as far as the coarser voxels demand, float32."""
        volume = volume.astype(np.float32, copy=False)
        if not self.changed:
            return volume
        # A box of f voxels has the variance (f² - 1) / 12.
        return self._resample(gaussian_filter(volume, np.sqrt((self.factors**2 - 1) / 12)), order=1)

    def nearest(self, volume: np.ndarray) -> np.ndarray:
        """A label volume [X, Y, Z], without new values."""
        return self._resample(volume, order=0) if self.changed else volume

    def _resample(self, volume: np.ndarray, order: int) -> np.ndarray:
        offset = self.factors / 2 - 0.5
        # For nearest neighbors, stay clear of the ties exactly between two voxels.
        offset = offset - 1e-3 if order == 0 else offset
        resampled: np.ndarray = affine_transform(
            volume, self.factors, offset, output_shape=self.grid.shape, order=order, mode="nearest"
        )
        return resampled
