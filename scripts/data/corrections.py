"""A label map of the fixed image that an expert has corrected, and which of its structures count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from scripts.core.errors import DataError
from scripts.core.grid import Grid, check_grid
from scripts.data.loading import LoadVolumed
from scripts.evidence.knowledge import Correction


def read_correction(
    path: str | Path, grid: Grid, structures: Sequence[int] = (), folder: Path | None = None, std: float = 1.0
) -> Correction:
    """Read a corrected label map.

    Args:
        grid: of the fixed image.
        structures: labels that count; without any, those that differ from `labels.nii.gz` of the result in `folder`,
            or, where there is none, all.
        folder: of the registration's result.
        std: of the corrected outlines, mm.

    Raises:
        DataError: for a map on another grid, an empty one, or one in which nothing was corrected.
    """
    corrected = _label_map(path, "corrected_label", grid)
    chosen = [int(value) for value in structures]
    return Correction(corrected, tuple(chosen or _changed(corrected, folder, grid)), std, demanded=bool(chosen))


def _changed(corrected: np.ndarray, folder: Path | None, grid: Grid) -> list[int]:
    """The labels of a corrected map that differ from those of the result in `folder`; all where there is no result."""
    values = [int(value) for value in np.unique(corrected) if value != 0]
    if not values:
        raise DataError("corrected_label: the map is empty, all values are 0")
    before = None if folder is None else folder / "labels.nii.gz"
    if before is None or not before.exists():
        return values
    propagated = _label_map(before, "labels", grid)
    changed = [value for value in values if ((corrected == value) != (propagated == value)).any()]
    if not changed:
        raise DataError(f"corrected_label: no structure differs from {before}; nothing was corrected")
    return changed


def _label_map(path: str | Path, role: str, grid: Grid) -> np.ndarray:
    volume = LoadVolumed((role,))({role: str(Path(path).expanduser())})[role]
    check_grid(f"{role} {path}", Grid.of(volume), grid, "the fixed image")
    return volume.as_tensor()[0].round().to(torch.int32).numpy()
