"""Boxes of voxels: work only where a structure is, as most of a volume is far from it."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import ndimage
from torch import Tensor

Box = tuple[slice, slice, slice]
"""A box of voxels in a volume, usable as ``volume[box]``."""

EMPTY: Box = (slice(0, 0), slice(0, 0), slice(0, 0))
"""The box without voxels."""


def label_boxes(codes: Tensor, count: int) -> list[Box]:
    """Bounding box of each of S structures; ``EMPTY`` for one that does not occur.

    `codes` [X, Y, Z] are those of :func:`~scripts.posterior.label_maps.encode_labels`, `count` is S.
    """
    found = ndimage.find_objects(codes.cpu().numpy(), count)
    return [EMPTY if box is None else box for box in found]


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole volume of shape [X, Y, Z]."""
    x, y, z = (slice(0, size) for size in shape)
    return x, y, z


def box_shape(box: Box) -> tuple[int, int, int]:
    """Number of voxels along each axis."""
    x, y, z = (side.stop - side.start for side in box)
    return x, y, z


def grow(box: Box, margin: int, shape: Sequence[int]) -> Box:
    """Widen a box by ``margin`` voxels on each side, within a volume of shape [X, Y, Z]."""
    if box == EMPTY:
        return EMPTY
    x, y, z = (slice(max(s.start - margin, 0), min(s.stop + margin, n)) for s, n in zip(box, shape, strict=True))
    return x, y, z


def union(a: Box, b: Box) -> Box:
    """Smallest box around both."""
    if EMPTY in (a, b):
        return b if a == EMPTY else a
    x, y, z = (slice(min(s.start, t.start), max(s.stop, t.stop)) for s, t in zip(a, b, strict=True))
    return x, y, z


def intersection(a: Box, b: Box) -> Box:
    """What both share."""
    x, y, z = (slice(max(s.start, t.start), min(s.stop, t.stop)) for s, t in zip(a, b, strict=True))
    return (x, y, z) if all(side.start < side.stop for side in (x, y, z)) else EMPTY


def relative(inner: Box, outer: Box) -> Box:
    """Coordinates of a box counted from the first corner of another."""
    if inner == EMPTY:
        return EMPTY
    x, y, z = (slice(s.start - t.start, s.stop - t.start) for s, t in zip(inner, outer, strict=True))
    return x, y, z
