"""Small pictures of slices, as PNG for the page: gray images, colored overlays, label boundaries."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.image import imsave
from scipy.ndimage import zoom

from scripts.report.colors import Scale
from scripts.report.display import EDGES, PLANES, plane_sizes, plane_slice

PIXELS_PER_MM = 2.0
BAND = np.array([1.0, 0.76, 0.2])  # color of uncertain labels
BAND_OPACITY = 0.45


@dataclass(frozen=True)
class Tile:
    """A picture of one slice.

    Attributes:
        source: `data:` address of the PNG.
        width: in pixels.
        height: in pixels.
        edges: letters at its left, right, lower and upper edge.
        text: what it shows, for those who cannot see it.
        mark: where the crosshair is, in percent from the left and from the top, or None.
    """

    source: str
    width: int
    height: int
    edges: str
    text: str
    mark: tuple[float, float] | None


class Painter:
    """Draws slices of RAS volumes of one grid, all cropped to the same box.

    Args:
        spacing: of the voxels in mm, (3,).
        box: the part that is shown.
    """

    def __init__(self, spacing: np.ndarray, box: tuple[slice, slice, slice]) -> None:
        self.spacing, self.box = spacing, box

    def row(
        self,
        gray: np.ndarray,
        index: Sequence[int],
        text: str,
        *,
        overlay: np.ndarray | None = None,
        scale: Scale | None = None,
        mask: np.ndarray | None = None,
        mark: bool = False,
    ) -> list[Tile]:
        """Three planes through a voxel.

        Args:
            gray: image in 0..1, [X, Y, Z].
            index: of the voxel in the whole volume.
            text: what is shown.
            overlay: values to color, [X, Y, Z].
            scale: of the overlay.
            mask: where the overlay is shown, bool [X, Y, Z]; everywhere if None.
            mark: whether to mark the voxel.
        """
        tiles = []
        for plane in PLANES:
            colors = self._gray(gray, plane, index)
            if overlay is not None and scale is not None:
                paint = scale.paint(self._enlarge(overlay, plane, index, order=1))
                if mask is not None:
                    paint[..., 3] *= self._enlarge(mask.astype(np.float32), plane, index, order=0)
                colors = colors * (1 - paint[..., 3:]) + paint[..., :3] * paint[..., 3:]
            tiles.append(self._tile(colors, plane, index, text, mark))
        return tiles

    def labels(
        self,
        gray: np.ndarray,
        index: Sequence[int],
        text: str,
        *,
        label: np.ndarray,
        probability: np.ndarray,
        certain: float,
        colors: Mapping[int, tuple[int, int, int]],
        mark: bool = False,
    ) -> list[Tile]:
        """Three planes with the boundaries of labels, and a band where the label is uncertain.

        Args:
            gray: image in 0..1, [X, Y, Z].
            index: of the voxel in the whole volume.
            text: what is shown.
            label: integers [X, Y, Z], 0 is nothing.
            probability: of the label, [X, Y, Z].
            certain: the probability from which a label counts as certain.
            colors: of the labels, in 0..255.
            mark: whether to mark the voxel.
        """
        tiles = []
        for plane in PLANES:
            # A little darker, so that the colors stand out.
            picture = 0.8 * self._gray(gray, plane, index)
            band = (self._enlarge(probability, plane, index, order=1) < certain)[..., None] * BAND_OPACITY
            picture = picture * (1 - band) + BAND * band
            values = self._enlarge_labels(label, plane, index)
            edge = boundary(values)
            numbers, codes = np.unique(values[edge], return_inverse=True)
            palette = np.array([colors.get(int(number), (255, 255, 255)) for number in numbers]).reshape(-1, 3) / 255
            picture[edge] = palette[codes]
            tiles.append(self._tile(picture, plane, index, text, mark))
        return tiles

    def _gray(self, volume: np.ndarray, plane: str, index: Sequence[int]) -> np.ndarray:
        """[H, W, 3] in 0..1."""
        return np.repeat(self._enlarge(volume, plane, index, order=3).clip(0, 1)[..., None], 3, axis=2)

    def _enlarge(self, volume: np.ndarray, plane: str, index: Sequence[int], order: int) -> np.ndarray:
        """A cropped slice with square pixels, [H, W]."""
        return self._zoom(self._cut(volume, plane, index), plane, order)

    def _enlarge_labels(self, volume: np.ndarray, plane: str, index: Sequence[int]) -> np.ndarray:
        """A cropped slice of labels, [H, W]: between voxels the label with the largest share, for smooth edges."""
        label = self._cut(volume, plane, index)
        best = self._zoom(label, plane, order=0)
        share = np.zeros(best.shape, dtype=np.float32)
        for value in np.unique(label):
            inside = self._zoom(label == value, plane, order=1)
            better = inside > share
            best[better], share[better] = value, inside[better]
        return best

    def _cut(self, volume: np.ndarray, plane: str, index: Sequence[int]) -> np.ndarray:
        local = [i - part.start for i, part in zip(index, self.box, strict=True)]
        return plane_slice(volume[self.box], plane, local)

    def _zoom(self, picture: np.ndarray, plane: str, order: int) -> np.ndarray:
        factors = [size * PIXELS_PER_MM for size in plane_sizes(self.spacing, plane)]
        picture = picture.astype(np.float32) if order else picture
        enlarged: np.ndarray = zoom(picture, factors, order=order, mode="nearest", grid_mode=True)
        return enlarged

    def _tile(self, colors: np.ndarray, plane: str, index: Sequence[int], text: str, mark: bool) -> Tile:
        place = None
        if mark:
            column, row = ((0, 1), (0, 2), (1, 2))[PLANES.index(plane)]
            share = [
                (index[axis] - self.box[axis].start + 0.5) / (self.box[axis].stop - self.box[axis].start)
                for axis in (column, row)
            ]
            place = (100 * share[0], 100 * (1 - share[1]))
        height, width = colors.shape[:2]
        return Tile(png_source(colors), width, height, EDGES[plane], f"{text}, {plane}", place)


def boundary(label: np.ndarray) -> np.ndarray:
    """The pixels of a label picture [H, W] that touch another label on their right or below, without the background's.

    Each boundary is drawn once, inside of a labeled structure.
    """
    edge = np.zeros(label.shape, dtype=bool)
    for axis in (0, 1):
        first = [slice(None), slice(None)]
        second = [slice(None), slice(None)]
        first[axis], second[axis] = slice(None, -1), slice(1, None)
        a, b = tuple(first), tuple(second)
        differs = label[a] != label[b]
        edge[a] |= differs & (label[a] != 0)
        edge[b] |= differs & (label[a] == 0)
    return edge


def png_source(colors: np.ndarray) -> str:
    """A picture [H, W, 3] in 0..1 as `data:` address of a PNG."""
    buffer = io.BytesIO()
    imsave(buffer, np.round(255 * colors.clip(0, 1)).astype(np.uint8), format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
