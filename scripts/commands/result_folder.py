"""The files of one registration. They appear together: a folder is filled under another name and then renamed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from scipy.ndimage import affine_transform

from scripts.core.atomic import PART, check_writable, part_of, put_in_place, writing
from scripts.core.errors import DataError
from scripts.core.grid import Grid, affine_displacement
from scripts.files.file_order import copy_rounded, copy_volume
from scripts.files.inverse import invert
from scripts.files.itk import write_displacement, write_inverse_transform, write_transform
from scripts.files.nifti import write_volume
from scripts.files.writers import Writers
from scripts.posterior.label_volumes import write_volumes
from scripts.posterior.result import RegistrationResult
from scripts.posterior.stored import StoredPosterior, save_posterior
from scripts.report.color_table import write_color_table
from scripts.report.findings import find
from scripts.report.verdict import verdict

DIAGNOSTICS = "diagnostics.json"
COLORS = "labels.ctbl"
OWN = frozenset(
    (
        "warped.nii.gz", "uncertainty_std.nii.gz", "jacobian.nii.gz", "labels.nii.gz", "label_probability.nii.gz",
        "label_entropy.nii.gz", "displacement.nii.gz", "transform.h5", "inverse_displacement.nii.gz",
        "inverse_transform.h5", "posterior.pt", "volumes.csv", "modes", "report.html", COLORS, DIAGNOSTICS,
    )
)  # fmt: skip
"""All that a registration may write into its folder, labels or none, report or none."""


@contextmanager
def result_folder(
    folder: Path, sources: Mapping[str, str], overwrite: bool = False, keep: bool = False
) -> Iterator[Path]:
    """A folder to fill, which takes its final name when everything is written.

    An earlier result of the same files is replaced; that of other files is not. With `keep`, whatever is in the folder
    beside the registration's own files (:data:`OWN`) stays: what `apply` wrote there, `conditioned/`, a person's notes.
    It is of the earlier posterior still; a file that the new result lacks (labels, say) does not stay. What lies beside
    the result of another pair, which `overwrite` replaces, does not stay either.

    Args:
        folder: the final name.
        sources: role to path of the files that the result is made of.
        overwrite: replace any earlier result.
        keep: let files stay that are not of the result itself.

    Raises:
        DataError: when the folder holds something else, or cannot be written.
    """
    check_folder(folder, sources, overwrite)
    part = part_of(folder)
    try:
        part.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"cannot write to {folder.parent}: {error.strerror or error}") from error
    try:
        yield part
        put_in_place(part, folder, _others(folder, sources) if keep else ())
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _others(folder: Path, sources: Mapping[str, str]) -> list[str]:
    """Names of what lies in a folder beside the files of a registration; none if that was of another pair."""
    if not folder.is_dir():
        return []
    with suppress(OSError, ValueError, KeyError, AttributeError):
        earlier = json.loads((folder / DIAGNOSTICS).read_text(encoding="utf-8"))["files"]
        if any(earlier.get(role) != sources[role] for role in ("fixed", "moving")):
            return []
    names = (path.name for path in folder.iterdir())
    return sorted(name for name in names if name not in OWN and not name.startswith(PART))


def check_folder(folder: Path, sources: Mapping[str, str], overwrite: bool = False) -> None:
    """See :func:`result_folder`; to be called before the work, not after it."""
    check_writable(folder.parent)
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DataError(f"{folder} is a file; choose another --output_dir")
    if overwrite or not any(folder.iterdir()):
        return
    try:
        earlier = json.loads((folder / DIAGNOSTICS).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        raise DataError(
            f"{folder} exists and is not a result of `run inference`; choose another --output_dir"
        ) from None
    for role in ("fixed", "moving"):
        if earlier.get(role) != sources[role]:
            raise DataError(
                f"{folder} holds the result of another pair ({role}: {earlier.get(role)}); "
                "choose another --output_dir, or say --overwrite true"
            )


def write_result(stored: StoredPosterior, result: RegistrationResult, folder: Path, header: Any = None) -> None:
    """Write all files of a registration but the report and `diagnostics.json`, which also say how long this took.

    Args:
        stored: the posterior.
        result: what it says. Its diagnostics get the inverse's errors.
        folder: where, exists.
        header: the fixed file's NIfTI header, whose codes the volumes keep.
    """
    grid, alignment = result.grid, result.alignment
    inverse = invert(result.displacement, grid)
    result.diagnostics["inverse_error_mm"] = inverse.mean_error_mm
    result.diagnostics["inverse_largest_error_mm"] = inverse.max_error_mm
    volumes = result.labels.volumes if result.labels is not None else []
    result.diagnostics["judgement"] = verdict(result.diagnostics, find(result), result.warnings, volumes).sentence
    with Writers() as write:
        _write_maps(write, result, folder, header)
        write(write_displacement, folder / "displacement.nii.gz", result.displacement, grid, alignment)
        write(write_transform, folder / "transform.h5", result.displacement, grid, alignment)
        total = total_inverse(inverse.field, grid, alignment, stored.space.moving)
        write(write_displacement, folder / "inverse_displacement.nii.gz", total, stored.space.moving)
        write(write_inverse_transform, folder / "inverse_transform.h5", inverse.field, grid, alignment)
        for number, mode in enumerate(result.modes, start=1):
            name = folder / "modes" / f"mode{number}"
            write(write_volume, name.with_name(f"{name.name}_warped.nii.gz"), mode.warped, grid, header=header)
            write(write_transform, name.with_name(f"{name.name}_transform.h5"), mode.displacement, grid, alignment)
        write(save_posterior, stored, folder / "posterior.pt")
    if result.labels is not None:
        write_volumes(result.labels.volumes, folder / "volumes.csv")
        write_color_table(result.labels.volumes, folder / COLORS)
    if result.modes:
        shares = [
            {"mode": number, "weight": mode.weight, "proposal": mode.sample}
            for number, mode in enumerate(result.modes, start=1)
        ]
        distinct = {key: result.diagnostics.get(f"modes_{key}") for key in ("distinct", "p_value")}
        write_json({"modes": shares, **distinct}, folder / "modes" / "modes.json")


def _write_maps(write: Writers, result: RegistrationResult, folder: Path, header: Any) -> None:
    """The volumes on the fixed grid."""

    def volume(name: str, values: np.ndarray, description: str = "") -> None:
        write(write_volume, folder / name, values, result.grid, header=header, description=description)

    # More digits are noise, and took twice the time and space to compress.
    std = np.empty((*result.grid.shape, 4), np.float32, order="F")
    for channel, values in enumerate((result.std, *result.std_axes)):
        copy_rounded(values, std[..., channel])
    jacobian = np.empty((*result.grid.shape, 2), np.float32, order="F")
    copy_rounded(result.log_jacobian, jacobian[..., 0])
    copy_volume(result.fold_probability, jacobian[..., 1])
    volume("warped.nii.gz", result.warped)
    volume("uncertainty_std.nii.gz", std, "std mm: all together, R, A, S")
    volume("jacobian.nii.gz", jacobian, "log-Jacobian without alignment, folds")
    if result.labels is not None:
        volume("labels.nii.gz", result.labels.label)
        volume("label_probability.nii.gz", result.labels.probability)
        volume("label_entropy.nii.gz", result.labels.entropy, "nats")


def total_inverse(field: np.ndarray, grid: Grid, alignment: np.ndarray, moving: Grid) -> np.ndarray:
    """φ⁻¹(y) − y at the moving grid's voxels y: the inverse alignment first, then the inverse field there.

    On the moving grid, because φ⁻¹ takes points of the moving image: where the two files lie far from each other, the
    fixed grid has none of them, and outside of a field others take it for zero.

    Args:
        field: inverse of the displacement without the alignment, [3, X, Y, Z], RAS mm.
        grid: of the fixed image.
        alignment: from fixed to moving RAS mm, (4, 4).
        moving: grid of the moving image, (X', Y', Z').

    Returns:
        shape [3, X', Y', Z'], RAS mm.
    """
    if np.array_equal(alignment, np.eye(4)) and moving.same_as(grid, 0.0):
        return field
    back = np.linalg.inv(alignment)
    between = np.linalg.inv(grid.affine) @ back @ moving.affine
    moved = [
        affine_transform(part, between[:3, :3], between[:3, 3], moving.shape, order=1, mode="nearest") for part in field
    ]
    return np.stack(moved).astype(np.float32) + affine_displacement(moving, back)


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Plain JSON, with null for numbers that are none (NaN is not JSON)."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(key): clean(part) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [clean(part) for part in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        return value

    with writing(path) as part:
        part.write_text(json.dumps(clean(content), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
