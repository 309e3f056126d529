"""Points in space as CSV: read, and written with what the posterior says about them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.data.errors import DataError
from scripts.io.atomic import atomic_path


@dataclass
class Points:
    """Named points of the fixed space.

    Attributes:
        names: one for each.
        ras: (P, 3), mm.
    """

    names: list[str]
    ras: np.ndarray


def read_points(path: str | Path, space: str = "RAS") -> Points:
    """Read a CSV file with the columns x, y, z (mm) and optionally name or label.

    Args:
        path: the file.
        space: RAS (nibabel, Slicer's display) or LPS (ITK, ANTs) of the numbers in it.

    Raises:
        DataError: when it cannot be read.
    """
    path = Path(path).expanduser()
    if space.upper() not in ("RAS", "LPS"):
        raise DataError(f"--points_space must be RAS or LPS, got {space!r}")
    if not path.is_file():
        raise DataError(f"points {path}: the file does not exist")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        columns = {column.strip().lower(): column for column in reader.fieldnames or [] if column}
        if not {"x", "y", "z"} <= set(columns):
            raise DataError(f"points {path}: expected the columns x, y, z (mm), got {', '.join(columns) or 'none'}")
        rows = list(reader)
    if not rows:
        raise DataError(f"points {path}: no points")
    values = []
    for number, row in enumerate(rows, start=2):
        try:
            values.append([float(row[columns[axis]]) for axis in "xyz"])
        except (TypeError, ValueError):
            raise DataError(f"points {path}, line {number}: x, y and z must be numbers") from None
    name = columns.get("name") or columns.get("label")
    names = [row[name] if name and row[name] else str(i + 1) for i, row in enumerate(rows)]
    ras = np.array(values)
    if not np.isfinite(ras).all():
        raise DataError(f"points {path}: some coordinates are not finite")
    return Points(names, ras * [-1, -1, 1] if space.upper() == "LPS" else ras)


def write_points(points: Points, samples: np.ndarray, weights: Sequence[float], path: Path) -> None:
    """Write where points of the fixed space lie in the moving space.

    Args:
        points: of the fixed space.
        samples: their places in the moving space under each sample, RAS mm, (K, P, 3).
        weights: of the samples, (K,).
        path: CSV file. Columns: name; the point (RAS); mean place in RAS and in LPS; the covariance in mm² along RAS
            (that along LPS has the signs of xz and yz reversed); the radius that holds the true place with 95 %.
    """
    share = np.asarray(weights, dtype=np.float64)
    share = share / share.sum()
    mean = np.einsum("k,kpc->pc", share, samples)
    centered = samples - mean
    covariance = np.einsum("k,kpc,kpd->pcd", share, centered, centered)
    distances = np.linalg.norm(centered, axis=2)
    header = [
        "name", "x_ras", "y_ras", "z_ras", "mean_x_ras", "mean_y_ras", "mean_z_ras", "mean_x_lps", "mean_y_lps",
        "mean_z_lps", "cov_xx_mm2", "cov_xy_mm2", "cov_xz_mm2", "cov_yy_mm2", "cov_yz_mm2", "cov_zz_mm2",
        "radius_95_mm",
    ]  # fmt: skip
    with atomic_path(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for i, name in enumerate(points.names):
            order = distances[:, i].argsort()
            reached = np.searchsorted(share[order].cumsum(), 0.95 - 1e-12)
            radius = distances[order[min(reached, len(order) - 1)], i]
            c = covariance[i]
            numbers = [
                *points.ras[i], *mean[i], *(mean[i] * [-1, -1, 1]), c[0, 0], c[0, 1], c[0, 2], c[1, 1], c[1, 2],
                c[2, 2], radius,
            ]  # fmt: skip
            writer.writerow([name, *(f"{value:.6g}" for value in numbers)])
