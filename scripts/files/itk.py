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
import nibabel as nib
import numpy as np
import SimpleITK as sitk  # noqa: N813 - its usual name
from nibabel.filebasedimages import ImageFileError

from scripts.core.errors import DataError
from scripts.core.grid import LPS, Grid
from scripts.files.compression import deflated
from scripts.files.file_order import copy_rounded
from scripts.files.nifti import save_image, writing

_VECTOR_INTENT = 1007
_CHUNK = 2**16
"""Numbers that are compressed together."""


def total_displacement(field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None) -> np.ndarray:
    """Displacement of the whole transform, A (x + d(x)) − x.

    Args:
        field: d, shape [3, X, Y, Z], RAS mm.
        grid: of the field.
        alignment: A, shape (4, 4), from fixed to moving RAS mm; None for the identity.

    Returns:
        Shape [3, X, Y, Z], RAS mm, float32.

    Raises:
        ValueError: when shapes do not fit, or the alignment has no inverse.
    """
    field = _checked(field, grid)
    if alignment is None:
        return field
    matrix = checked_alignment(alignment)
    # A (x + d) − x = A₃ d + (A₃ − I) x + t, and x is linear in the indices: the last two terms are a sum over axes.
    linear = matrix[:3, :3] - np.eye(3)
    slopes, offset = linear @ grid.affine[:3, :3], linear @ grid.affine[:3, 3] + matrix[:3, 3]
    total = np.tensordot(matrix[:3, :3].astype(np.float32), field, axes=1)
    x, y, z = np.ogrid[tuple(slice(size) for size in grid.shape)]
    for component in range(3):
        along_x, along_y, along_z = slopes[component]
        total[component] += along_x * x + (along_y * y + (along_z * z + offset[component]))
    return total


def write_displacement(
    path: str | Path, field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None, header: Any = None
) -> None:
    """Write a transform as a NIfTI displacement field: (X, Y, Z, 1, 3), intent 1007, LPS vectors in mm.

    ITK cannot read NIfTI files of sheared grids, these or images; the composite has no such limit.

    Args:
        path: ends in ``.nii`` or ``.nii.gz``.
        field: d, shape [3, X, Y, Z], RAS mm.
        grid: of the field, the fixed image's.
        alignment: A, shape (4, 4), to be included in the displacements.
        header: of the fixed image, see :func:`scripts.files.nifti.write_volume`.

    Raises:
        ValueError: see :func:`total_displacement`.
        DataError: when the file cannot be written.
    """
    data = np.empty((*grid.shape, 1, 3), np.float32, order="F")
    _put_lps(total_displacement(field, grid, alignment), data[:, :, :, 0])
    save_image(path, data, grid, header, _VECTOR_INTENT, "displacement, LPS mm, pull-back")


def read_displacement(path: str | Path) -> tuple[np.ndarray, Grid]:
    """Read a NIfTI displacement field of ITK's convention, such as ours or one by ANTs.

    Returns:
        The field, shape [3, X, Y, Z], RAS mm, float32; and its grid.

    Raises:
        DataError: when the file cannot be read or does not hold such a field.
    """
    try:
        image = nib.load(path)
        if not isinstance(image, nib.Nifti1Image):
            raise DataError(f"{path}: expected a displacement field in NIfTI format, got {type(image).__name__}")
        shape, intent = image.shape, int(image.header["intent_code"])
        if len(shape) != 5 or shape[3:] != (1, 3):
            raise DataError(f"{path}: expected a displacement field of shape (X, Y, Z, 1, 3), got {shape}")
        if intent != _VECTOR_INTENT:
            raise DataError(f"{path}: expected vectors (intent code {_VECTOR_INTENT}), got intent code {intent}")
        vectors = np.asarray(image.dataobj, dtype=np.float32)[:, :, :, 0]
    except FileNotFoundError as error:
        raise DataError(f"{path}: the file does not exist") from error
    except (ImageFileError, OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as a displacement field ({str(error).splitlines()[0]})") from error
    if broken := int((~np.isfinite(vectors)).sum()):
        raise DataError(f"{path}: expected finite displacements, got {broken} numbers that are not")
    affine = np.asarray(image.affine, dtype=np.float64)
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine[:3, :3])) < 1e-9:
        raise DataError(f"{path}: the affine is singular, so voxels have no place in space")
    return _flipped(np.moveaxis(vectors, -1, 0)), Grid((shape[0], shape[1], shape[2]), affine)


def write_transform(path: str | Path, field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None) -> None:
    """Write φ(x) = A (x + d(x)) as an ITK composite, for resampling the moving image on the fixed one's grid.

    ITK takes displacements outside of the field's grid as 0.

    Args:
        path: ends in ``.h5``.
        field: d, shape [3, X, Y, Z], RAS mm.
        grid: of the field.
        alignment: A, shape (4, 4), from fixed to moving RAS mm; None for the identity.

    Raises:
        ValueError: when shapes do not fit, or the alignment has no inverse.
        DataError: when the file cannot be written.
    """
    matrix = checked_alignment(np.eye(4) if alignment is None else alignment)
    # ITK applies what was added last first.
    write_composite(path, [affine_part(matrix), _field_part(field, grid)])


def write_inverse_transform(
    path: str | Path, inverse_field: np.ndarray, grid: Grid, alignment: np.ndarray | None = None
) -> None:
    """Write φ⁻¹(y) = z + e(z), z = A⁻¹ y, as an ITK composite, for resampling the fixed image on the moving one's grid.

    Args:
        path: ends in ``.h5``.
        inverse_field: e, shape [3, X, Y, Z], RAS mm, see :func:`scripts.files.inverse.invert`.
        grid: of the inverse field, the fixed image's.
        alignment: A as in :func:`write_transform`, not inverted.

    Raises:
        ValueError, DataError: see :func:`write_transform`.
    """
    matrix = checked_alignment(np.eye(4) if alignment is None else alignment)
    write_composite(path, [_field_part(inverse_field, grid), affine_part(np.linalg.inv(matrix))])


def to_sitk(array: np.ndarray, grid: Grid) -> sitk.Image:
    """An array [X, Y, Z], or [X, Y, Z, C] with the components of vectors, as a SimpleITK image.

    Raises:
        ValueError: when the array does not fit the grid.
    """
    array = np.asarray(array)
    if array.ndim not in (3, 4) or array.shape[:3] != grid.shape:
        raise ValueError(f"expected an array of shape {grid.shape}, or with components behind it, got {array.shape}")
    if array.dtype == bool:
        array = array.astype(np.uint8)
    image = sitk.GetImageFromArray(_slowest_first(array), isVector=array.ndim == 4)
    origin, spacing, direction = geometry(grid)
    image.SetOrigin(origin.tolist())
    image.SetSpacing(spacing.tolist())
    image.SetDirection(direction.ravel().tolist())
    return image


def from_sitk(image: sitk.Image) -> tuple[np.ndarray, Grid]:
    """The array [X, Y, Z], or [X, Y, Z, C], of a SimpleITK image, and its grid.

    Raises:
        ValueError: when the image is not 3-D.
    """
    if image.GetDimension() != 3:
        raise ValueError(f"expected a 3-D image, got {image.GetDimension()} dimensions")
    array = np.ascontiguousarray(np.swapaxes(sitk.GetArrayViewFromImage(image), 0, 2))
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * np.asarray(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    x, y, z = image.GetSize()
    return array, Grid((x, y, z), LPS @ affine)


Part = tuple[str, np.ndarray, np.ndarray]
"""A transform in ITK's files: its type, its fixed parameters, its parameters."""


def affine_part(alignment: np.ndarray) -> Part:
    """An affine map of RAS mm, (4, 4), as ITK has it."""
    matrix = LPS @ alignment @ LPS
    center = np.zeros(3)
    return "AffineTransform_double_3_3", center, np.concatenate([matrix[:3, :3].ravel(), matrix[:3, 3]])


def _field_part(field: np.ndarray, grid: Grid) -> Part:
    vectors = np.empty((*grid.shape[::-1], 3), np.float32)  # ITK: the first axis fastest, vectors whole
    _put_lps(_checked(field, grid), np.swapaxes(vectors, 0, 2))
    origin, spacing, direction = geometry(grid)
    domain = np.concatenate([grid.shape, origin, spacing, direction.ravel()])
    return "DisplacementFieldTransform_double_3_3", domain, vectors.ravel()


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


def geometry(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ITK's origin (3,), spacing (3,) and direction (3, 3)."""
    affine = LPS @ grid.affine
    return affine[:3, 3], grid.spacing, affine[:3, :3] / grid.spacing


def _slowest_first(array: np.ndarray) -> np.ndarray:
    """[X, Y, Z, ...] to ITK's [Z, Y, X, ...] in memory."""
    return np.ascontiguousarray(np.swapaxes(array, 0, 2))


def _flipped(vectors: np.ndarray) -> np.ndarray:
    """Vectors [3, X, Y, Z] from RAS to LPS, or back."""
    return np.stack([-vectors[0], -vectors[1], vectors[2]])


def _put_lps(field: np.ndarray, target: np.ndarray) -> None:
    """Write RAS vectors [3, X, Y, Z] into an array [X, Y, Z, 3] as LPS, rounded."""
    for component, sign in enumerate((-1, -1, 1)):
        copy_rounded(field[component], target[..., component], sign)


def _checked(field: np.ndarray, grid: Grid) -> np.ndarray:
    if field.shape != (3, *grid.shape):
        raise ValueError(f"expected a field of shape {(3, *grid.shape)}, got {field.shape}")
    return np.asarray(field, dtype=np.float32)


def checked_alignment(alignment: np.ndarray) -> np.ndarray:
    """The matrix in float64; a ValueError when it is not affine or has no inverse."""
    matrix = np.asarray(alignment, dtype=np.float64)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all() or not np.allclose(matrix[3], [0, 0, 0, 1]):
        raise ValueError(f"expected an affine (4, 4) matrix with the last row 0 0 0 1, got {alignment}")
    if abs(np.linalg.det(matrix[:3, :3])) < 1e-9:
        raise ValueError(f"expected an alignment that has an inverse, got {alignment}")
    return matrix
