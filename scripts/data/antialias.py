"""Smoothing before an image is sampled at larger steps, so that what is too fine for them does not turn up as noise."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from monai.data import MetaTensor
from monai.transforms import GaussianSmooth, MapTransform

from scripts.core.grid import Grid


def antialiased(image: MetaTensor, pixdim: float) -> MetaTensor:
    """Smooth an image before it is sampled at larger steps, as much as averaging over the larger voxel would.

    A voxel that is f times as long averages over f small ones: a box of variance (f² − 1)/12.

    Args:
        image: shape [1, X, Y, Z].
        pixdim: the voxel size to come, in mm.
    """
    ratio = pixdim / Grid.of(image).spacing
    sigma = np.sqrt(np.maximum(ratio**2 - 1, 0) / 12)
    # MONAI's smoothing needs positive widths; 0.01 voxels change nothing.
    return GaussianSmooth(np.maximum(sigma, 0.01).tolist())(image) if (sigma > 0.2).any() else image


class Antialiasd(MapTransform):
    """:func:`antialiased` for the images of a pair.

    Args:
        keys: of images.
        pixdim: the voxel size to come, in mm.
    """

    def __init__(self, keys: Sequence[str], pixdim: float) -> None:
        super().__init__(keys)
        self.pixdim = pixdim

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Smooth the images of one pair."""
        item = dict(data)
        for key in self.keys:
            item[key] = antialiased(item[key], self.pixdim)
        return item
