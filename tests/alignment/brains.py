"""Small synthetic brains for alignments with a known answer, and whole heads around them."""

from functools import cache

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from scipy import ndimage
from scipy.spatial.transform import Rotation

from scripts.synthetic.subjects import synthesize_subject

SPACING = 4.0
SHAPE = (44, 54, 60)


def volume(values: np.ndarray, affine: np.ndarray) -> MetaTensor:
    """[X, Y, Z] with an affine as the loader gives it."""
    return MetaTensor(
        torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))[None], affine=torch.tensor(affine)
    )


@cache
def brain(seed: int = 0, spacing: float = SPACING, shape: tuple[int, int, int] = SHAPE) -> MetaTensor:
    """A synthetic person's skull-stripped scan; not to be changed."""
    person = synthesize_subject(seed, shape, spacing)
    return volume(person.image, person.affine)


def array(image: MetaTensor) -> np.ndarray:
    return image.as_subclass(torch.Tensor)[0].numpy()


def disturbance(
    shift: tuple[float, float, float],
    rotation: tuple[float, float, float] = (0, 0, 0),
    scales: tuple[float, float, float] = (1, 1, 1),
) -> np.ndarray:
    """Scale, rotate by a rotation vector (its length is the angle in degrees), shift by mm. Returns (4, 4)."""
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_rotvec(rotation, degrees=True).as_matrix() @ np.diag(scales)
    matrix[:3, 3] = shift
    return matrix


def displaced(image: MetaTensor, matrix: np.ndarray) -> MetaTensor:
    """The same voxels elsewhere in space: the map from the image to its copy is `matrix`."""
    return volume(array(image), matrix @ np.asarray(image.affine))


def reoriented(image: MetaTensor, codes: str) -> MetaTensor:
    """The same image in space, stored along other axes."""
    stored = nib.Nifti1Image(array(image), np.asarray(image.affine))
    turned = stored.as_reoriented(ornt_transform(io_orientation(stored.affine), axcodes2ornt(codes)))
    return volume(np.asarray(turned.dataobj), turned.affine)


def brain_points(image: MetaTensor) -> np.ndarray:
    """RAS mm of every tenth voxel of the brain, (N, 3)."""
    affine = np.asarray(image.affine)
    return np.argwhere(array(image) > 0)[::10] @ affine[:3, :3].T + affine[:3, 3]


def mean_error(matrix: np.ndarray, truth: np.ndarray, image: MetaTensor) -> float:
    """Mean distance in mm between where two maps send the brain's voxels."""
    difference = matrix - truth
    return float(np.linalg.norm(brain_points(image) @ difference[:3, :3].T + difference[:3, 3], axis=1).mean())


def whole_head(image: MetaTensor, noise: float = 0.0) -> MetaTensor:
    """Put CSF, skull and scalp around a brain, and Rician noise everywhere."""
    values = array(image)
    # Closed, because skull does not enter the sulci.
    inside = ndimage.binary_closing(np.pad(values > 0, 3), iterations=3)[3:-3, 3:-3, 3:-3]
    distance = ndimage.distance_transform_edt(
        ~inside, sampling=np.linalg.norm(np.asarray(image.affine)[:3, :3], axis=0)
    )
    head = values.copy()
    for low, high, brightness in ((0, 2, 0.2), (2, 9, 0.08), (9, 17, 0.9)):
        head[(distance > low) & (distance <= high)] = brightness
    return with_noise(volume(head, np.asarray(image.affine)), noise)


def with_noise(image: MetaTensor, noise: float, seed: int = 0) -> MetaTensor:
    """Rician noise, as a magnitude image has it."""
    random = np.random.default_rng(seed)
    real, imaginary = random.normal(0, noise, (2, *image.shape[1:]))
    return volume(np.hypot(array(image) + real, imaginary), np.asarray(image.affine))
