"""A pair of images as everything that samples takes it: on the work grid, and how that lies in the files' space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor

from scripts.core.grid import Grid
from scripts.core.pair_keys import fine_key
from scripts.registration.space import PairSpace


@dataclass(frozen=True, eq=False)
class PairImages:
    """One pair.

    Attributes:
        fixed: on the work grid, [1, 1, X, Y, Z], in [0, 1].
        moving: the same shape.
        space: the grids; without detail.
        mask: weights of the fixed image's voxels in the likelihood, the same shape; None for all alike.
        fine: `fixed`, `moving`, `fixed_mask` at twice the resolution, [1, 1, 2X, 2Y, 2Z]; empty where files have none.
        names: of the moving and the fixed image.
        files: paths by role; empty for images that are from nowhere.
        moving_label: label values on the moving file's grid, [X', Y', Z'], which evidence about structures needs.
        on_files: the fixed and the moving file's own volumes, [X, Y, Z] and [X', Y', Z'], for local weights.
    """

    fixed: Tensor
    moving: Tensor
    space: PairSpace
    mask: Tensor | None = None
    fine: Mapping[str, Tensor] = field(default_factory=dict)
    names: tuple[str, str] = ("moving", "fixed")
    files: Mapping[str, str] = field(default_factory=dict)
    moving_label: np.ndarray | None = None
    on_files: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of_item(cls, item: Mapping[str, Any], factor: int, device: torch.device | str = "cpu") -> Self:
        """A pair of files, as :func:`~scripts.data.pair_input.pair_input_transforms` has prepared it.

        Args:
            item: the prepared pair; `fixed_name`, `moving_name` and `files` may be missing.
            factor: work voxels along the edge of a field voxel.

        Raises:
            DataError: for a fixed image whose axes are not perpendicular.
        """

        def volume(key: str) -> Tensor:
            return _plain(item[key])[None].to(device)

        fixed, moving, work = (Grid.of(item[key]) for key in ("fixed_file", "moving_file", "fixed"))
        space = PairSpace(fixed, moving, work, item["alignment"].matrix, factor)
        space.check()
        fine = {key: volume(fine_key(key)) for key in ("fixed", "moving", "fixed_mask") if fine_key(key) in item}
        names = (str(item.get("moving_name", "moving")), str(item.get("fixed_name", "fixed")))
        label = item["moving_label"].as_tensor()[0].numpy() if "moving_label" in item else None
        mask = volume("fixed_mask") if "fixed_mask" in item else None
        files = dict(item.get("files", {}))
        on_files = (_plain(item["fixed_file"])[0], _plain(item["moving_file"])[0])
        return cls(volume("fixed"), volume("moving"), space, mask, fine, names, files, label, on_files)

    @classmethod
    def on_one_grid(
        cls, moving: Tensor, fixed: Tensor, factor: int = 2, names: tuple[str, str] = ("moving", "fixed")
    ) -> Self:
        """Two images that are compared voxel by voxel, as trainings have them: [1, 1, X, Y, Z] each."""
        affine = fixed.affine.reshape(-1, 4, 4)[0].numpy() if isinstance(fixed, MetaTensor) else np.eye(4)
        grid = Grid(tuple(fixed.shape[2:]), affine)  # type: ignore[arg-type]
        space, on_files = PairSpace(grid, grid, grid, factor=factor), (_plain(fixed)[0, 0], _plain(moving)[0, 0])
        return cls(_plain(fixed), _plain(moving), space, names=names, on_files=on_files)


def _plain(volume: Tensor) -> Tensor:
    """Without MONAI's metadata, which every operation would copy."""
    return volume.as_tensor() if isinstance(volume, MetaTensor) else volume
