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
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    CopyItemsd,
    CropForegroundd,
    MapTransform,
    Orientationd,
    ResampleToMatchd,
    Transform,
)
from scipy.ndimage import binary_fill_holes

from scripts.alignment.align import Method, align, apply_alignment
from scripts.alignment.checks import brain_mask, check_overlap, looks_stripped
from scripts.core.errors import DataError
from scripts.core.grid import Grid, bounds_text
from scripts.core.pair_keys import FILE_KEYS
from scripts.data.antialias import Antialiasd
from scripts.data.atlas import AtlasPaird, StackPaird
from scripts.data.fine import KeepFined, SampleFined
from scripts.data.loading import IntegerLabeld, LoadVolumed, ScaleBraind
from scripts.data.transforms import AXIS_LABELS, PlainCompose, spacing_transform

logger = logging.getLogger(__name__)

LARGEST_VOLUME = 2**31
"""Voxels; more is a mistake in the header, not a scan."""


def pair_input_transforms(
    pixdim: float = 2.0,
    stride: int = 8,
    margin: int = 4,
    axcodes: str = "LIA",
    percentile: float = 99.8,
    alignment: Method = "auto",
    seed: int = 0,
    atlas: AtlasPaird | None = None,
) -> Compose:
    """The transforms of a new pair, from a dictionary of paths.

    Args:
        pixdim: voxel size in mm that the model was trained at.
        stride: of the network; sizes of the work grid are multiples of it.
        margin: work voxels around the brain.
        axcodes: the model's order of axes.
        percentile: see :class:`~scripts.data.loading.ScaleBraind`.
        alignment: none, rigid, affine or auto, see :func:`~scripts.alignment.align.align`.
        seed: of the alignment's random sampling.
        atlas: what moves onto an item that has one `image` instead of a pair; None for pairs only.

    Raises:
        DataError: for another method of alignment, or voxels and strides that are not positive.
    """
    if not pixdim > 0 or stride < 1:
        raise DataError(f"voxels must be larger than 0 mm and the stride at least 1, got {pixdim} and {stride}")
    images, on_work = ("fixed", "moving"), ("fixed", "fixed_mask")
    return PlainCompose(
        [
            *([] if atlas is None else [atlas]),
            LoadVolumed(FILE_KEYS, allow_missing_keys=True),
            CheckPaird(),
            CopyItemsd(keys=images, names=("fixed_file", "moving_file")),
            StripByMaskd(),
            ScaleBraind(images, percentile),
            Alignd(alignment, seed),
            KeepFined(pixdim),
            Antialiasd(images, pixdim),
            Orientationd(on_work, axcodes=axcodes, labels=AXIS_LABELS, allow_missing_keys=True),
            spacing_transform(on_work, pixdim, ["bilinear", "nearest"]),
            CropForegroundd(
                on_work, source_key="fixed", margin=margin, k_divisible=stride, allow_smaller=False,
                allow_missing_keys=True, start_coord_key=None, end_coord_key=None,
            ),
            ResampleToMatchd("moving", key_dst="fixed", mode="bilinear", padding_mode="zeros", dtype=np.float32),
            SampleFined(),
            IntegerLabeld(("fixed_label", "moving_label"), allow_missing_keys=True),
            CheckMovingd(),
            StackPaird(),
        ]
    )  # fmt: skip


class CheckPaird(Transform):
    """Refuse a pair that cannot be registered; collect what a person should know under `warnings`.

    Raises:
        DataError: for labels or masks that do not lie on their image's grid, and for absurd sizes.
    """

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Check one pair."""
        item = dict(data)
        item["warnings"] = list(item.get("warnings", []))
        for key in FILE_KEYS:
            # Spacingd takes every key that starts with "fixed_" for metadata of "fixed" and fails, if this is there.
            if key in item:
                item[key].meta.pop("filename_or_obj", None)
        for role in ("fixed", "moving"):
            grid = Grid.of(item[role])
            if np.prod([float(size) for size in grid.shape]) > LARGEST_VOLUME:
                raise DataError(f"{role} image: {grid.shape} voxels are more than this program can handle")
            for kind in ("label", "mask"):
                other = item.get(f"{role}_{kind}")
                if other is not None and not Grid.of(other).same_as(grid, 0.01 * float(grid.spacing.min())):
                    raise DataError(
                        f"{role}_{kind}: its grid (shape {Grid.of(other).shape}) is not that of the {role} image "
                        f"(shape {grid.shape}); resample it to the image with nearest-neighbor interpolation"
                    )
            item["warnings"] += self._about_brain(role, item[role], item.get(f"{role}_mask"))
        for warning in item["warnings"]:
            logger.warning(warning)
        return item

    @staticmethod
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


class StripByMaskd(MapTransform):
    """Set an image to 0 outside of its mask; note where the fixed file has its brain.

    Holes in a mask (a lesion that should not count) are not cut out of the image, which would make edges: they are
    only left out of the likelihood.
    """

    def __init__(self, roles: Sequence[str] = ("fixed", "moving")) -> None:
        super().__init__(roles)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Strip one pair."""
        item = dict(data)
        for role in self.keys:
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

    Args:
        method: none, rigid, affine or auto.
        seed: of random sampling.

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


class CheckMovingd(Transform):
    """Refuse a pair whose moving image is not to be seen where the fixed one is.

    Raises:
        DataError: with both bounding boxes.
    """

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Check one pair."""
        item = dict(data)
        moving: MetaTensor = item["moving"]
        if not bool((moving.as_tensor() > 0).any()):
            fixed, file = (bounds_text(Grid.of(item[f"{role}_file"])) for role in ("fixed", "moving"))
            raise DataError(
                f"the moving brain (its image covers {file}) does not reach the fixed one ({fixed}); try --align affine"
            )
        return item
