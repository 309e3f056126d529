"""Where an image has something: the brain if it is skull-stripped, the head if it is not."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

CONSTANT_SHARE = 0.5
"""So much of the volume's faces must have one and the same value for a background to count as constant."""

_FAINT = 0.02
"""Part of the image's range up to which a difference from a constant background is taken for ringing of a resampler."""


def background_level(values: np.ndarray) -> tuple[float, float]:
    """Value of the background of a volume [X, Y, Z], and the share of its six faces that has the most frequent one.

    The most frequent value of the faces if at least half of them have it, otherwise their median. The faces rather than
    the corners: a resampled scan may be padded in the corners.
    """
    faces = _faces(values)
    levels, counts = np.unique(faces, return_counts=True)
    share = float(counts.max() / faces.size)
    level = levels[counts.argmax()] if share >= CONSTANT_SHARE else np.median(faces)
    return float(level), share


def content(values: np.ndarray) -> np.ndarray:
    """Mark the voxels of a volume [X, Y, Z] that are not background, one by one: bool [X, Y, Z].

    With a constant background, those that differ from it by more than 2 % of the image's range; with a noisy one, those
    that clearly exceed the noise after smoothing.
    """
    values = np.asarray(values, dtype=np.float32)
    level, share = background_level(values)
    if share < CONSTANT_SHARE:
        return _above_noise(values)
    contrast = np.abs(values - np.float32(level))
    inside = contrast > 0
    return contrast > _FAINT * np.percentile(contrast[inside], 98) if inside.any() else inside


def foreground(values: np.ndarray) -> np.ndarray:
    """What is not background in a volume [X, Y, Z], as one connected part without holes: bool [X, Y, Z].

    Everything if no background can be told from the rest, as in a crop from within the brain.
    """
    inside = content(values)
    if not inside.any():
        return np.ones_like(inside)
    # Only the box that holds anything: half of a usual volume is background.
    box = ndimage.find_objects(inside.astype(np.uint8))[0]
    result = np.zeros_like(inside)
    result[box] = largest_component(ndimage.binary_fill_holes(inside[box]))
    return result


def largest_component(mask: np.ndarray) -> np.ndarray:
    """The largest part that is connected by faces; the first one of equally large ones. bool [X, Y, Z] to the same."""
    parts, count = ndimage.label(mask)
    if count < 2:
        return mask
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return parts == sizes.argmax()


def fill_slices(mask: np.ndarray) -> np.ndarray:
    """Fill the holes of all slices along the three axes: also of a head that is cut open by the volume's edge."""
    filled = mask.copy()
    for axis in range(3):
        in_slice = np.expand_dims(ndimage.generate_binary_structure(2, 1), axis)
        filled |= ndimage.binary_fill_holes(mask, in_slice)
    return filled


def _above_noise(values: np.ndarray) -> np.ndarray:
    smooth = ndimage.gaussian_filter(values, 1.0)
    faces = _faces(smooth)
    level = np.median(faces)
    noise = 1.4826 * np.median(np.abs(faces - level))  # the standard deviation, were it normal; a cut neck is ignored
    inside = smooth > level + max(4 * noise, 0.1 * (np.percentile(smooth, 98) - level))
    return ndimage.binary_opening(inside)


def _faces(values: np.ndarray) -> np.ndarray:
    """The voxels of the six faces, one after the other."""
    return np.concatenate([np.moveaxis(values, axis, 0)[end].ravel() for axis in range(3) for end in (0, -1)])
