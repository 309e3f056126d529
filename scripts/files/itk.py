"""Transforms and images for ITK, and so for SimpleITK, ANTs and 3D Slicer.

Inside, a displacement field is an array [3, X, Y, Z] of RAS vectors in mm. Together with an alignment A, a matrix from
fixed to moving RAS mm, it maps points of the fixed image to the moving one, φ(x) = A (x + d(x)), which is what ITK's
resampler asks for. ITK counts in LPS, and its arrays' first axis is the slowest.

Two files hold the same map. The NIfTI file has the whole of φ as displacements, (X, Y, Z, 1, 3) with intent 1007; a
4-D file is not read as a transform. The HDF5 file is an ITK composite of the field and the alignment.

SimpleITK's own writer makes HDF5 files of 165 MB for a field of 160×192×224: double precision, not compressed. Here
the field is in single precision, rounded to 1/4096 mm and compressed, which takes 37 MB (64 MB without rounding); ITK's
reader accepts either precision and inflates by itself.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py  # type: ignore[import-untyped]
import numpy as np

from scripts.core.atomic import writing
from scripts.core.errors import DataError
from scripts.core.grid import LPS, Grid
from scripts.files.compression import deflated
from scripts.files.file_order import copy_rounded
from scripts.files.nifti import save_image

VECTOR_INTENT = 1007
_CHUNK = 2**16
"""Numbers that are compressed together."""


def total_displacement(field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None) -> np.ndarray:
    """Displacement of the whole transform, A (x + d(x)) − x, shape [3, X, Y, Z], RAS mm, float32.

    Args:
        field: d, shape [3, X, Y, Z], RAS mm.
        alignment: A, shape (4, 4), from fixed to moving RAS mm; None for the identity.

    Raises:
        ValueError: when shapes do not fit, or the alignment has no inverse.
    """
    field = _checked(field, grid)
    if alignment is None:
        return field
    matrix = _checked_alignment(alignment)
    # A (x + d) − x = A₃ d + (A₃ − I) x + t, and x is linear in the indices: the last two terms are a sum over axes.
    linear = matrix[:3, :3] - np.eye(3)
    slopes, offset = linear @ grid.affine[:3, :3], linear @ grid.affine[:3, 3] + matrix[:3, 3]
    total = np.tensordot(matrix[:3, :3].astype(np.float32), field, axes=1)
    x, y, z = np.ogrid[tuple(slice(size) for size in grid.shape)]
    for component in range(3):
        along_x, along_y, along_z = slopes[component]
        total[component] += along_x * x + (along_y * y + (along_z * z + offset[component]))
    return total


def write_displacement(path: str | Path, field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None) -> None:
    """Write a :func:`total_displacement` as a NIfTI file: (X, Y, Z, 1, 3), intent 1007, LPS vectors in mm.

    ITK cannot read NIfTI files of sheared grids, these or images; the composite has no such limit.

    Raises:
        DataError: when the file cannot be written.
    """
    data = np.empty((*grid.shape, 1, 3), np.float32, order="F")
    _put_lps(total_displacement(field, grid, alignment), data[:, :, :, 0])
    save_image(path, data, grid, intent=VECTOR_INTENT, description="displacement, LPS mm, pull-back")


def write_transform(path: str | Path, field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None) -> None:
    """Write φ(x) = A (x + d(x)) as an ITK composite, for resampling the moving image on the fixed one's grid.

    For field, grid and alignment see :func:`total_displacement`. ITK takes displacements outside of the grid as 0.

    Raises:
        DataError: when the file cannot be written, or does not end in ``.h5``.
    """
    # ITK applies what was added last first.
    write_composite(path, [affine_part(alignment), _field_part(field, grid)])


def write_inverse_transform(path: str | Path, inverse_field: np.ndarray, grid: Grid, alignment: np.ndarray) -> None:
    """Write φ⁻¹(y) = z + e(z), z = A⁻¹ y, as an ITK composite, for resampling the fixed image on the moving one's grid.

    The inverse field e, [3, X, Y, Z] in RAS mm, is that of :func:`~scripts.files.inverse.invert`, on the fixed image's
    grid; A is as in :func:`write_transform`, not inverted.
    """
    inverse = np.linalg.inv(_checked_alignment(alignment))
    write_composite(path, [_field_part(inverse_field, grid), affine_part(inverse)])


Part = tuple[str, np.ndarray, np.ndarray]
"""A transform in ITK's files: its type, its fixed parameters, its parameters."""


def affine_part(alignment: np.ndarray | None) -> Part:
    """An affine map of RAS mm, (4, 4), as ITK has it; None for the identity."""
    matrix = LPS @ (np.eye(4) if alignment is None else _checked_alignment(alignment)) @ LPS
    center = np.zeros(3)
    return "AffineTransform_double_3_3", center, np.concatenate([matrix[:3, :3].ravel(), matrix[:3, 3]])


def _field_part(field: np.ndarray, grid: Grid) -> Part:
    vectors = np.empty((*grid.shape[::-1], 3), np.float32)  # ITK: the first axis fastest, vectors whole
    _put_lps(_checked(field, grid), np.swapaxes(vectors, 0, 2))
    return "DisplacementFieldTransform_double_3_3", domain(grid), vectors.ravel()


def write_composite(path: str | Path, parts: list[Part]) -> None:
    """An ITK composite in HDF5; the part that is applied first stands last."""
    if not str(path).endswith(".h5"):
        raise DataError(f"{path}: expected a name that ends in .h5")
    memory = io.BytesIO()  # then the disk is written by Python, whose errors say what is wrong
    with h5py.File(memory, "w") as file:
        text = h5py.string_dtype("ascii")
        file.create_dataset("TransformGroup/0/TransformType", data=["CompositeTransform_double_3_3"], dtype=text)
        for number, (kind, fixed, values) in enumerate(parts, start=1):
            group = file.create_group(f"TransformGroup/{number}")
            group.create_dataset("TransformType", data=[kind], dtype=text)
            group.create_dataset("TransformFixedParameters", data=fixed)
            if values.size > _CHUNK:
                _write_compressed(group, "TransformParameters", values)
            else:
                group.create_dataset("TransformParameters", data=values)
            # ITK before 5 misspells these names. A second link costs nothing and is found by every version.
            group["TranformFixedParameters"] = group["TransformFixedParameters"]
            group["TranformParameters"] = group["TransformParameters"]
    with writing(path) as part:
        part.write_bytes(memory.getbuffer())


def _write_compressed(group: Any, name: str, values: np.ndarray) -> None:
    """A dataset of numbers (N,) in chunks, with HDF5's own filters but not by its own hand: its compressor is slow.

    Shuffled, all first bytes of the numbers come first, then all second ones, and so on; they are compressed apart.
    """
    data = group.create_dataset(
        name, values.shape, values.dtype, chunks=(_CHUNK,), shuffle=True, compression="gzip", compression_opts=1
    )
    for start in range(0, values.size, _CHUNK):
        chunk = values[start : start + _CHUNK]
        if chunk.size < _CHUNK:  # HDF5 wants the last one whole, too
            chunk = np.pad(chunk, (0, _CHUNK - chunk.size))
        shuffled = np.ascontiguousarray(chunk.view(np.uint8).reshape(_CHUNK, -1).T)
        data.id.write_direct_chunk((start,), deflated(shuffled))


def domain(grid: Grid) -> np.ndarray:
    """A grid as ITK's fixed parameters: shape, origin, spacing (3 each) and direction (9)."""
    affine = LPS @ grid.affine
    return np.concatenate([grid.shape, affine[:3, 3], grid.spacing, (affine[:3, :3] / grid.spacing).ravel()])


def _put_lps(field: np.ndarray, target: np.ndarray) -> None:
    """Write RAS vectors [3, X, Y, Z] into an array [X, Y, Z, 3] as LPS, rounded."""
    for component, sign in enumerate((-1, -1, 1)):
        copy_rounded(field[component], target[..., component], sign)


def _checked(field: np.ndarray, grid: Grid) -> np.ndarray:
    if field.shape != (3, *grid.shape):
        raise ValueError(f"expected a field of shape {(3, *grid.shape)}, got {field.shape}")
    return np.asarray(field, dtype=np.float32)


def _checked_alignment(alignment: np.ndarray) -> np.ndarray:
    """The matrix in float64; a ValueError when it is not affine or has no inverse."""
    matrix = np.asarray(alignment, dtype=np.float64)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all() or not np.allclose(matrix[3], [0, 0, 0, 1]):
        raise ValueError(f"expected an affine (4, 4) matrix with the last row 0 0 0 1, got {alignment}")
    if abs(np.linalg.det(matrix[:3, :3])) < 1e-9:
        raise ValueError(f"expected an alignment that has an inverse, got {alignment}")
    return matrix
