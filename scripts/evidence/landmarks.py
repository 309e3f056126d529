"""Corresponding points that an expert marked: read from files, and as observations of the displacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from scripts.core.checked import Length, check
from scripts.core.errors import DataError, repeated, shorten
from scripts.evidence.point_files import SIGNS, read_markups, read_table
from scripts.inference.observations import Observations
from scripts.registration.space import PairSpace

COLUMNS = tuple(f"{role}_{axis}" for role in ("fixed", "moving") for axis in "xyz")


@dataclass
class Landmarks:
    """P points that are the same in both images."""

    names: list[str]
    fixed: np.ndarray  # RAS mm, (P, 3)
    moving: np.ndarray  # RAS mm, (P, 3)
    std: np.ndarray  # standard deviation of each of a point's three coordinates in the moving image, mm, (P,)

    def __len__(self) -> int:
        return len(self.names)

    def observations(self, space: PairSpace) -> Observations:
        """What they say about the field: three numbers each.

        The moving point is m = A(x + u(x)) + e with the alignment A and e ~ N(0, s²I) in mm of the moving image. So
        m − A (x + d(x)) = A₃ W z(x) + e, where d is the detail that all fields share, z(x) the spline of the control
        points in work voxels, and W the work grid's axes in mm: the rows of A₃W are the directions in which the
        displacement is seen.

        Raises:
            DataError: for a point outside of the region that the model has seen.
        """
        indices = space.work.to_indices(self.fixed)
        outside = ((indices < -0.5) | (indices > np.array(space.work.shape) - 0.5)).any(1)
        if outside.any():
            names = [f"{self.names[i]} {tuple(self.fixed[i].round(1).tolist())}" for i in np.flatnonzero(outside)]
            box = space.work.bounds.round().tolist()
            raise DataError(
                f"landmarks: {shorten(names)} of the fixed image, RAS mm, lie outside of the brain's box {box}; "
                "are fixed and moving exchanged, or RAS and LPS?"
            )
        matrix = space.alignment[:3, :3] @ space.work.affine[:3, :3]
        return Observations(
            torch.from_numpy(np.repeat((indices + 0.5) / space.factor - 0.5, 3, axis=0)),
            torch.from_numpy(np.tile(matrix, (len(self), 1))),
            torch.from_numpy((self.moving - space.align(self.fixed + space.detail_at(self.fixed))).ravel()),
            torch.from_numpy(np.repeat(self.std, 3)),
        )

    def distances(self, control_points: np.ndarray, space: PairSpace) -> np.ndarray:
        """How far a field [3, x, y, z] takes the fixed points from the moving ones, mm, (P,)."""
        moved = space.align(self.fixed + space.displacement_at(control_points, self.fixed))
        return np.linalg.norm(moved - self.moving, axis=1)


def read_landmarks(paths: str | Path | Sequence[str | Path], space: str = "RAS", std: float = 1.0) -> Landmarks:
    """Read corresponding points.

    Args:
        paths: a CSV file with the columns fixed_x, fixed_y, fixed_z, moving_x, moving_y, moving_z (mm) and optionally
            name and std (mm); or two markups files of 3D Slicer, fixed first, as a list or with a comma between.
        space: RAS or LPS of the numbers in a CSV file; markups files say it themselves.
        std: in mm, where the file has none.

    Raises:
        DataError: when something is wrong with them.
    """
    check("landmark_std", std, Length)
    if space.upper() not in SIGNS:
        raise DataError(f"--landmarks_space must be RAS or LPS, got {space!r}")
    names = _list(paths)
    if len(names) == 2:
        return _from_markups(names[0], names[1], std)
    if len(names) != 1 or names[0].lower().endswith(".json"):
        raise DataError(f"--landmarks: expected one CSV file or two .mrk.json files (fixed, moving), got {names}")
    return _from_csv(Path(names[0]).expanduser(), SIGNS[space.upper()], std)


def _list(paths: str | Path | Sequence[str | Path]) -> list[str]:
    if not isinstance(paths, str):
        return [str(paths)] if isinstance(paths, Path) else [str(path) for path in paths]
    # A comma may be part of a file's name.
    return [paths] if Path(paths).expanduser().is_file() else [part.strip() for part in paths.split(",")]


def _from_csv(path: Path, sign: np.ndarray, std: float) -> Landmarks:
    columns, rows = read_table(path, "landmarks")
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise DataError(f"landmarks {path}: no column {shorten(missing, 6)}; expected {', '.join(COLUMNS)}")
    if not rows:
        raise DataError(f"landmarks {path}: no points")
    values, deviations, names = [], [], []
    for number, row in enumerate(rows, start=2):
        names.append((row.get("name") or "").strip() or str(number - 1))
        own = (row.get("std") or "").strip()
        try:
            values.append([float(row[name]) for name in COLUMNS])
            deviations.append(float(own) if own else std)
        except (TypeError, ValueError):
            raise DataError(f"landmarks {path}, line {number}: coordinates and std must be numbers") from None
        if not np.isfinite([*values[-1], deviations[-1]]).all() or deviations[-1] <= 0:
            raise DataError(f"landmarks {path}, line {number}: coordinates must be finite, std positive")
    points = np.array(values)
    return Landmarks(names, points[:, :3] * sign, points[:, 3:] * sign, np.array(deviations))


def _from_markups(fixed: str, moving: str, std: float) -> Landmarks:
    (fixed_names, fixed_points), (names, points) = read_markups(fixed), read_markups(moving)
    by_name = not repeated(names) and sorted(names) == sorted(fixed_names)
    if len(names) != len(fixed_names):
        raise DataError(
            f"landmarks: {fixed} has {len(fixed_names)} points, {moving} has {len(names)}; they must correspond"
        )
    # Slicer numbers the points of every list alike; lists with the same labels may still be sorted differently.
    order = [names.index(name) for name in fixed_names] if by_name else list(range(len(names)))
    points = points[order]
    placed = np.isfinite(fixed_points).all(1) & np.isfinite(points).all(1)
    if not placed.any():
        raise DataError(f"landmarks {fixed}, {moving}: no point is placed in both")
    kept = np.flatnonzero(placed)
    return Landmarks([fixed_names[i] for i in kept], fixed_points[kept], points[kept], np.full(len(kept), float(std)))
