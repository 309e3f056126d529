"""Displacement fields as other tools write them."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.files.itk import VECTOR_INTENT


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
        if intent != VECTOR_INTENT:
            raise DataError(f"{path}: expected vectors (intent code {VECTOR_INTENT}), got intent code {intent}")
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
    x, y, z = np.moveaxis(vectors, -1, 0)
    return np.stack([-x, -y, z]), Grid((shape[0], shape[1], shape[2]), affine)
