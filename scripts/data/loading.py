"""Load a scan as a checked volume: what a file may get wrong is said in one line, with the file and its role.

| what is wrong | what happens |
|---|---|
| missing, empty, truncated, not an image | error |
| several volumes (4-D), a single slice (2-D, an axis of length 1) | error; trailing axes of length 1 are dropped |
| singular affine | error |
| no spatial codes | warning; NIfTI's default is assumed: axes left, anterior, superior |
| NaN or infinite voxels | warning, they become 0; error if no voxel is finite |
| constant image | error; a label map or a mask may be constant |
| label values that are not whole numbers | error: such a map was interpolated |
| label values below 0 or of more than three bytes | error |
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.config import KeysCollection
from monai.data import MetaTensor
from monai.transforms import LoadImage, MapTransform
from nibabel.filebasedimages import ImageFileError
from torch import Tensor

from scripts.core.errors import DataError
from scripts.synthetic.subjects import synthesize_subject

logger = logging.getLogger(__name__)

_LARGEST_LABEL = 2**24 - 1
"""Volumes come as float32, which holds every whole number up to here; 2²⁴ may have been 2²⁴ + 1 in the file."""


_BY_NIBABEL = (".mgz", ".mgh", ".hdr", ".img")
"""What nibabel reads, but MONAI does not offer it."""
_PERCENTILE = 99.8
"""Of the voxels inside a brain, that becomes brightness 1; what is brighter is clipped."""


def is_label(key: Hashable) -> bool:
    """Whether a key of an item holds a label map: ``label``, ``fixed_label`` or ``moving_label``."""
    return str(key).endswith("label")


class LoadVolumed(MapTransform):
    """Load the volumes of an item as float32 ``MetaTensor`` [1, X, Y, Z], or paint them if the item is synthetic.

    Args:
        keys: of paths. Keys that end in ``label`` hold label maps, those that end in ``mask`` masks.

    Raises:
        DataError: see the table above; the message names the key as the file's role.
    """

    def __init__(self, keys: KeysCollection = ("image", "label"), allow_missing_keys: bool = False) -> None:
        super().__init__(keys, allow_missing_keys)
        self.load, self.load_by_nibabel = (
            LoadImage(reader, image_only=True, dtype=np.float32, ensure_channel_first=True)
            for reader in (None, "NibabelReader")
        )

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Load one item."""
        item = dict(data)
        recipe = item.pop("synthetic", None)
        if recipe is not None:
            subject = synthesize_subject(**recipe)
            for key, volume in (("image", subject.image), ("label", subject.label)):
                if key in self.keys:
                    meta = {"filename_or_obj": str(item.get("name", "synthetic"))}
                    values = torch.from_numpy(volume).to(torch.float32)[None]
                    item[key] = MetaTensor(values, affine=torch.as_tensor(subject.affine), meta=meta)
            return item
        for key in self.key_iterator(item):
            what = f"{key} {item[key]}"
            item[key] = _checked(self._read(Path(item[key]), what), str(key), what)
        return item

    def _read(self, path: Path, what: str) -> MetaTensor:
        if not path.exists():
            raise DataError(f"{what}: the file does not exist")
        if path.is_file() and path.stat().st_size == 0:
            raise DataError(f"{what}: the file is empty")
        try:
            volume = (self.load_by_nibabel if path.name.lower().endswith(_BY_NIBABEL) else self.load)(path)
        except Exception as error:  # every reader has errors of its own
            reason = " ".join(str(error).split("\n")[0].replace(f"File {path}", "it").split())
            if "suitable reader" in reason:
                reason = "not an image file that can be read"
            raise DataError(f"{what}: {reason or type(error).__name__}") from error
        with contextlib.suppress(ImageFileError):  # a format that nibabel does not know
            # MONAI silently replaces an affine that disagrees with the header's voxel sizes; others take it as it is.
            header: Any = nib.load(path)
            volume.affine = torch.as_tensor(header.affine)
        return volume


def _checked(volume: MetaTensor, key: str, what: str) -> MetaTensor:
    """The volume [1, X, Y, Z] of what was just loaded, [C, X, Y, Z, ...]: finite; whole numbers for a label map."""
    values = volume.as_subclass(Tensor)
    while values.ndim > 4 and values.shape[-1] == 1:
        values = values[..., 0]
    # In the file, channels come last, and one alone is not there.
    channels, *shape = values.shape
    in_file = tuple(shape) if channels == 1 else (*shape, channels)
    if values.ndim > 4 or (values.ndim == 4 and channels != 1):
        raise DataError(f"{what}: expected one 3-D volume, got an array of shape {in_file}")
    if values.ndim < 4 or min(shape) < 2:
        raise DataError(f"{what}: expected a 3-D volume, got a single slice of shape {in_file}")
    affine = torch.as_tensor(volume.affine, dtype=torch.float64)
    if not bool(torch.isfinite(affine).all()) or abs(float(torch.linalg.det(affine[:3, :3]))) < 1e-9:
        raise DataError(f"{what}: the affine is singular, so voxels have no place in space")
    codes = [volume.meta.get(key) for key in ("qform_code", "sform_code")]
    if all(code is not None and int(code) == 0 for code in codes):
        logger.warning("%s: the header has no orientation; axes left, anterior, superior are assumed", what)

    finite = torch.isfinite(values)
    bad = int((~finite).sum())
    if bad == values.numel():
        raise DataError(f"{what}: all voxels are NaN or infinite")
    if bad:
        logger.warning("%s: %d NaN or infinite voxels are set to 0", what, bad)
        values = values.where(finite, 0.0)
    if is_label(key):
        _check_label_values(values, what)
        values = values.round()  # stored with a slope, 3 may come as 2.9999998
    elif not key.endswith("mask") and bool((values == values.flatten()[0]).all()):
        raise DataError(f"{what}: the image is constant ({values.flatten()[0].item():g})")
    # Only what later steps need: the rest of the header describes the file, not the array any more.
    return MetaTensor(values, affine=affine, meta={"filename_or_obj": volume.meta.get("filename_or_obj", what)})


def _check_label_values(values: Tensor, what: str) -> None:
    wrong = (values - values.round()).abs() > 1e-3
    if bool(wrong.any()):
        raise DataError(
            f"{what}: {int(wrong.sum())} label values are not whole numbers, the first is {values[wrong][0].item():g}; "
            "was the map resampled with interpolation?"
        )
    low, high = (int(value.round()) for value in values.aminmax())
    if low < 0 or high > _LARGEST_LABEL:
        raise DataError(f"{what}: label values must be in 0..{_LARGEST_LABEL}, got {low}..{high}")


class ScaleBraind(MapTransform):
    """Bring images [1, X, Y, Z] to [0, 1] by a percentile inside the brain; those that are there stay untouched.

    The background is the value in the corners of the volume (their median) and becomes 0. An image counts as scaled
    when its background is 0, nothing is outside of [0, 1], and its brightest voxel is above one half.

    Raises:
        DataError: when the voxels inside have no contrast.
    """

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Scale the images of one item."""
        item = dict(data)
        for key in self.key_iterator(item):
            item[key] = _scaled(item[key], f"{key} {item.get('name', '')}")
        return item


def _scaled(image: Tensor, what: str) -> Tensor:
    values = image.as_subclass(Tensor)
    corners = values[0][[0, -1]][:, [0, -1]][:, :, [0, -1]]
    background = corners.median()
    low, high = values.min(), values.max()
    if background == 0 and low >= 0 and 0.5 < high <= 1:
        return image
    inside = values != background
    brain = values[inside].double().numpy()
    upper = float(np.percentile(brain, _PERCENTILE)) if brain.size else 0.0
    # Brightness has a natural zero unless something has shifted it, as a z-score does.
    lower = 0.0 if low >= 0 else float(np.percentile(brain, 100 - _PERCENTILE))
    if upper <= lower:
        raise DataError(f"{what}: no contrast inside the brain (percentiles {lower:g} and {upper:g})")
    scaled = ((image - lower) / (upper - lower)).clamp(0.0, 1.0)
    return scaled * inside
