"""From a sampled field to the displacement of every image voxel: directly, or as a velocity that is integrated."""

from __future__ import annotations

import warnings
from typing import ClassVar

import torch
from monai.networks.blocks import DVF2DDF
from torch import Tensor

from scripts.registration.errors import OptionError, check_volume
from scripts.registration.parts import Transform


class DisplacementTransform(Transform):
    """The sampled field is the displacement, brought to the image grid by a cubic B-spline (decision 7)."""

    kind = "displacement"
    linear: ClassVar[bool] = True

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor

    def control_points(self, z: Tensor) -> Tensor:
        """z itself, [N, 3, x, y, z]."""
        check_volume("z", z, 3)
        return z


class VelocityTransform(Transform):
    """The sampled field is a stationary velocity; its flow over unit time is a map without folds.

    The inverse map is the flow of −z, backward in time.

    Integrated by scaling and squaring with MONAI's `DVF2DDF`, on the field grid: velocities that would fold 6 % of the
    voxels as displacements do not fold, in a fifth to an eighth of the time that it takes on the image grid. Maps that
    are inverse to each other no longer quite are after both have gone through the spline (0.3 voxels in that case).

    Args:
        steps: squarings; the first step is the velocity divided by 2^steps.
    """

    kind = "velocity"
    folds: ClassVar[bool] = False

    def __init__(self, factor: int = 2, steps: int = 7) -> None:
        super().__init__()
        if steps < 1:
            raise OptionError("steps", "at least 1", steps)
        self.factor, self.steps = factor, steps
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*native grid_sample.*")  # it is what we want
            # Beyond the border the velocity goes on: stopping it there (MONAI's default) tears the map.
            self._integrate = DVF2DDF(num_steps=steps, padding_mode="border")

    def control_points(self, z: Tensor) -> Tensor:
        """Control points of the spline that the displacement is, in image voxels, [N, 3, x, y, z]."""
        check_volume("z", z, 3)
        # MONAI's Warp keeps its reference grid by shape alone, so one of another device or precision would be reused.
        grid = self._integrate.warp_layer.ref_grid
        if grid is not None and (grid.device != z.device or grid.dtype != z.dtype or grid.is_inference()):
            self._integrate.warp_layer.ref_grid = None
        # A displacement of d image voxels is one of d/factor field voxels.
        with torch.autocast(z.device.type, enabled=False):
            return self._integrate(z / self.factor) * self.factor
