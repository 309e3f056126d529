"""The files of a pair that was registered before, prepared again: the alignment and the work grid are known."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, ResampleToMatchd

from scripts.alignment.align import Alignment, apply_alignment
from scripts.core.errors import DataError
from scripts.core.grid import Grid, check_grid
from scripts.core.pair_keys import FILE_KEYS
from scripts.data.loading import LoadVolumed
from scripts.data.pair_input import preparation
from scripts.data.resolution import IMAGES
from scripts.data.transforms import PlainCompose
from scripts.registration.space import PairSpace

logger = logging.getLogger(__name__)


def prepare_again(space: PairSpace, known: Mapping[str, str], files: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Load and prepare the files of a registration once more.

    Args:
        known: paths of its files by role.
        files: paths by role that replace those.

    Returns:
        The item as :func:`~scripts.data.pair_input.pair_input_transforms` made it.

    Raises:
        DataError: for files that are not known, not there, or others.
    """
    files = files or {}
    named = {key: path for key, path in {**known, **files}.items() if key in FILE_KEYS}
    for role in IMAGES:
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
    return dict(pair_again_transforms(space)(paths))


def registered_images(
    space: PairSpace, known: Mapping[str, str], files: Mapping[str, str] | None = None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """The fixed and the moving file's volumes, [X, Y, Z] and [X', Y', Z']; None, with a warning, if they are gone.

    Raises:
        DataError: for files that cannot be read, or others than those that were registered.
    """
    named = {**known, **(files or {})}
    paths = {role: str(Path(named[role]).expanduser()) for role in IMAGES if role in named}
    if len(paths) < len(IMAGES) or not all(Path(path).exists() for path in paths.values()):
        logger.warning(
            "The images that were registered are not there any more, so all samples count alike in the probabilities; "
            "name them with --fixed and --moving."
        )
        return None
    data = check_grids(LoadVolumed(IMAGES)({role: path for role, path in paths.items()}), space)  # noqa: C416
    fixed, moving = (data[role].as_tensor()[0] for role in IMAGES)
    return fixed, moving


def pair_again_transforms(space: PairSpace) -> Compose:
    """Those of :func:`~scripts.data.pair_input.pair_input_transforms`, with what they found out before."""
    pixdim = round(float(space.work.spacing[0]), 6)
    to_work = ResampleToMatchd(
        (*IMAGES, "fixed_mask"), key_dst="work", mode=("bilinear", "bilinear", "nearest"), padding_mode="zeros",
        dtype=np.float32, allow_missing_keys=True,
    )  # fmt: skip
    return PlainCompose(
        [
            LoadVolumed(FILE_KEYS, allow_missing_keys=True),
            partial(check_grids, space=space),
            *preparation(partial(align_as_before, space=space), pixdim, [to_work], fine=space.detail is not None),
        ]
    )


def check_grids(data: Mapping[Hashable, Any], space: PairSpace) -> Mapping[Hashable, Any]:
    """Refuse files that are not those that were registered. Raises DataError when one lies on another grid."""
    for role, grid in (("fixed", space.fixed), ("moving", space.moving)):
        advice = f"; name the right file with --{role}"
        check_grid(f"{role} image", Grid.of(data[role]), grid, "the image that was registered", advice)
    return data


def align_as_before(data: Mapping[Hashable, Any], space: PairSpace) -> dict[Hashable, Any]:
    """Put the moving image where the alignment says, and an empty `work` volume on the work grid."""
    matrix, work = space.alignment, space.work
    moved = not np.allclose(matrix, np.eye(4))
    description = "Aligned as in the registration." if moved else "Not aligned, as in the registration."
    return {
        **data,
        "alignment": Alignment(matrix, "affine" if moved else "none", description),
        "moving": apply_alignment(data["moving"], matrix),
        "work": MetaTensor(torch.zeros(1, *work.shape), affine=torch.from_numpy(work.affine.copy())),
    }
