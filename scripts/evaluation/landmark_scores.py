"""Experts' points against where samples put them: distance, and whether the covariances hold.

A folder has a CSV file `<scan>.csv` for each scan, with name, x, y, z in RAS mm of the scan. `raters.csv` beside them
may say how exact they are (name, landmark_sd_mm: standard deviation along each axis), and `frame.json` by how much each
scan was enlarged since (`enlarged`) and how exact its place is known (`map_error_mm`, root mean square in space).
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import chi2

from scripts.core.errors import DataError
from scripts.files.points import read_points
from scripts.posterior.posterior import Posterior

LANDMARK_SCORES = (
    "landmarks",  # how many both scans have
    "tre_before",  # mean distance after the alignment alone, mm
    "tre",  # mean distance of the mean field, mm
    "landmark_chi2",  # mean of eᵀC⁻¹e/3: 1 if the covariances are right
    "landmark_chi2_raters",  # the same with the raters' own error in C
    "landmarks_inside_95",  # share within the 95 % ellipsoid
    "landmarks_inside_95_raters",
)


class Marks(NamedTuple):
    """Points that two scans have in common."""

    fixed: np.ndarray  # (P, 3) RAS mm
    moving: np.ndarray
    variance: np.ndarray  # (P,) of the difference of both, along each axis, mm²


class LandmarkFolder:
    """Points of scans by their names; DataError for a folder that there is not."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        if not self.folder.is_dir():
            raise DataError(f"--landmarks_dir {folder}: there is no such folder")
        raters, frame = self.folder / "raters.csv", self.folder / "frame.json"
        self._raters: dict[str, float] = {}
        if raters.exists():
            with raters.open(encoding="utf-8") as file:
                self._raters = {row["name"]: float(row["landmark_sd_mm"]) for row in csv.DictReader(file)}
        self._frame = json.loads(frame.read_text(encoding="utf-8")) if frame.exists() else {}

    def marks(self, fixed: str, moving: str) -> Marks | None:
        """What both have; None if there is nothing."""
        paths = [self.folder / f"{name}.csv" for name in (fixed, moving)]
        if not all(path.exists() for path in paths):
            return None
        tables = [read_points(path) for path in paths]
        one, two = (dict(zip(table.names, table.ras, strict=True)) for table in tables)
        names = [name for name in one if name in two]
        if not names:
            return None
        variance = np.array([sum(self._variance(scan, name) for scan in (fixed, moving)) for name in names])
        return Marks(np.stack([one[name] for name in names]), np.stack([two[name] for name in names]), variance)

    def _variance(self, scan: str, name: str) -> float:
        known = self._frame.get(scan, {})
        own = self._raters.get(name, 0.0) * known.get("enlarged", 1.0)
        return own**2 + known.get("map_error_mm", 0.0) ** 2 / 3


class Errors(NamedTuple):
    """Of points, in the moving image's space."""

    before: np.ndarray  # (P, 3) mm, after the alignment alone
    after: np.ndarray  # (P, 3) mm, of the mean field
    covariance: np.ndarray  # (P, 3, 3) mm², of the samples


def landmark_errors(posterior: Posterior, marks: Marks) -> Errors:
    """Where the samples put the fixed person's points, and where the moving person's are."""
    space = posterior.space

    def places(points: np.ndarray) -> np.ndarray:
        return space.align(marks.fixed + space.displacement_at(points, marks.fixed))

    samples, weights = [], []
    for _, count, points in posterior.samples():
        samples.append(places(points.cpu().numpy()))
        weights.append(count)
    spread = np.stack(samples)
    share = np.array(weights) / sum(weights)
    spread = spread - np.einsum("k,kpc->pc", share, spread)
    covariance = np.einsum("k,kpc,kpd->pcd", share, spread, spread) * len(share) / max(len(share) - 1, 1)
    return Errors(
        space.align(marks.fixed) - marks.moving, places(posterior.mean.cpu().numpy()) - marks.moving, covariance
    )


def score_landmarks(posterior: Posterior, marks: Marks) -> dict[str, float]:
    """`LANDMARK_SCORES` of one pair."""
    errors = landmark_errors(posterior, marks)
    covariance = errors.covariance
    if posterior.calibration.points is not None:
        covariance = posterior.calibration.points.covariance(covariance)
    values = {
        "landmarks": float(len(marks.fixed)),
        "tre_before": float(np.linalg.norm(errors.before, axis=1).mean()),
        "tre": float(np.linalg.norm(errors.after, axis=1).mean()),
    }
    raters = marks.variance[:, None, None] * np.eye(3)
    for name, whole in (("", covariance), ("_raters", covariance + raters)):
        square = mahalanobis(errors.after, whole)
        values[f"landmark_chi2{name}"] = float(square.mean() / 3)
        values[f"landmarks_inside_95{name}"] = float((square <= chi2.ppf(0.95, 3)).mean())
    return values


def mahalanobis(errors: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """eᵀC⁻¹e of errors (P, 3) and covariances (P, 3, 3); infinite where there is no spread at all."""
    regular = covariance + 1e-12 * np.eye(3)
    return np.einsum("pc,pc->p", errors, np.linalg.solve(regular, errors[:, :, None])[:, :, 0])
