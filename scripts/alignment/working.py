"""Images as the alignment sees them: smoothed, on coarse isotropic grids along the world's axes, in [0, 1].

Such a grid depends on where the brain is in space, but not on how the voxels are stored, so neither does the alignment.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import SimpleITK as sitk  # noqa: N813
import torch
from monai.data import MetaTensor
from scipy import ndimage

from scripts.alignment.foreground import background_level, foreground
from scripts.core.grid import Grid

_MARGIN = 20.0
"""Background kept around the foreground in mm: without any, a brain could grow over the edge without being noticed."""

_CUT_SHARE = 0.05
"""A face of the volume cuts the foreground if this part of its largest cross-section lies in the face."""

_MOST_VOXELS = 160
"""Along an axis; an image of a larger extent (neck, shoulders) gets larger voxels."""


@dataclass(frozen=True, eq=False)
class WorkingImage:
    """An image on an isotropic grid whose axes are the world's (RAS)."""

    values: np.ndarray  # float32 [X, Y, Z] in [0, 1]; the background is 0
    brain: np.ndarray  # bool [X, Y, Z], where the image has foreground
    origin: np.ndarray  # RAS mm of the first voxel's center, (3,)
    spacing: float  # edge of a voxel in mm
    # bool [X, Y, Z], False beyond a face of the original volume that cuts the brain: nobody knows what is there, while
    # beyond other faces there is background.
    known: np.ndarray
    center: np.ndarray  # RAS mm of the middle of the original volume, (3,)

    @property
    def brain_points(self) -> np.ndarray:
        """RAS mm of the foreground's voxels, (N, 3)."""
        return np.argwhere(self.brain) * self.spacing + self.origin

    def sample(self, points: np.ndarray) -> np.ndarray:
        """Values at RAS points (N, 3), linearly interpolated; 0 outside of the grid. Returns (N,)."""
        indices = (points - self.origin) / self.spacing
        return ndimage.map_coordinates(self.values, indices.T, order=1, mode="grid-constant")

    def sample_known(self, points: np.ndarray) -> np.ndarray:
        """Whether anything is known at RAS points (N, 3). Returns bool (N,)."""
        if self.known.all():
            return np.ones(len(points), dtype=bool)
        indices = (points - self.origin) / self.spacing
        return ndimage.map_coordinates(self.known, indices.T, order=0, mode="nearest")

    def coarser(self, factor: int) -> WorkingImage:
        """The same image with voxels `factor` times as large."""
        if factor == 1:
            return self
        every = (slice(factor // 2, None, factor),) * 3
        values, brain = (
            ndimage.gaussian_filter(volume.astype(np.float32), 0.5 * factor, mode="constant")[every]
            for volume in (self.values, self.brain)
        )
        origin = self.origin + (factor // 2) * self.spacing
        return WorkingImage(values, _inside(brain), origin, self.spacing * factor, self.known[every], self.center)

    def to_itk(self, center: np.ndarray, unit: float, padding: float = 0.0) -> tuple[sitk.Image, sitk.Image | None]:
        """As ITK images, in lengths of `unit` mm about `center` (RAS mm), with `padding` mm of background around them.

        ITK takes its axes for L, P, S, but nothing in a registration depends on their names.

        Returns:
            The image, and a mask of what is known, or None if all is.
        """
        width = int(np.ceil(padding / self.spacing))
        volumes = [np.pad(self.values, width)]
        if not self.known.all():
            volumes.append(np.pad(self.known, width, mode="edge").astype(np.uint8))
        images = [sitk.GetImageFromArray(np.ascontiguousarray(volume.T)) for volume in volumes]
        for image in images:
            image.SetSpacing([self.spacing / unit] * 3)
            image.SetOrigin(((self.origin - width * self.spacing - center) / unit).tolist())
        return images[0], images[1] if len(images) > 1 else None


def working_image(image: MetaTensor, spacing: float, mask: MetaTensor | None = None) -> WorkingImage:
    """Prepare an image for the alignment.

    Args:
        image: [1, X, Y, Z], finite, not constant.
        spacing: edge of a voxel in mm; larger for an image of a very large extent.
        mask: [1, X, Y, Z] on the same grid; what is outside of it (values up to 0.5) becomes background.

    Returns:
        The image around its foreground, scaled so that the 99.5th percentile inside is 1.
    """
    grid = Grid.of(image)
    values = image.as_subclass(torch.Tensor)[0].numpy().astype(np.float32)
    inside = foreground(values) if mask is None else mask.as_subclass(torch.Tensor)[0].numpy() > 0.5
    top = float(np.percentile(values[inside], 99.5))
    # A z-score of the brain's voxels leaves the background in the middle of their range.
    bottom = min(background_level(values)[0], float(np.percentile(values[inside], 0.5)))
    scaled = np.where(inside, np.clip((values - bottom) / max(top - bottom, 1e-12), 0.0, 1.0), 0.0).astype(np.float32)
    box = ndimage.find_objects(inside.astype(np.uint8))[0]
    world = grid.to_world(np.array(list(itertools.product(*[(side.start, side.stop - 1) for side in box]))))
    # Rounded, because storage in another orientation changes the last digits and must not change the grid.
    start, end = np.round(world.min(0), 3) - _MARGIN, np.round(world.max(0), 3) + _MARGIN
    spacing = max(spacing, float((end - start).max()) / _MOST_VOXELS)
    shape = np.ceil(np.round((end - start) / spacing, 3)).astype(int) + 1

    # Widths add in squares: a voxel of the image plus the filter make a voxel of the working grid.
    sigma = 0.5 * np.sqrt(np.maximum((spacing / grid.spacing) ** 2 - 1.0, 0.0))
    reach = np.ceil(3 * sigma).astype(int) + 1
    place = np.eye(4)
    place[:3, :3] *= spacing
    place[:3, 3] = start
    to_voxels = np.linalg.inv(grid.affine) @ place
    offset = to_voxels[:3, 3] - [side.start for side in box] + reach

    def resample(volume: np.ndarray) -> np.ndarray:
        # Only the foreground's box, with as much background around it as the filter needs.
        smooth = ndimage.gaussian_filter(np.pad(volume[box], reach[:, None]), sigma, mode="constant", truncate=3.0)
        return ndimage.affine_transform(smooth, to_voxels[:3, :3], offset, tuple(shape), order=1, mode="grid-constant")

    middle = grid.to_world((np.array(grid.shape)[None] - 1) / 2)[0]
    known = _known(_cut_faces(inside), grid.shape, to_voxels, shape)
    brain = _inside(resample(inside.astype(np.float32)))
    return WorkingImage(resample(scaled), brain, start, spacing, known, middle)


def _inside(share: np.ndarray) -> np.ndarray:
    """Voxels of which at least half lies inside; the best ones if something is so small that there are none."""
    return share > min(0.5, 0.5 * float(share.max()))


def _cut_faces(inside: np.ndarray) -> np.ndarray:
    """Which of the volume's faces cut the foreground, bool (3, 2): by axis, at its start and its end."""
    cut = np.zeros((3, 2), dtype=bool)
    for axis in range(3):
        areas = inside.sum(tuple({0, 1, 2} - {axis}))
        cut[axis] = areas[[0, -1]] > _CUT_SHARE * areas.max()
    return cut


def _known(cut: np.ndarray, size: tuple[int, ...], to_voxels: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Which voxels of a working grid of this shape are not beyond a face that cuts the foreground, bool [X, Y, Z]."""
    known = np.ones(tuple(shape), dtype=bool)
    along = np.ogrid[tuple(slice(0, count) for count in shape)]
    for axis, end in np.argwhere(cut):
        row = to_voxels[axis]
        index = row[0] * along[0] + row[1] * along[1] + row[2] * along[2] + row[3]
        known &= index <= size[axis] - 1 if end else index >= 0
    return known
