"""Transforms of scans and pairs, by arguments: ``load_transforms`` for every scan once, ``pair_transforms`` at random.

The first is deterministic, and its result is cached; the second augments pairs during training.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from monai.config import KeysCollection
from monai.transforms import (
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

from scripts.core.errors import DataError
from scripts.data.loading import IntegerLabeld, LoadVolumed, ScaleBraind, is_label

FIXED_KEYS = ("fixed", "fixed_label")
MOVING_KEYS = ("moving", "moving_label")
AXIS_LABELS = (("L", "R"), ("P", "A"), ("I", "S"))


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
    axcodes: str = "LIA",
    pixdim: Sequence[float] | float | None = None,
    roi_size: Sequence[int] | None = None,
    percentile: float | None = 99.8,
) -> Compose:
    """What every scan goes through once: from paths to volumes in the model's frame.

    Args:
        keys: of paths; those that end in ``label`` hold label maps. Keys that an item lacks are passed over.
        axcodes: directions in which the array's axes grow; the model's are Left, Inferior, Anterior.
        pixdim: resample to these voxel sizes in mm, with the volume's extent kept; None keeps the file's.
        roi_size: crop and pad with zeros about the center to this shape (decision 1: 144 x 160 x 192); None keeps all.
        percentile: inside the brain, that becomes brightness 1 (:class:`~scripts.data.loading.ScaleBraind`); None
            keeps brightness as it is.

    Returns:
        A transform from {key: path} to {key: ``MetaTensor`` [1, X, Y, Z]}: float32 images in [0, 1], int32 labels.
    """
    images, labels = [key for key in keys if not is_label(key)], [key for key in keys if is_label(key)]
    steps: list[Any] = [
        LoadVolumed(keys, allow_missing_keys=True),
        Orientationd(keys, axcodes=axcodes, labels=AXIS_LABELS, allow_missing_keys=True),
    ]
    if pixdim is not None:
        modes = ["nearest" if is_label(key) else "bilinear" for key in keys]
        steps.append(spacing_transform(keys, pixdim, modes))
    if percentile is not None and images:
        steps.append(ScaleBraind(images, percentile, allow_missing_keys=True))
    if roi_size is not None:
        steps.append(ResizeWithPadOrCropd(keys, spatial_size=tuple(roi_size), allow_missing_keys=True))
    if labels:
        steps.append(IntegerLabeld(labels, allow_missing_keys=True))
    return PlainCompose(steps)


def spacing_transform(keys: Sequence[str], pixdim: Sequence[float] | float, modes: list[str]) -> Spacingd:
    """Resample volumes to these voxel sizes in mm, one mode of interpolation a key; the volume's extent is kept."""
    sizes = (pixdim,) * 3 if isinstance(pixdim, int | float) else tuple(pixdim)
    # scale_extent: a coarse voxel covers whole fine ones, so that the volume's center stays where it is.
    # ensure_same_shape looks for the first key, which an item may lack.
    return Spacingd(
        keys, pixdim=sizes, mode=modes, scale_extent=True, align_corners=True, ensure_same_shape=False,
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
    **intensity: Any,
) -> Compose:
    """Augmentation of a training pair: the paper's shifts (decision 14) and, if asked for, changes of brightness.

    Args:
        max_shared: largest shift in voxels of both images together; 8 at 1 mm, so 4 at 2 mm.
        max_independent: largest further shift of each image; 2 at 1 mm, so 1 at 2 mm.
        gamma_prob: probability of another contrast.
        bias_prob: probability of a smooth bias field.
        noise_prob: probability of noise.
        blur_prob: probability of blur.
        crop_size: of a window that is cut out of both images at the same random place, after all else; None keeps the
            whole. Steps on windows cost less, so that there can be more of them.
        intensity: further arguments of :class:`RandBrainIntensityd`.
    """
    steps: list[Any] = []
    probabilities = (gamma_prob, bias_prob, noise_prob, blur_prob)
    if any(probabilities):
        # Before the shift, so that the bias field moves with the head.
        steps.append(RandBrainIntensityd((FIXED_KEYS[0], MOVING_KEYS[0]), *probabilities, **intensity))
    if max_shared or max_independent:
        steps.append(RandPairShiftd(max_shared=max_shared, max_independent=max_independent))
    if crop_size is not None:
        keys = (*FIXED_KEYS, *MOVING_KEYS)
        steps.append(RandSpatialCropd(keys, roi_size=tuple(crop_size), random_size=False, allow_missing_keys=True))
    return Compose(steps)


def shift_volume(volume: Tensor, shift: Sequence[int]) -> Tensor:
    """Move the content of a volume by whole voxels; zeros come in.

    Args:
        volume: [C, X, Y, Z].
        shift: three numbers; out[c, x, y, z] = volume[c, x - shift[0], y - shift[1], z - shift[2]].

    Returns:
        The moved volume; its affine is that of the input, for it is the head that moves in the frame.
    """
    source, target = [slice(None)], [slice(None)]
    for step, size in zip(shift, volume.shape[1:], strict=True):
        step = max(-size, min(size, int(step)))
        source.append(slice(max(-step, 0), size - max(step, 0)))
        target.append(slice(max(step, 0), size - max(-step, 0)))
    moved = torch.zeros_like(volume)
    moved.as_subclass(Tensor)[tuple(target)] = volume.as_subclass(Tensor)[tuple(source)]
    return moved


class RandPairShiftd(RandomizableTransform, MapTransform):
    """Shift both images of a pair by the same random whole voxels, and each by a few of its own.

    Image and label of a role move together. Each axis is drawn uniformly from -max..max.

    Args:
        fixed_keys: of what belongs to the fixed image; those that an item lacks are passed over.
        moving_keys: of what belongs to the moving image.
        max_shared: largest shift of both together, in voxels.
        max_independent: largest further shift of each, in voxels.
        prob: probability that anything is shifted.

    Raises:
        ValueError: when a largest shift is negative.
    """

    def __init__(
        self,
        fixed_keys: Sequence[str] = FIXED_KEYS,
        moving_keys: Sequence[str] = MOVING_KEYS,
        max_shared: int = 8,
        max_independent: int = 2,
        prob: float = 1.0,
    ) -> None:
        if min(max_shared, max_independent) < 0:
            raise ValueError(f"shifts must not be negative, got {max_shared} and {max_independent} instead")
        RandomizableTransform.__init__(self, prob)
        self.fixed_keys, self.moving_keys = tuple(fixed_keys), tuple(moving_keys)
        MapTransform.__init__(self, (*self.fixed_keys, *self.moving_keys), allow_missing_keys=True)
        self.max_shared, self.max_independent = max_shared, max_independent
        self.fixed_shift: Sequence[int] = (0, 0, 0)
        self.moving_shift: Sequence[int] = (0, 0, 0)

    def randomize(self, data: Any = None) -> None:
        """Draw the two shifts."""
        super().randomize(None)
        shared = self.R.randint(-self.max_shared, self.max_shared + 1, size=3)
        own = self.R.randint(-self.max_independent, self.max_independent + 1, size=(2, 3))
        self.fixed_shift, self.moving_shift = (shared + own).tolist()

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Shift one pair."""
        item = dict(data)
        self.randomize()
        if self._do_transform:
            for key in self.key_iterator(item):
                item[key] = shift_volume(item[key], self.fixed_shift if key in self.fixed_keys else self.moving_shift)
        return item


class RandBrainIntensityd(Randomizable, MapTransform):
    """Change contrast, shading, noise and sharpness inside the brain, each image on its own; zeros stay zeros.

    Made of MONAI's ``RandAdjustContrast``, ``RandBiasField``, ``RandGaussianSmooth`` and ``RandGaussianNoise``. What
    gets brighter than 1 scales the image down again instead of being clipped, which would flatten white matter.

    Args:
        keys: of images [1, X, Y, Z] in [0, 1], 0 outside of the brain.
        gamma_prob: probability of another contrast.
        bias_prob: probability of a smooth bias field.
        noise_prob: probability of noise.
        blur_prob: probability of blur.
        gamma: range of the exponent.
        bias: largest coefficient of the bias field's polynomials of degree 3.
        noise_std: largest standard deviation of the noise.
        blur_sigma: range of the blur's standard deviation, in voxels.
    """

    def __init__(
        self,
        keys: KeysCollection,
        gamma_prob: float = 0.0,
        bias_prob: float = 0.0,
        noise_prob: float = 0.0,
        blur_prob: float = 0.0,
        gamma: tuple[float, float] = (0.7, 1.4),
        bias: float = 0.15,
        noise_std: float = 0.04,
        blur_sigma: tuple[float, float] = (0.25, 0.8),
    ) -> None:
        MapTransform.__init__(self, keys)
        # In the order in which a scanner does it: tissue, coil, resolution, noise.
        self.steps: list[RandomizableTransform] = [
            RandAdjustContrast(prob=gamma_prob, gamma=gamma),
            RandBiasField(prob=bias_prob, coeff_range=(-bias, bias)),
            RandGaussianSmooth(blur_sigma, blur_sigma, blur_sigma, prob=blur_prob),
            RandGaussianNoise(prob=noise_prob, std=noise_std),
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
