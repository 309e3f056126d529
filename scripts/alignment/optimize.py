"""Improve an affine map between two images with SimpleITK: Mattes mutual information, regular-step gradient descent."""

from __future__ import annotations

import logging

import numpy as np
import SimpleITK as sitk  # noqa: N813

from scripts.alignment.working import WorkingImage

logger = logging.getLogger(__name__)

_BINS = 24
"""With 48, the affine maps of some pairs ran away: too few samples for so many bins."""

_ITERATIONS = 60
_RADIUS = 60.0
"""Of a brain in mm."""

_PADDING = 12
"""Background around the moving image in voxels: ITK ignores samples that fall outside of it."""


def optimize(
    fixed: WorkingImage,
    moving: WorkingImage,
    matrix: np.ndarray,
    affine: bool,
    step: float,
    samples: int,
    seed: int = 0,
) -> np.ndarray:
    """Find a map near `matrix` under which the images tell more about each other.

    Runs on one thread: ITK adds up what its threads have found in the order in which they end, which changes the last
    digits from run to run, and with them the path of the optimizer.

    Args:
        fixed, moving: at the same resolution.
        matrix: where to start, (4, 4), from fixed to moving RAS mm.
        affine: whether to search all 12 parameters, or the 6 of a rigid map; then `matrix` must be rigid, too.
        step: the first step in mm; later ones become smaller.
        samples: about how many voxels of the fixed image are compared.

    Returns:
        The improved map (4, 4), or `matrix` itself if ITK cannot make a step, as without any overlap.
    """
    # In brain radii about the brains' centers, all parameters move the brain about equally far: a step has a length.
    center = fixed.brain_points.mean(0)
    target = matrix[:3, :3] @ center + matrix[:3, 3]
    transform = sitk.AffineTransform(3) if affine else sitk.Euler3DTransform()
    transform.SetMatrix(matrix[:3, :3].ravel().tolist())

    method = sitk.ImageRegistrationMethod()
    method.SetNumberOfThreads(1)
    method.SetNumberOfWorkUnits(1)
    method.SetMetricAsMattesMutualInformation(_BINS)
    method.SetMetricSamplingStrategy(method.REGULAR)
    share = min(1.0, samples / fixed.values.size)
    method.SetMetricSamplingPercentage(share, seed % 2**31 + 1)  # 0 would be the time of day
    method.SetInterpolator(sitk.sitkLinear)
    method.SetOptimizerAsRegularStepGradientDescent(
        step / _RADIUS, step / _RADIUS / 128, _ITERATIONS, relaxationFactor=0.5, gradientMagnitudeTolerance=1e-8
    )
    method.SetInitialTransform(transform, inPlace=True)
    fixed_image, fixed_known = fixed.to_itk(center, _RADIUS)
    moving_image, moving_known = moving.to_itk(target, _RADIUS, _PADDING * moving.spacing)
    if fixed_known is not None:
        method.SetMetricFixedMask(fixed_known)
    if moving_known is not None:
        method.SetMetricMovingMask(moving_known)
    try:
        method.Execute(fixed_image, moving_image)
    except RuntimeError as error:
        logger.debug("alignment: no step from this start (%s)", str(error).strip().split("\n")[-1])
        return matrix

    result = np.eye(4)
    result[:3, :3] = np.array(transform.GetMatrix()).reshape(3, 3)
    result[:3, 3] = target + _RADIUS * np.array(transform.GetTranslation()) - result[:3, :3] @ center
    return result
