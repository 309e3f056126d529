"""Judge a pair before it is registered: does it overlap in space, are the images skull-stripped, where is the brain?"""

from __future__ import annotations

import numpy as np
import torch
from monai.data import MetaTensor
from scipy import ndimage
from torch import Tensor

from scripts.alignment.foreground import (
    CONSTANT_SHARE,
    background_level,
    content,
    fill_slices,
    foreground,
    largest_component,
)
from scripts.core.errors import DataError
from scripts.core.grid import Grid, are_apart, bounds_text

_BRAIN_ML = (300.0, 2800.0)
"""Foreground of a stripped image in ml. Newborns have 350; scaled to a larger frame, as in neurite-OASIS, adults have
up to 2200. A head without its neck has more than 3000."""

_DARK_LAYER = 0.75
"""Brightness of a layer relative to what is outside and inside of it, below which it is taken for skull."""

_LAYER = 2.0
_DEEPEST = 40.0
_DEEPEST_SKULL = 20.0
"""In mm: thickness of the layers under the foreground's surface, how deep they go, and how deep skull may lie."""


def check_overlap(fixed_grid: Grid, moving_grid: Grid) -> None:
    """Refuse a pair whose volumes have no point of space in common. Raises DataError with both bounding boxes."""
    if are_apart(fixed_grid, moving_grid):
        raise DataError(
            f"the images do not overlap in space: fixed covers {bounds_text(fixed_grid)}, "
            f"moving {bounds_text(moving_grid)}; use --align affine, or correct the headers"
        )


def brain_mask(image: MetaTensor) -> Tensor:
    """Where the brain is in an image [1, X, Y, Z], bool of the same shape; see :func:`foreground`.

    Of an image that is not skull-stripped, it is the head.
    """
    return torch.from_numpy(foreground(_array(image)))[None]


def looks_stripped(image: MetaTensor) -> tuple[bool, str]:
    """Judge whether the skull and what is outside of it were removed from an image.

    The foreground must have the size of a human brain, and there must be no dark layer under its surface with a
    brighter one on either side, as skull has scalp and brain. Layers are compared by their median brightness: no such
    layer was found in 183 stripped T1 scans of OASIS and IXI, with or without noise in the background; inverted
    contrast gave layers with 87 % of the brightness around them. Two whole-head T1 images were found out by their size,
    the upper half of one of them by a layer with 9 %. The background is not asked: scanners and defacing tools set that
    around heads to 0 as well, and tools that denoise or resample leave noise around brains.

    It cannot know whether bits of skull, eyes or neck were left, or bits of brain removed; whether a head with neither
    a dark skull nor the size of an adult's (newborns) is stripped; nor anything about images with other contrasts
    (CT, maps).

    Args:
        image: [1, X, Y, Z], finite.

    Returns:
        Whether it looks stripped, and if not, a sentence that says why; else an empty one.
    """
    grid = Grid.of(image)
    values = _array(image)
    level, share = background_level(values)
    if share >= CONSTANT_SHARE:
        # A z-score of the brain's voxels leaves the background at 0, in the middle of the brain's range.
        values = np.where(values == np.float32(level), values.min(), values)
    # 2 mm are fine enough, and a distance map at 1 mm would take seconds.
    factors = [max(1, min(round(_LAYER / edge), size)) for edge, size in zip(grid.spacing, grid.shape, strict=True)]
    coarse = torch.nn.functional.avg_pool3d(torch.from_numpy(values)[None, None], factors, factors)[0, 0].numpy()
    spacing = grid.spacing * factors
    inside = largest_component(fill_slices(content(coarse)))
    milliliters = float(inside.sum() * np.prod(spacing) / 1000)
    if not inside.any() or inside.all():
        return False, "no background can be told from the image's content."
    if milliliters > _BRAIN_ML[1]:
        return False, f"what is not background has {milliliters:.0f} ml, more than a brain."
    if milliliters < _BRAIN_ML[0]:
        return False, f"what is not background has only {milliliters:.0f} ml, less than a brain."
    ratio, depth = _darkest_layer(coarse, inside, spacing)
    if ratio < _DARK_LAYER:
        return False, (
            f"{depth:.0f} mm under the surface lies a layer with {100 * ratio:.0f} % of the brightness around it, "
            "as skull does under the scalp."
        )
    return True, ""


def _darkest_layer(values: np.ndarray, inside: np.ndarray, spacing: np.ndarray) -> tuple[float, float]:
    """Brightness and depth in mm of the layer that is darkest compared to layers outside and inside of it.

    The brightness is relative to the darker one of the brightest layer outside and the brightest layer inside.
    """
    level, _ = background_level(values)
    lowest = min(level, float(np.percentile(values[inside], 0.5)))
    depths = ndimage.distance_transform_edt(inside, sampling=spacing)[inside]
    layers = (np.ceil(depths / _LAYER) - 1).astype(int)
    count = min(int(_DEEPEST / _LAYER), layers.max() + 1)
    groups = [(layer, values[inside][layers == layer]) for layer in range(count)]
    # Large voxels leave layers without any.
    profile = [(layer, float(np.median(group)) - lowest) for layer, group in groups if group.size]
    brightness = np.array([median for _, median in profile])
    best = 1.0, 0.0
    for k in range(1, len(profile) - 1):
        depth = (profile[k][0] + 0.5) * _LAYER
        around = min(brightness[:k].max(), brightness[k + 1 :].max())
        if depth < _DEEPEST_SKULL and around > 0 and brightness[k] / around < best[0]:
            best = float(brightness[k] / around), depth
    return best


def _array(image: MetaTensor) -> np.ndarray:
    """The voxels [X, Y, Z] as float32 without metadata."""
    return image.as_subclass(Tensor)[0].to(torch.float32).numpy()
