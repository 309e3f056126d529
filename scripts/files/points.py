"""Points in space as CSV: read, and written with what the posterior says about them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.core.atomic import write_table
from scripts.core.errors import DataError, shorten
from scripts.core.grid import Grid, bounds_text
from scripts.evidence.point_files import SIGNS, read_table
from scripts.posterior.calibrated import PointErrors

logger = logging.getLogger(__name__)

CHI_95 = 7.815
"""95 % of χ² with three degrees of freedom."""


@dataclass
class Points:
    """Named points of the fixed space."""

    names: list[str]
    ras: np.ndarray  # (P, 3), mm
    inside: np.ndarray | None = None  # (P,) bool, whether each lies in the fixed image; None if nobody has looked


def read_points(path: str | Path, space: str = "RAS") -> Points:
    """Read a CSV file with the columns x, y, z (mm) and optionally name or label.

    Its numbers are RAS (nibabel, Slicer's display) or LPS (ITK, ANTs).

    Raises:
        DataError: when it cannot be read.
    """
    path = Path(path).expanduser()
    if space.upper() not in SIGNS:
        raise DataError(f"--points_space must be RAS or LPS, got {space!r}")
    columns, rows = read_table(path, "points")
    if not {"x", "y", "z"} <= set(columns):
        raise DataError(f"points {path}: expected the columns x, y, z (mm), got {', '.join(columns) or 'none'}")
    if not rows:
        raise DataError(f"points {path}: no points")
    values = []
    for number, row in enumerate(rows, start=2):
        try:
            values.append([float(row[axis]) for axis in "xyz"])
        except (TypeError, ValueError):
            raise DataError(f"points {path}, line {number}: x, y and z must be numbers") from None
    name = "name" if "name" in columns else "label"
    names = [row.get(name) or str(number) for number, row in enumerate(rows, start=1)]
    places = np.array(values)
    if not np.isfinite(places).all():
        raise DataError(f"points {path}: some coordinates are not finite")
    return Points(names, places * SIGNS[space.upper()])


def check_inside(points: Points, grid: Grid, space: str) -> None:
    """Note which points lie in the fixed image's field of view, to half a voxel; warn about those that do not.

    Outside, the field is continued by its value at the border: a guess, that its uncertainty does not know of.
    `space` is RAS or LPS, that of the file that the points came from.

    Raises:
        DataError: when none lies there, with a hint if they would in the other convention.
    """

    def held(ras: np.ndarray) -> np.ndarray:
        indices = grid.to_indices(ras)
        return np.all((indices >= -0.5) & (indices <= np.array(grid.shape) - 0.5), axis=1)

    points.inside = held(points.ras)
    outside = [name for name, inside in zip(points.names, points.inside, strict=True) if not inside]
    if len(outside) == len(points.names):
        other = "LPS" if space.upper() == "RAS" else "RAS"
        flips = bool(held(points.ras * [-1, -1, 1]).any())
        hint = f"; they would in {other}: --points_space {other}?" if flips else ""
        raise DataError(f"no point lies in the fixed image ({bounds_text(grid)}, RAS){hint}")
    if outside:
        logger.warning(
            "%d of %d points lie outside of the fixed image, where the field is only continued: %s",
            len(outside), len(points.names), shorten(outside),
        )  # fmt: skip


def write_points(
    points: Points,
    samples: np.ndarray,
    weights: Sequence[float],
    path: Path,
    mean: np.ndarray | None = None,
    errors: PointErrors | None = None,
) -> None:
    """Write where points of the fixed space lie in the moving space.

    Args:
        points: of the fixed space.
        samples: their places in the moving space under each sample, RAS mm, (K, P, 3).
        weights: of the samples, (K,).
        mean: places under the mean field, (P, 3); None for the samples' mean.
        errors: what the samples' covariance is multiplied by, as calibrated; None for nothing.
        path: CSV file. Columns: name; the point (RAS); mean place in RAS and in LPS; the covariance in mm² along RAS
            (that along LPS has the signs of xz and yz reversed); the radius that holds the true place with 95 %;
            whether the point lies in the fixed image's field of view (1 or 0).
    """
    share = np.asarray(weights, dtype=np.float64)
    share = share / share.sum()
    mean = np.einsum("k,kpc->pc", share, samples) if mean is None else mean
    centered = samples - mean
    errors = errors or PointErrors()
    covariance = errors.covariance(np.einsum("k,kpc,kpd->pcd", share, centered, centered))
    distances = errors.scale * np.linalg.norm(centered, axis=2)
    header = [
        "name", "x_ras", "y_ras", "z_ras", "mean_x_ras", "mean_y_ras", "mean_z_ras", "mean_x_lps", "mean_y_lps",
        "mean_z_lps", "cov_xx_mm2", "cov_xy_mm2", "cov_xz_mm2", "cov_yy_mm2", "cov_yz_mm2", "cov_zz_mm2",
        "radius_95_mm", "inside",
    ]  # fmt: skip
    rows = []
    for i, name in enumerate(points.names):
        order = distances[:, i].argsort()
        reached = np.searchsorted(share[order].cumsum(), 0.95 - 1e-12)
        radius = distances[order[min(reached, len(order) - 1)], i]
        radius = np.hypot(radius, math.sqrt(CHI_95) * errors.floor_mm)
        upper = covariance[i][np.triu_indices(3)]
        numbers = [*points.ras[i], *mean[i], *(mean[i] * [-1, -1, 1]), *upper, radius]
        inside = "" if points.inside is None else int(points.inside[i])
        rows.append([name, *(f"{value:.6g}" for value in numbers), inside])
    write_table(path, header, rows)
