"""Files of points: tables (CSV), and 3D Slicer's markups (`.mrk.json`)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from scripts.core.errors import DataError

SIGNS = {"LPS": np.array([-1.0, -1.0, 1.0]), "RAS": np.ones(3)}
"""From the file's coordinates to RAS. Slicer writes LPS, and the format's default is LPS."""


def read_table(path: Path, what: str) -> tuple[list[str], list[dict[str, str]]]:
    """The columns of a CSV file, in lower case, and its rows; in a DataError it is called `what`."""
    if not path.is_file():
        raise DataError(f"{what} {path}: the file does not exist")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [column.strip().lower() for column in reader.fieldnames or []]
            reader.fieldnames = columns
            return [column for column in columns if column], list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{what} {path}: not a CSV file ({error})") from error


def read_markups(path: str | Path) -> tuple[list[str], np.ndarray]:
    """Read the points of a markups file, whatever their kind (point list, line, curve …).

    The file's documented structure: `markups` is a list, each of its members has a `coordinateSystem` (LPS if it is
    not there) and `controlPoints` with `label`, `position` and `positionStatus`.

    Returns:
        Labels, and positions in RAS mm, (P, 3). A point that is not placed (its status is not `defined`) has NaN, so
        that the points of two files can still be told by their order.

    Raises:
        DataError: when it cannot be read or has no points.
    """
    path = Path(path).expanduser()
    what = f"landmarks {path}"
    if not path.is_file():
        raise DataError(f"{what}: the file does not exist")
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{what}: not a JSON file ({error})") from error
    markups = content.get("markups") if isinstance(content, dict) else None
    if not isinstance(markups, list) or not markups or not all(isinstance(markup, dict) for markup in markups):
        raise DataError(f"{what}: no 'markups' in it; expected a markups file (.mrk.json) of 3D Slicer")
    labels: list[str] = []
    positions: list[np.ndarray] = []
    for markup in markups:
        system = str(markup.get("coordinateSystem", "LPS")).upper()
        if system not in SIGNS:
            raise DataError(f"{what}: coordinateSystem must be LPS or RAS, got {system!r}")
        units = markup.get("coordinateUnits", "mm")
        units = units.get("code") if isinstance(units, dict) else units
        if units not in (None, "mm", "[mm]"):
            raise DataError(f"{what}: coordinateUnits must be mm, got {units!r}")
        for number, point in enumerate(markup.get("controlPoints") or [], start=1):
            labels.append(str(point.get("label") or number) if isinstance(point, dict) else str(number))
            positions.append(_position(point, f"{what}, point {labels[-1]}") * SIGNS[system])
    if not positions:
        raise DataError(f"{what}: no points in it")
    return labels, np.stack(positions)


def _position(point: Any, what: str) -> np.ndarray:
    if not isinstance(point, dict):
        raise DataError(f"{what}: expected an object with a position")
    if point.get("positionStatus", "defined") != "defined":
        return np.full(3, np.nan)
    try:
        values = np.array([float(value) for value in point["position"]])
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{what}: its position must be three numbers") from None
    if values.shape != (3,) or not np.isfinite(values).all():
        raise DataError(f"{what}: its position must be three finite numbers, got {point['position']}")
    return values
