"""From a sampled field to the displacement of every image voxel: directly, or as a velocity that is integrated."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

import torch
from monai.networks.blocks import DVF2DDF
from torch import Tensor, nn

from scripts.registration.errors import OptionError, check_volume
from scripts.registration.spline import upsample


class DisplacementTransform(nn.Module):
    """The sampled field is the displacement, brought to the image grid by a cubic B-spline (decision 7).

    Args:
        factor: image voxels along the edge of a field voxel.
    """

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, z: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Displacements in image voxels.

        Args:
            z: fields on the field grid, in image voxels, shape [N, 3, x, y, z].
            shape: the image grid (X, Y, Z), see :func:`~scripts.registration.spline.upsample`.

        Returns:
            ddf, shape [N, 3, X, Y, Z].

        Raises:
            ShapeError: for another shape.
        """
        return upsample(self.control_points(z), self.factor, shape)

    def control_points(self, z: Tensor) -> Tensor:
        """Control points of the spline that the displacement is, in image voxels: z itself, [N, 3, x, y, z]."""
        check_volume("z", z, 3)
        return z


class VelocityTransform(nn.Module):
    """The sampled field is a stationary velocity; its flow over unit time is a map without folds, and has an inverse.

    Integrated by scaling and squaring with MONAI's `DVF2DDF`.

    Args:
        factor: image voxels along the edge of a field voxel.
        steps: squarings; the first step is the velocity divided by 2^steps.
        grid: where to integrate. On the `field` grid, the flow goes through the spline; on the `image` grid, the
            velocity does. Neither folds for velocities that would fold 6 % of the voxels as displacements; beyond
            that, the field grid folds less, and it takes a fifth to an eighth of the time. The image grid's inverse is
            three times as exact (0.1 voxels left over instead of 0.3 in that case): maps that are inverse to each other
            no longer are so after both have gone through the spline.

    Raises:
        OptionError: for steps below 1 or another grid.
    """

    def __init__(self, factor: int = 2, steps: int = 7, grid: Literal["field", "image"] = "field") -> None:
        super().__init__()
        if steps < 1:
            raise OptionError("steps", "at least 1", steps)
        if grid not in ("field", "image"):
            raise OptionError("grid", "'field' or 'image'", grid)
        self.factor, self.steps, self.grid = factor, steps, grid
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*native grid_sample.*")  # it is what we want
            # Beyond the border the velocity goes on: stopping it there (MONAI's default) tears the map.
            self._integrate = DVF2DDF(num_steps=steps, padding_mode="border")

    def forward(self, z: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Displacements of the flow, in image voxels.

        Args:
            z: velocities on the field grid, in image voxels per unit of time, shape [N, 3, x, y, z].
            shape: the image grid (X, Y, Z), see :func:`~scripts.registration.spline.upsample`.

        Returns:
            ddf, shape [N, 3, X, Y, Z].

        Raises:
            ShapeError: for another shape.
        """
        check_volume("z", z, 3)
        if self.grid == "image":
            return self._flow(upsample(z, self.factor, shape))
        return upsample(self.control_points(z), self.factor, shape)

    def control_points(self, z: Tensor) -> Tensor:
        """Control points of the spline that the displacement is, in image voxels, [N, 3, x, y, z].

        Raises:
            OptionError: when the velocity is integrated on the image grid, so that the displacement is no such spline.
        """
        check_volume("z", z, 3)
        if self.grid == "image":
            raise OptionError("grid", "'field', for displacements on other grids than the image's", self.grid)
        # A displacement of d image voxels is one of d/factor field voxels.
        return self._flow(z / self.factor) * self.factor

    def inverse(self, z: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Displacements of the inverse map, the flow backward in time; as `forward`."""
        return self(-z, shape)

    def _flow(self, velocity: Tensor) -> Tensor:
        """Displacement after unit time, velocity and result in voxels of their own grid, [N, 3, X, Y, Z]."""
        # MONAI's Warp keeps its reference grid by shape alone, so one of another device or precision would be reused.
        grid = self._integrate.warp_layer.ref_grid
        if grid is not None and (grid.device != velocity.device or grid.dtype != velocity.dtype or grid.is_inference()):
            self._integrate.warp_layer.ref_grid = None
        with torch.autocast(velocity.device.type, enabled=False):
            return self._integrate(velocity)
