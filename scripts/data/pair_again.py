"""The files of a pair that was registered before, prepared again: the alignment and the work grid are known."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, CopyItemsd, Orientationd, ResampleToMatchd, Transform

from scripts.alignment.align import Alignment, apply_alignment
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.core.pair_keys import FILE_KEYS
from scripts.data.antialias import Antialiasd
from scripts.data.fine import KeepFined, SampleFined
from scripts.data.loading import IntegerLabeld, LoadVolumed, ScaleBraind
from scripts.data.pair_input import CheckPaird, StripByMaskd
from scripts.data.transforms import AXIS_LABELS, PlainCompose, spacing_transform
from scripts.registration.space import PairSpace


def prepare_again(space: PairSpace, known: Mapping[str, str], files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Load and prepare the files of a registration once more.

    Args:
        space: of the registration.
        known: paths of its files by role.
        files: paths by role that replace those.

    Returns:
        The item as :func:`~scripts.data.pair_input.pair_input_transforms` made it.

    Raises:
        DataError: for files that are not known, not there, or others.
    """
    files = files or {}
    named = {key: path for key, path in {**known, **files}.items() if key in FILE_KEYS}
    for role in ("fixed", "moving"):
        if role not in named:
            raise DataError(f"posterior: it does not say where the {role} image is; name it with --{role}")
        if not Path(named[role]).expanduser().exists():
            raise DataError(f"{role} image {named[role]}: not there any more; name it with --{role}")
    # A label map that has gone away must not stop what does not need it, unless it was asked for. A mask that has gone
    # away must: without it the images would be prepared otherwise than for the registration.
    paths = {
        key: str(Path(path).expanduser())
        for key, path in named.items()
        if key in files or not key.endswith("label") or Path(path).exists()
    }
    fine = space.detail is not None
    return dict(pair_again_transforms(space.fixed, space.moving, space.work, space.alignment, fine=fine)(paths))


def pair_again_transforms(
    fixed: Grid, moving: Grid, work: Grid, alignment: np.ndarray, percentile: float = 99.8, fine: bool = False
) -> Compose:
    """The transforms of :func:`~scripts.data.pair_input.pair_input_transforms`, with what they found out before.

    Args:
        fixed: grid of the fixed file.
        moving: grid of the moving file.
        work: the work grid.
        alignment: from fixed to moving RAS mm, (4, 4).
        percentile: see :class:`~scripts.data.loading.ScaleBraind`.
        fine: also the images of twice the resolution, see :mod:`~scripts.data.fine`.
    """
    images, on_work = ("fixed", "moving"), ("fixed", "fixed_mask")
    pixdim = [round(float(edge), 6) for edge in work.spacing]
    axcodes = "".join(nib.orientations.aff2axcodes(work.affine))
    return PlainCompose(
        [
            LoadVolumed(FILE_KEYS, allow_missing_keys=True),
            SameGridd({"fixed": fixed, "moving": moving}),
            CheckPaird(),
            CopyItemsd(keys=images, names=("fixed_file", "moving_file")),
            StripByMaskd(),
            ScaleBraind(images, percentile),
            KnownAlignmentd(alignment, work),
            *([KeepFined(pixdim[0])] if fine else []),
            Antialiasd(images, pixdim[0]),
            Orientationd(on_work, axcodes=axcodes, labels=AXIS_LABELS, allow_missing_keys=True),
            spacing_transform(on_work, pixdim, ["bilinear", "nearest"]),
            ResampleToMatchd(
                (*images, "fixed_mask"), key_dst="work", mode=("bilinear", "bilinear", "nearest"),
                padding_mode="zeros", dtype=np.float32, allow_missing_keys=True,
            ),
            *([SampleFined()] if fine else []),
            IntegerLabeld(("fixed_label", "moving_label"), allow_missing_keys=True),
        ]
    )  # fmt: skip


class SameGridd(Transform):
    """Refuse a file that is not the one that was registered.

    Raises:
        DataError: when it lies on another grid.
    """

    def __init__(self, grids: Mapping[str, Grid]) -> None:
        self.grids = grids

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Check one pair."""
        for role, grid in self.grids.items():
            found = Grid.of(data[role])
            if not found.same_as(grid, 0.01 * float(grid.spacing.min())):
                raise DataError(
                    f"{role} image: its grid (shape {found.shape}) is not that of the image that was registered "
                    f"(shape {grid.shape}); name the right file with --{role}"
                )
        return dict(data)


class KnownAlignmentd(Transform):
    """Put the moving image where the alignment says, and an empty `work` volume on the work grid."""

    def __init__(self, matrix: np.ndarray, work: Grid) -> None:
        self.matrix, self.work = matrix, work

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Align one pair."""
        item = dict(data)
        moved = not np.allclose(self.matrix, np.eye(4))
        description = "Aligned as in the registration." if moved else "Not aligned, as in the registration."
        item["alignment"] = Alignment(self.matrix, "affine" if moved else "none", description, np.nan, np.nan)
        item["moving"] = apply_alignment(item["moving"], self.matrix)
        item["work"] = MetaTensor(torch.zeros(1, *self.work.shape), affine=torch.from_numpy(self.work.affine.copy()))
        return item
