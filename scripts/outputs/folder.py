"""The folder of one result. Its files appear together: it is filled under another name and then renamed."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from scripts.core.atomic import PART, check_writable, part_of, put_in_place, writing
from scripts.core.errors import DataError

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
def result_folder(folder: Path, sources: Mapping[str, str], overwrite: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes its final name when everything is written.

    An earlier result of the same files is replaced; that of other files is not. Whatever is in the folder beside the
    registration's own files (:data:`OWN`) stays: what `apply` wrote there, `conditioned/`, a person's notes.
    It is of the earlier posterior still; a file that the new result lacks (labels, say) does not stay. What lies beside
    the result of another pair, which `overwrite` replaces, does not stay either.

    Args:
        sources: role to path of the files that the result is made of.

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
        put_in_place(part, folder, _others(folder, sources))
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


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write plain JSON."""
    with writing(path) as part:
        part.write_text(json.dumps(plain(content), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def plain(value: Any) -> Any:
    """What JSON has, with None for numbers that are none (NaN is not JSON)."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
