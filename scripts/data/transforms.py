"""Transforms of scans and pairs, by arguments: ``load_transforms`` for every scan once, ``pair_transforms`` at random.

The first is deterministic, and its result is cached; the second augments pairs during training.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from monai.transforms import (
    CastToTyped,
    Compose,
    MapTransform,
    Orientationd,
    RandAdjustContrast,
    RandBiasField,
    RandGaussianNoise,
    RandGaussianSmooth,
    Randomizable,
    RandomizableTransform,
    RandSpatialCropd,
    ResizeWithPadOrCropd,
    Spacingd,
)
from torch import Tensor
from torch.nn.functional import pad

from scripts.core.errors import DataError
from scripts.data.loading import LoadVolumed, ScaleBraind, is_label

KEYS = ("fixed", "fixed_label", "moving", "moving_label")
"""Of the volumes of a training pair; label maps may be missing."""


class PlainCompose(Compose):
    """A ``Compose`` that lets a :class:`~scripts.core.errors.DataError` through.

    MONAI's raises "applying transform <object at 0x...>" in its place, and a person has to search for the reason.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Apply all transforms in order."""
        try:
            return super().__call__(*args, **kwargs)
        except RuntimeError as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, DataError):
                    raise cause from None
                cause = cause.__cause__
            raise


def load_transforms(
    keys: Sequence[str] = ("image", "label"),
    pixdim: Sequence[float] | float | None = None,
    roi_size: Sequence[int] | None = None,
) -> Compose:
    """What every scan goes through once: from paths to volumes in the model's frame.

    Args:
        keys: of paths; those that end in ``label`` hold label maps. Keys that an item lacks are passed over.
        pixdim: resample to these voxel sizes in mm, with the volume's extent kept; None keeps the file's.
        roi_size: crop and pad with zeros about the center to this shape (decision 1: 144 x 160 x 192); None keeps all.

    Returns:
        A transform from {key: path} to {key: ``MetaTensor`` [1, X, Y, Z]}: float32 images in [0, 1], int32 labels.
    """
    steps: list[Any] = [LoadVolumed(keys, allow_missing_keys=True), turned_to_model(keys)]
    if pixdim is not None:
        modes = ["nearest" if is_label(key) else "bilinear" for key in keys]
        steps.append(spacing_transform(keys, pixdim, modes))
    if images := [key for key in keys if not is_label(key)]:
        steps.append(ScaleBraind(images, allow_missing_keys=True))
    if roi_size is not None:
        steps.append(ResizeWithPadOrCropd(keys, spatial_size=tuple(roi_size), allow_missing_keys=True))
    if labels := [key for key in keys if is_label(key)]:
        # Resampling to the nearest voxel keeps values whole, and int32 holds every label of every atlas.
        steps.append(CastToTyped(labels, dtype=torch.int32, allow_missing_keys=True))
    return PlainCompose(steps)


def turned_to_model(keys: Sequence[str]) -> Orientationd:
    """Turn volumes so that their axes grow as the model's do: Left, Inferior, Anterior."""
    return Orientationd(keys, axcodes="LIA", labels=(("L", "R"), ("P", "A"), ("I", "S")), allow_missing_keys=True)


def spacing_transform(keys: Sequence[str], pixdim: Sequence[float] | float, modes: list[str]) -> Spacingd:
    """Resample volumes to these voxel sizes in mm, one mode of interpolation a key; the volume's extent is kept."""
    # scale_extent: a coarse voxel covers whole fine ones, so that the volume's center stays where it is.
    # ensure_same_shape looks for the first key, which an item may lack.
    return Spacingd(
        keys, pixdim=pixdim, mode=modes, scale_extent=True, align_corners=True, ensure_same_shape=False,
        dtype=np.float32, allow_missing_keys=True,
    )  # fmt: skip


def pair_transforms(
    max_shared: int = 8,
    max_independent: int = 2,
    gamma_prob: float = 0.0,
    bias_prob: float = 0.0,
    noise_prob: float = 0.0,
    blur_prob: float = 0.0,
    crop_size: Sequence[int] | None = None,
) -> Compose:
    """Augmentation of a training pair: the paper's shifts (decision 14) and, if asked for, changes of brightness.

    Args:
        max_shared: largest shift in voxels of both images together; 8 at 1 mm, so 4 at 2 mm.
        max_independent: largest further shift of each image; 2 at 1 mm, so 1 at 2 mm.
        crop_size: of a window that is cut out of both images at the same random place, after all else; None keeps the
            whole. Steps on windows cost less, so that there can be more of them.
    """
    steps: list[Any] = []
    probabilities = (gamma_prob, bias_prob, noise_prob, blur_prob)
    if any(probabilities):
        # Before the shift, so that the bias field moves with the head.
        steps.append(RandBrainIntensityd(*probabilities))
    if max_shared or max_independent:
        steps.append(RandPairShiftd(max_shared, max_independent))
    if crop_size is not None:
        steps.append(RandSpatialCropd(KEYS, roi_size=tuple(crop_size), random_size=False, allow_missing_keys=True))
    return Compose(steps)


def shift_volume(volume: Tensor, shift: Sequence[int]) -> Tensor:
    """Move the content of a volume [C, X, Y, Z] by whole voxels; zeros come in.

    Returns:
        out[c, x, y, z] = volume[c, x - shift[0], y - shift[1], z - shift[2]]; its affine is that of the input, for it
        is the head that moves in the frame.
    """
    steps = [max(-size, min(size, step)) for step, size in zip(shift, volume.shape[1:], strict=True)]
    # From the last axis to the first, how many voxels come in before and after; less than 0 go away.
    return pad(volume, [width for step in reversed(steps) for width in (step, -step)])


class RandPairShiftd(RandomizableTransform, MapTransform):
    """Shift both images of a pair by the same random whole voxels, and each by a few of its own.

    Image and label of a role move together. Each axis is drawn uniformly from -max..max, see :func:`pair_transforms`.
    """

    def __init__(self, max_shared: int = 8, max_independent: int = 2) -> None:
        if min(max_shared, max_independent) < 0:
            raise ValueError(f"shifts must not be negative, got {max_shared} and {max_independent} instead")
        RandomizableTransform.__init__(self)
        MapTransform.__init__(self, KEYS, allow_missing_keys=True)
        self.max_shared, self.max_independent = max_shared, max_independent
        self.shifts: dict[str, Sequence[int]] = {}

    def randomize(self, data: Any = None) -> None:
        """Draw the two shifts."""
        super().randomize(None)  # decides that there is a shift, always, with a random number of its own
        shared = self.R.randint(-self.max_shared, self.max_shared + 1, size=3)
        own = self.R.randint(-self.max_independent, self.max_independent + 1, size=(2, 3))
        self.shifts = dict(zip(("fixed", "moving"), (shared + own).tolist(), strict=True))

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Shift one pair."""
        item = dict(data)
        self.randomize()
        for key in self.key_iterator(item):
            item[key] = shift_volume(item[key], self.shifts[str(key).removesuffix("_label")])
        return item


class RandBrainIntensityd(Randomizable, MapTransform):
    """Change contrast, shading, noise and sharpness inside the brain, each image on its own; zeros stay zeros.

    Images are [1, X, Y, Z] in [0, 1]; for the probabilities see :func:`pair_transforms`. What gets brighter than 1
    scales the image down again instead of being clipped, which would flatten white matter.
    """

    def __init__(self, gamma_prob: float, bias_prob: float, noise_prob: float, blur_prob: float) -> None:
        MapTransform.__init__(self, ("fixed", "moving"))
        # In the order in which a scanner does it: tissue, coil, resolution, noise.
        sigma = (0.25, 0.8)  # in voxels
        self.steps: list[RandomizableTransform] = [
            RandAdjustContrast(prob=gamma_prob, gamma=(0.7, 1.4)),
            RandBiasField(prob=bias_prob, coeff_range=(-0.15, 0.15)),
            RandGaussianSmooth(sigma, sigma, sigma, prob=blur_prob),
            RandGaussianNoise(prob=noise_prob, std=0.04),
        ]

    def set_random_state(self, seed: int | None = None, state: np.random.RandomState | None = None) -> Self:
        """Seed all steps, so that the whole is reproducible."""
        super().set_random_state(seed, state)
        for step in self.steps:
            step.set_random_state(state=self.R)
        return self

    def randomize(self, data: Any = None) -> None:
        """Nothing to draw here: each step draws for itself."""

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Change the images of one item."""
        item = dict(data)
        for key in self.key_iterator(item):
            image = item[key]
            changed = image
            for step in self.steps:
                changed = step(changed)
            if changed is not image:
                changed = (changed * (image > 0)).clamp(min=0.0)
                item[key] = changed / changed.max().clamp(min=1.0)
        return item
