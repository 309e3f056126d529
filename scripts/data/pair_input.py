"""From the files of a new pair to what the model sees: any orientation, spacing and size in, the work grid out.

The work grid has the fixed file's directions, turned to the model's order of axes, the model's spacing, and an extent
that holds the brain and fits the network. The moving image is brought onto it in one interpolation, alignment included.

| key | after |
|---|---|
| `fixed`, `moving` | [1, X, Y, Z] on the work grid, float32 in [0, 1] |
| `image` | the two as the network sees them, [2, X, Y, Z] |
| `fixed_mask` | [1, X, Y, Z] on the work grid, where the likelihood counts; only if a mask was given |
| `fine_fixed`, `fine_moving`, `fine_fixed_mask` | the same at twice the resolution, where both files have it |
| `fixed_file`, `moving_file` | the volumes as loaded, on their own grids |
| `fixed_label`, `moving_label` | int32, on their own grids |
| `brain` | [1, X', Y', Z'], where the fixed file has its brain: its mask without holes, or the foreground |
| `alignment` | :class:`~scripts.alignment.align.Alignment` |
| `warnings` | sentences for people |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import CastToTyped, Compose, CopyItemsd, CropForegroundd, ResampleToMatchd, Transform
from scipy.ndimage import binary_fill_holes

from scripts.alignment.align import Method, align, apply_alignment
from scripts.alignment.checks import brain_mask, check_overlap, looks_stripped
from scripts.core.errors import DataError
from scripts.core.grid import Grid, bounds_text, check_grid
from scripts.core.pair_keys import FILE_KEYS
from scripts.data.atlas import AtlasPaird
from scripts.data.loading import LoadVolumed, ScaleBraind
from scripts.data.resolution import IMAGES, sample_fine, smooth_pair
from scripts.data.transforms import PlainCompose, spacing_transform, turned_to_model

logger = logging.getLogger(__name__)

Step = Callable[[Mapping[Hashable, Any]], Mapping[Hashable, Any]]
"""A transform of a pair."""
LARGEST_VOLUME = 2**31
"""Voxels; more is a mistake in the header, not a scan."""
MARGIN = 4
"""Work voxels around the brain."""
ON_WORK = ("fixed", "fixed_mask")
"""What has the work grid's directions when it is resampled; the moving image has its own."""


def pair_input_transforms(
    pixdim: float = 2.0,
    stride: int = 8,
    alignment: Method = "auto",
    seed: int = 0,
    atlas: AtlasPaird | None = None,
    disturb: Step | None = None,
) -> Compose:
    """The transforms of a new pair, from a dictionary of paths.

    Args:
        pixdim: voxel size in mm that the model was trained at.
        stride: of the network; sizes of the work grid are multiples of it.
        alignment: none, rigid, affine or auto, see :func:`~scripts.alignment.align.align`.
        atlas: what moves onto an item that has one `image` instead of a pair; None for pairs only.
        disturb: what is done to the pair before it is aligned, on its files' grids, with images in [0, 1].

    Raises:
        DataError: for another method of alignment, or voxels and strides that are not positive.
    """
    if not pixdim > 0 or stride < 1:
        raise DataError(f"voxels must be larger than 0 mm and the stride at least 1, got {pixdim} and {stride}")
    to_work = [
        CropForegroundd(
            ON_WORK, source_key="fixed", margin=MARGIN, k_divisible=stride, allow_smaller=False,
            allow_missing_keys=True, start_coord_key=None, end_coord_key=None,
        ),
        ResampleToMatchd("moving", key_dst="fixed", mode="bilinear", padding_mode="zeros", dtype=np.float32),
    ]  # fmt: skip
    load = LoadVolumed(FILE_KEYS, allow_missing_keys=True)
    aligned: Step = Alignd(alignment, seed)
    prepare = preparation(aligned if disturb is None else PlainCompose([disturb, aligned]), pixdim, to_work)
    return PlainCompose([*([] if atlas is None else [atlas]), load, *prepare, check_moving, stack_pair])


def preparation(alignment: Step, pixdim: float, to_work: Sequence[Step], fine: bool = True) -> list[Step]:
    """The transforms of a pair that is loaded, up to the work grid.

    Args:
        alignment: puts the moving image in its place.
        pixdim: voxel size of the work grid, in mm.
        to_work: bring images that have this voxel size to the extent of the work grid.
        fine: also the images of twice the resolution, see :mod:`~scripts.data.resolution`.
    """
    return [
        check_pair,
        CopyItemsd(keys=IMAGES, names=("fixed_file", "moving_file")),
        strip_by_mask,
        ScaleBraind(IMAGES),
        alignment,
        partial(smooth_pair, pixdim=pixdim, fine=fine),
        turned_to_model(ON_WORK),
        spacing_transform(ON_WORK, pixdim, ["bilinear", "nearest"]),
        *to_work,
        sample_fine,
        CastToTyped(("fixed_label", "moving_label"), dtype=torch.int32, allow_missing_keys=True),
    ]


def check_pair(data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Refuse a pair that cannot be registered; collect what a person should know under `warnings`.

    Raises:
        DataError: for labels or masks that do not lie on their image's grid, and for absurd sizes.
    """
    item = dict(data)
    item["warnings"] = list(item.get("warnings", []))
    for key in FILE_KEYS:
        # Spacingd takes every key that starts with "fixed_" for metadata of "fixed" and fails, if this is there.
        if key in item:
            item[key].meta.pop("filename_or_obj", None)
    for role in IMAGES:
        grid = Grid.of(item[role])
        if np.prod([float(size) for size in grid.shape]) > LARGEST_VOLUME:
            raise DataError(f"{role} image: {grid.shape} voxels are more than this program can handle")
        for kind in ("label", "mask"):
            if f"{role}_{kind}" in item:
                advice = "; resample it to the image with nearest-neighbor interpolation"
                check_grid(f"{role}_{kind}", Grid.of(item[f"{role}_{kind}"]), grid, f"the {role} image", advice)
        item["warnings"] += _about_brain(role, item[role], item.get(f"{role}_mask"))
    for warning in item["warnings"]:
        logger.warning(warning)
    return item


def _about_brain(role: str, image: MetaTensor, mask: MetaTensor | None) -> list[str]:
    """What is to be said about the image's surroundings of the brain."""
    found = []
    if mask is not None:
        if not bool((mask > 0).any()):
            raise DataError(f"{role}_mask: no voxel is above 0")
        if not bool((mask > 0).all()):
            return []
        found.append(f"The {role} mask covers the whole image, so it has no effect.")
    stripped, why = looks_stripped(image)
    if not stripped:
        found.append(
            f"The {role} image does not look skull-stripped ({why}). The model was trained on stripped brains: "
            f"expect a worse registration; strip it, or give a brain mask with --{role}_mask."
        )
    return found


def strip_by_mask(data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Set an image to 0 outside of its mask; note where the fixed file has its brain.

    Holes in a mask (a lesion that should not count) are not cut out of the image, which would make edges: they are
    only left out of the likelihood.
    """
    item = dict(data)
    for role in IMAGES:
        mask = item.get(f"{role}_mask")
        if mask is None:
            continue
        filled = torch.from_numpy(binary_fill_holes(np.asarray(mask[0]) > 0))[None]
        item[role] = item[role] * filled
        if role == "fixed":
            item["brain"] = filled
        item[f"{role}_mask"] = (mask > 0).to(torch.float32)
    if "brain" not in item:
        item["brain"] = brain_mask(item["fixed"])
    return item


class Alignd(Transform):
    """Align the moving image to the fixed one by changing its affine; nothing is resampled here.

    Raises:
        DataError: for another method; when the two do not overlap in space and are not to be aligned.
    """

    METHODS = get_args(Method)

    def __init__(self, method: Method = "auto", seed: int = 0) -> None:
        if method not in self.METHODS:
            raise DataError(f"the alignment must be one of {', '.join(self.METHODS)}, got {method!r}")
        self.method, self.seed = method, seed

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Align one pair."""
        item = dict(data)
        fixed, moving = item["fixed"], item["moving"]
        if self.method == "none":
            check_overlap(Grid.of(fixed), Grid.of(moving))
        alignment = align(fixed, moving, self.method, item.get("fixed_mask"), item.get("moving_mask"), self.seed)
        logger.info(alignment.description)
        item["alignment"] = alignment
        item["moving"] = apply_alignment(moving, alignment.matrix)
        return item


def check_moving(data: Mapping[Hashable, Any]) -> Mapping[Hashable, Any]:
    """Refuse a pair whose moving image is not to be seen where the fixed one is, with both bounding boxes."""
    if not bool((data["moving"].as_tensor() > 0).any()):
        fixed, file = (bounds_text(Grid.of(data[f"{role}_file"])) for role in IMAGES)
        raise DataError(
            f"the moving brain (its image covers {file}) does not reach the fixed one ({fixed}); try --align affine"
        )
    return data


def stack_pair(data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Put what the network sees under `image`: moving and fixed, [2, X, Y, Z] on the work grid."""
    return {**data, "image": torch.cat([data["moving"].as_tensor(), data["fixed"].as_tensor()])}
