"""Grids of all kinds, smooth fields on them, and what a transform gives by direct evaluation."""

import itertools

import numpy as np
import SimpleITK as sitk  # noqa: N813
from scipy.ndimage import gaussian_filter, map_coordinates
from scipy.spatial.transform import Rotation

from scripts.core.grid import LPS, Grid


def rotation(*degrees: float) -> np.ndarray:
    return Rotation.from_euler("xyz", degrees, degrees=True).as_matrix()


def affine(linear: np.ndarray, origin=(0.0, 0.0, 0.0)) -> np.ndarray:
    out = np.eye(4)
    out[:3, :3], out[:3, 3] = linear, origin
    return out


def centered(shape: tuple[int, int, int], linear: np.ndarray, center=(0.0, 0.0, 0.0)) -> Grid:
    """A grid whose middle is at `center` in RAS mm."""
    return Grid(shape, affine(linear, np.asarray(center) - linear @ ((np.array(shape) - 1) / 2)))


def orientations() -> list[np.ndarray]:
    """The 48 signed permutations, half of them left-handed."""
    return [
        np.diag(signs) @ np.eye(3)[list(order)]
        for order in itertools.permutations(range(3))
        for signs in itertools.product((1.0, -1.0), repeat=3)
    ]


OBLIQUE = rotation(20, -13, 8)
FLIP = np.diag([-1.0, 1.0, 1.0])
SHEAR = np.array([[1.0, 0.2, 0.0], [0.0, 1.0, -0.1], [0.0, 0.0, 1.0]])
FIXED = {
    "RAS": centered((14, 16, 12), np.eye(3)),
    "LIA": centered((14, 12, 16), np.array([[-1.0, 0, 0], [0, 0, 1], [0, -1, 0]])),
    "anisotropic": centered((17, 11, 7), np.diag([0.8, 1.3, 2.1]), center=(3, -40, 25)),
    "oblique": centered((13, 12, 11), OBLIQUE * [1.0, 1.2, 1.4]),
    "left-handed": centered((12, 13, 11), OBLIQUE @ FLIP * [1.1, 0.9, 1.3]),
    "near 180°": centered((12, 13, 11), rotation(0.5, 0.2, 179.9)),
}
SHEARED = centered((12, 13, 11), OBLIQUE @ SHEAR)
ALIGNMENT = affine(rotation(6, -4, 9) * 1.04, (1.5, -2.0, 1.0))


def moving_grid(fixed: Grid) -> Grid:
    """Another orientation, spacing and size around the same place, so that interpolation is needed everywhere."""
    center = fixed.to_world((np.array([fixed.shape]) - 1) / 2) @ ALIGNMENT[:3, :3].T + ALIGNMENT[:3, 3]
    return centered((36, 34, 40), np.array([[0, 0, -1.1], [-0.9, 0, 0], [0, 1.2, 0]]), center[0])


def smooth(shape: tuple[int, ...], largest: float = 1.0, sigma: float = 2.0, seed: int = 0) -> np.ndarray:
    """Smooth noise over the last three axes, float32, no value larger than `largest`."""
    noise = np.random.default_rng(seed).normal(size=shape)
    out = gaussian_filter(noise, [0] * (len(shape) - 3) + [sigma] * 3)
    return (largest * out / np.abs(out).max()).astype(np.float32)


def points_of(grid: Grid) -> np.ndarray:
    """Voxel centers in RAS mm, (N, 3)."""
    return grid.to_world(np.indices(grid.shape).reshape(3, -1).T)


def apply(matrix: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ matrix[:3, :3].T + matrix[:3, 3]


def mapped(field: np.ndarray, grid: Grid, alignment: np.ndarray) -> np.ndarray:
    """A (x + d(x)) of the grid's voxels, (N, 3)."""
    return apply(alignment, points_of(grid) + field.reshape(3, -1).T)


def sampled(image: np.ndarray, grid: Grid, points: np.ndarray) -> np.ndarray:
    """Linear interpolation at RAS points; NaN outside."""
    return map_coordinates(image.astype(np.float64), grid.to_indices(points).T, order=1, cval=np.nan)


def at_points(field: np.ndarray, grid: Grid, points: np.ndarray) -> np.ndarray:
    """A field at RAS points, linear, continued by its border values; (N, 3)."""
    places = grid.to_indices(points).T
    return np.stack([map_coordinates(part.astype(np.float64), places, order=1, mode="nearest") for part in field], 1)


def to_sitk(array: np.ndarray, grid: Grid) -> sitk.Image:
    """An array [X, Y, Z], or [X, Y, Z, C] with the components of vectors, as a SimpleITK image."""
    image = sitk.GetImageFromArray(np.ascontiguousarray(np.swapaxes(array, 0, 2)), isVector=array.ndim == 4)
    affine = LPS @ grid.affine
    image.SetOrigin(affine[:3, 3].tolist())
    image.SetSpacing(grid.spacing.tolist())
    image.SetDirection((affine[:3, :3] / grid.spacing).ravel().tolist())
    return image


def from_sitk(image: sitk.Image) -> np.ndarray:
    """The array [X, Y, Z], or [X, Y, Z, C], of a SimpleITK image."""
    return np.ascontiguousarray(np.swapaxes(sitk.GetArrayViewFromImage(image), 0, 2))
