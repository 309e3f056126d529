"""Writing NIfTI files that other tools find where the fixed image is: its affine, its codes, plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError

from scripts.core.atomic import writing
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.files.compression import gzip_writer
from scripts.files.file_order import in_file_order

_ALIGNED = 2
"""NIfTI's code of an affine that brings an image to another one's space; for images without codes of their own."""

_DESCRIPTION_BYTES = 79


def write_volume(
    path: str | Path,
    array: np.ndarray,
    grid: Grid,
    header: Any = None,
    description: str = "",
) -> None:
    """Write a volume; the file is whole or not there.

    On disk, floating-point numbers are float32; whole ones are the first of uint8, int16 and int32 that holds them all.
    Values are never scaled.

    Args:
        path: ends in ``.nii`` or ``.nii.gz``. Folders are made.
        array: shape [X, Y, Z], or [X, Y, Z, C] with C channels.
        grid: where the voxels are.
        header: nibabel's header of the fixed image, to keep its codes: tools show images of different codes as if they
            were in different spaces.
        description: for the header; 79 characters are kept.

    Raises:
        ValueError: when the array does not fit the grid.
        DataError: when the file cannot be written, or labels exceed 32 bits.
    """
    array = np.asarray(array)
    if array.ndim not in (3, 4) or array.shape[:3] != grid.shape:
        raise ValueError(f"expected an array of shape {grid.shape}, or with channels behind it, got {array.shape}")
    save_image(path, array.astype(_smallest_type(array, path), copy=False), grid, header, description=description)


def save_image(
    path: str | Path,
    data: np.ndarray,
    grid: Grid,
    header: Any = None,
    intent: int | None = None,
    description: str = "",
) -> None:
    """Write an array [X, Y, Z, ...] as it is; `intent` is NIfTI's code of what its numbers mean.

    See :func:`write_volume` for the rest.
    """
    if not str(path).endswith((".nii", ".nii.gz")):
        raise DataError(f"{path}: expected a name that ends in .nii or .nii.gz")
    image = nib.Nifti1Image(in_file_order(data), grid.affine)
    _set_affine(image, grid.affine, header)
    image.header.set_xyzt_units("mm")
    image.header.set_slope_inter(1.0, 0.0)
    if intent is not None:
        image.header.set_intent(intent)
    image.header["descrip"] = description.encode("ascii", "replace")[:_DESCRIPTION_BYTES]
    with writing(path) as part:
        if part.suffix != ".gz":
            nib.save(image, part)
            return
        with gzip_writer(part) as file:
            image.to_stream(file)


def _smallest_type(array: np.ndarray, path: str | Path) -> np.dtype:
    if array.dtype.kind == "f":
        return np.dtype(np.float32)
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    # No uint16 or int8: not every tool reads them.
    for dtype in (np.uint8, np.int16, np.int32):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    raise DataError(f"{path}: labels must fit into 32 bits, got {low}..{high}")


def _set_affine(image: nib.Nifti1Image, affine: np.ndarray, header: Any) -> None:
    """The affine in both of NIfTI's forms.

    The qform is a rotation in 32-bit numbers. It cannot express shear, and little more than half of its digits are left
    near a rotation by 180°. Where it is not the affine, its code says that it is not there. A fixed image that has such
    a qform itself keeps it: the result must not lie elsewhere in tools that prefer it.
    """
    has_codes = isinstance(header, nib.Nifti1Header)  # those of other formats have none
    qform, sform = (int(header[f"{form}_code"]) if has_codes else 0 for form in ("qform", "sform"))
    tolerance = 1e-6 if header is None or not qform else 1e-3
    if not qform and not sform:
        qform = sform = _ALIGNED
    image.set_sform(affine, code=sform)
    image.set_qform(affine, code=qform)
    edges = np.linalg.norm(affine[:3, :3], axis=0)
    wrong = np.abs(image.header.get_qform() - affine)
    if wrong[:3, :3].max() > tolerance * edges.max() or wrong[:3, 3].max() > 1e-6 * max(1, np.abs(affine[:3, 3]).max()):
        image.set_qform(None, code=0)
        image.set_sform(affine, code=sform or _ALIGNED)


def header_of(path: str | Path) -> Any:
    """The header of a NIfTI file; None for other formats."""
    try:
        image: Any = nib.load(path)
    except ImageFileError:
        return None
    return image.header if isinstance(image, nib.Nifti1Image) else None
