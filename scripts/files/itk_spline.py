"""Sampled fields as ITK's own B-spline transforms: exact everywhere, and a hundredth of a dense field's size.

A sampled field is a uniform cubic B-spline, and so is `itk::BSplineTransform`: the control points go over as they are,
with vectors in LPS mm. ITK's spline ends where its control points do, ours repeats the last one: rows are repeated
until the fixed image is covered. With detail, field and detail become one spline on the work grid.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from scripts.core.atomic import write_table
from scripts.core.errors import DataError
from scripts.core.grid import LPS, Grid
from scripts.files.itk import affine_part, domain, write_composite
from scripts.registration.space import PairSpace
from scripts.registration.spline import on_work_grid


def write_spline_transform(path: str | Path, control_points: np.ndarray, space: PairSpace) -> None:
    """Write φ(x) = A (x + u(x)) as an ITK composite of a B-spline and the alignment.

    The control points are those of u, in work voxels, shape [3, x, y, z].

    Raises:
        DataError: when the file cannot be written, or does not end in ``.h5``.
    """
    factor = space.factor
    if space.detail is not None:
        points = on_work_grid(torch.from_numpy(control_points), factor, space.work.shape)
        control_points, factor = (points + space.detail.cpu()).numpy(), 1
    padded, grid = _cover(control_points, space, factor)
    vectors = LPS[:3, :3] @ space.work.affine[:3, :3] @ padded.reshape(3, -1)
    # ITK: component by component, the first axis fastest.
    parameters = np.swapaxes(vectors.reshape(3, *grid.shape), 1, 3).astype(np.float64).ravel()
    spline = ("BSplineTransform_double_3_3", domain(grid), parameters)
    write_composite(path, [affine_part(space.alignment), spline])


WEIGHTS = "weights.csv"
COLUMNS = ("file", "proposal", "count", "weight")


def write_samples(folder: Path, samples: Iterable[tuple[int, int, np.ndarray]], space: PairSpace) -> list[Path]:
    """Write weighted samples as transforms, and their weights as a table.

    Args:
        folder: gets `sample_000.h5` … and `weights.csv` with the columns file, proposal, count, weight.
        samples: index of the proposal, how often it was resampled, control points [3, x, y, z] in work voxels.

    Returns:
        The files; the table last.
    """
    files, rows = [], []
    for number, (index, count, points) in enumerate(samples):
        files.append(folder / f"sample_{number:03d}.h5")
        write_spline_transform(files[-1], points, space)
        rows.append((files[-1].name, index, count))
    total = sum(count for _, _, count in rows)
    table = ((name, index, count, f"{count / total:.8g}") for name, index, count in rows)
    write_table(folder / WEIGHTS, COLUMNS, table)
    return [*files, folder / WEIGHTS]


def check_replaceable(folder: Path) -> None:
    """Only what :func:`write_samples` wrote may be replaced: DataError for folders with anything else."""
    try:
        header = (folder / WEIGHTS).read_text(encoding="utf-8").partition("\n")[0].strip()
    except (OSError, ValueError):
        header = ""
    if header != ",".join(COLUMNS):
        raise DataError(f"{folder} is no folder of samples (no {WEIGHTS} of ours); choose another --output_dir")
    for path in sorted(folder.iterdir()):
        if path.name != WEIGHTS and not path.match("sample_*.h5"):
            raise DataError(f"{folder} also holds {path.name}; move it away, or choose another --output_dir")


def _cover(control_points: np.ndarray, space: PairSpace, factor: int) -> tuple[np.ndarray, Grid]:
    """Control points repeated at the ends until the spline reaches over the fixed image, and their grid."""
    corners = np.array(np.meshgrid(*[(-0.5, size - 0.5) for size in space.fixed.shape], indexing="ij")).reshape(3, -1).T
    at = (space.work.to_indices(space.fixed.to_world(corners)) + 0.5) / factor - 0.5
    shape = np.array(control_points.shape[1:])
    # A cubic spline at t needs the control points floor(t) − 1 … floor(t) + 2; the field's own grid is always covered.
    low = np.maximum(1 - np.floor(np.minimum(at.min(0), -0.5)), 0).astype(int)
    high = np.maximum(np.floor(np.maximum(at.max(0), shape - 0.5)) + 3 - shape, 0).astype(int)
    padded = np.pad(control_points, [(0, 0), *zip(low, high, strict=True)], mode="edge")
    # Field voxel j is at factor (j + ½) − ½ of the work grid.
    to_work = np.diag([float(factor)] * 3 + [1.0])
    to_work[:3, 3] = 0.5 * factor - 0.5 - factor * low
    x, y, z = padded.shape[1:]
    return padded, Grid((x, y, z), space.work.affine @ to_work)
