"""Small pictures of slices, as PNG for the page: gray images, colored overlays, label boundaries."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.image import imsave
from scipy.ndimage import zoom

from scripts.report.colors import Scale
from scripts.report.display import PLANES, Box, Plane
from scripts.report.findings import CERTAIN

PIXELS_PER_MM = 2.0
BAND = np.array([1.0, 0.76, 0.2])  # color of uncertain labels
BAND_OPACITY = 0.45


class Tile(NamedTuple):
    """A picture of one slice."""

    source: str  # `data:` address of the PNG
    width: int  # in pixels
    height: int
    edges: str  # letters at its left, right, lower and upper edge
    text: str  # what it shows, for those who cannot see it
    mark: tuple[float, float] | None  # where the crosshair is, in percent from the left and from the top


class Painter:
    """Draws the three slices through a voxel, of RAS volumes [X, Y, Z] of one grid, all cropped to the same box.

    In its methods, `text` says what is shown, and `gray` is an image in 0..1.

    Args:
        spacing: of the voxels in mm, (3,).
        box: the part that is shown.
        index: of the voxel in the whole volume.
    """

    def __init__(self, spacing: np.ndarray, box: Box, index: Sequence[int], mark: bool) -> None:
        self.spacing, self.box, self.index, self.mark = spacing, box, index, mark

    def image(
        self,
        text: str,
        gray: np.ndarray,
        overlay: np.ndarray | None = None,
        scale: Scale | None = None,
        mask: np.ndarray | None = None,
    ) -> list[Tile]:
        """A gray image, and over it the values of an overlay in the colors of its scale, where a mask (bool) is set."""
        tiles = []
        for plane in PLANES:
            colors = self._gray(gray, plane)
            if overlay is not None and scale is not None:
                paint = scale.paint(self._enlarge(overlay, plane, order=1))
                if mask is not None:
                    paint[..., 3] *= self._enlarge(mask, plane, order=0)
                colors = colors * (1 - paint[..., 3:]) + paint[..., :3] * paint[..., 3:]
            tiles.append(self._tile(colors, plane, text))
        return tiles

    def labels(
        self,
        text: str,
        gray: np.ndarray,
        label: np.ndarray,
        probability: np.ndarray,
        colors: Mapping[int, tuple[int, ...]],
    ) -> list[Tile]:
        """A gray image, the boundaries of labels (integers, 0 is nothing), and a band where the label is uncertain."""
        tiles = []
        for plane in PLANES:
            # A little darker, so that the colors stand out.
            picture = 0.8 * self._gray(gray, plane)
            band = (self._enlarge(probability, plane, order=1) < CERTAIN)[..., None] * BAND_OPACITY
            picture = picture * (1 - band) + BAND * band
            values = self._enlarge_labels(label, plane)
            edge = boundary(values)
            numbers, codes = np.unique(values[edge], return_inverse=True)
            palette = np.array([colors.get(int(number), (255, 255, 255)) for number in numbers]).reshape(-1, 3) / 255
            picture[edge] = palette[codes]
            tiles.append(self._tile(picture, plane, text))
        return tiles

    def _gray(self, volume: np.ndarray, plane: Plane) -> np.ndarray:
        """[H, W, 3] in 0..1."""
        return np.repeat(self._enlarge(volume, plane, order=3).clip(0, 1)[..., None], 3, axis=2)

    def _enlarge(self, volume: np.ndarray, plane: Plane, order: int) -> np.ndarray:
        """A cropped slice with square pixels, [H, W]."""
        return self._zoom(plane.cut(volume, self.index, self.box), plane, order)

    def _enlarge_labels(self, volume: np.ndarray, plane: Plane) -> np.ndarray:
        """A cropped slice of labels, [H, W]: between voxels the label with the largest share, for smooth edges."""
        label = plane.cut(volume, self.index, self.box)
        best = self._zoom(label, plane, order=0)
        share = np.zeros(best.shape, dtype=np.float32)
        for value in np.unique(label):
            inside = self._zoom(label == value, plane, order=1)
            better = inside > share
            best[better], share[better] = value, inside[better]
        return best

    def _zoom(self, picture: np.ndarray, plane: Plane, order: int) -> np.ndarray:
        column, row = plane.axes
        factors = (self.spacing[row] * PIXELS_PER_MM, self.spacing[column] * PIXELS_PER_MM)
        picture = picture.astype(np.float32) if order else picture
        enlarged: np.ndarray = zoom(picture, factors, order=order, mode="nearest", grid_mode=True)
        return enlarged

    def _tile(self, colors: np.ndarray, plane: Plane, text: str) -> Tile:
        left, bottom = (
            (self.index[axis] - self.box[axis].start + 0.5) / (self.box[axis].stop - self.box[axis].start)
            for axis in plane.axes
        )
        mark = (100 * left, 100 * (1 - bottom)) if self.mark else None
        height, width = colors.shape[:2]
        return Tile(png_source(colors), width, height, plane.edges, f"{text}, {plane.name}", mark)


def boundary(label: np.ndarray) -> np.ndarray:
    """The pixels of a label picture [H, W] that touch another label on their right or below, without the background's.

    Each boundary is drawn once, inside of a labeled structure.
    """
    edge = np.zeros(label.shape, dtype=bool)
    for labels, edges in ((label, edge), (label.T, edge.T)):
        differs, labeled = labels[:-1] != labels[1:], labels[:-1] != 0
        edges[:-1] |= differs & labeled
        edges[1:] |= differs & ~labeled
    return edge


def png_source(colors: np.ndarray) -> str:
    """A picture [H, W, 3] in 0..1 as `data:` address of a PNG."""
    buffer = io.BytesIO()
    imsave(buffer, np.round(255 * colors.clip(0, 1)).astype(np.uint8), format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
