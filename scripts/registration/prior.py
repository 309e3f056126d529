"""How plausible a field is before the images are seen: smoothness energies on the field grid.

Differences are taken between neighboring field voxels and not divided by their distance; fields are in image voxels
(decision 9). A field may have any leading dimensions, [*, 3, X, Y, Z]; its energies, [*], are float64, as sample
weights are differences of them. Each function raises a `ShapeError` for another shape, each prior an `OptionError` for
a negative weight.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scripts.core.fusion import fused
from scripts.registration.backends import compiled
from scripts.registration.errors import OptionError, ShapeError
from scripts.registration.parts import Prior


def diffusion_energy(z: Tensor) -> Tensor:
    """½ Σ ‖∇z‖²: half the squared differences between all pairs of neighboring voxels; [*, 3, X, Y, Z] to [*]."""
    _check(z)
    return _DiffusionEnergy.apply(z)


class _DiffusionEnergy(torch.autograd.Function):
    """½ zᵀ DᵀD z with the gradient DᵀD z, D the differences: nothing but z is kept for the backward."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        fast = compiled("numba_prior", z)
        return fast.diffusion_energy(z) if fast is not None else _torch_energy(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return _torch_gradient(z, grad)


@fused
def _torch_energy(z: Tensor) -> Tensor:
    """[*, 3, X, Y, Z] to [*], float64."""
    energy = z.new_zeros(z.shape[:-4], dtype=torch.float64)
    for axis in (-3, -2, -1):
        # vector_norm accumulates in float64 without a float64 copy of the differences
        norm = torch.linalg.vector_norm(z.diff(dim=axis), dim=(-4, -3, -2, -1), dtype=torch.float64)
        energy.add_(norm.square(), alpha=0.5)
    return energy


@fused
def _torch_gradient(z: Tensor, grad: Tensor) -> Tensor:
    """DᵀD z for each field, times its incoming gradient; shapes [*, 3, X, Y, Z] and [*]."""
    out = torch.zeros_like(z)
    for axis in (-3, -2, -1):
        difference, pairs = z.diff(dim=axis), z.shape[axis] - 1
        out.narrow(axis, 1, pairs).add_(difference)
        out.narrow(axis, 0, pairs).sub_(difference)
    return out.mul_(grad[..., None, None, None, None].to(z.dtype))


def deformation_gradient(z: Tensor, factor: int = 2) -> Tensor:
    """∇φ of φ(x) = x + u(x) in the middle of every cell between eight field voxels, [*, 3, 3, X−1, Y−1, Z−1].

    Entry (c, a) is ∂φ_c/∂x_a of the trilinear interpolation between them: the mean of the cell's four parallel edges.
    Displacements are divided by the factor, as a field voxel is `factor` image voxels long.
    """
    columns = []
    for axis in (-3, -2, -1):
        slope = z.diff(dim=axis)
        for other in {-3, -2, -1} - {axis}:
            size = z.shape[other] - 1
            slope = (slope.narrow(other, 0, size) + slope.narrow(other, 1, size)) / 2
        columns.append(slope / factor)
    identity = torch.eye(3, dtype=z.dtype, device=z.device)[..., None, None, None]
    return torch.stack(columns, dim=-4) + identity


class DiffusionPrior(Prior):
    """log p(z) = −weight · ½ Σ ‖∇z‖² (decision 9), up to a constant: neighbors move alike."""

    kind = "diffusion"

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = self.stiffness = _weight("weight", weight)

    def forward(self, z: Tensor) -> Tensor:
        """[*, 3, X, Y, Z] to [*], float64."""
        return -self.weight * diffusion_energy(z)


class FoldPrior(Prior):
    """log p(z) = −weight · Σ max(smallest − det ∇φ, 0)², up to a constant: all is free but what folds or nearly does.

    Args:
        weight: of the price.
        smallest: the determinant below which a cell of the field grid costs something. A large ventricle that is
            compared to a small one has 0.1 or less with good reason.
        factor: image voxels along the edge of a field voxel.
    """

    kind = "folds"
    stiffness = 0.0  # everything but folds is free

    def __init__(self, weight: float = 1000.0, smallest: float = 0.05, factor: int = 2) -> None:
        super().__init__()
        self.weight, self.smallest, self.factor = _weight("weight", weight), smallest, factor

    def forward(self, z: Tensor) -> Tensor:
        """[*, 3, X, Y, Z] to [*], float64."""
        _check(z)
        first, second, third = deformation_gradient(z, self.factor).unbind(dim=-5)  # of [*, 3, X−1, Y−1, Z−1]
        determinant = (first * torch.linalg.cross(second, third, dim=-4)).sum(dim=-4)
        short = (self.smallest - determinant).clamp_min(0)
        return -self.weight * short.square().sum(dim=(-3, -2, -1), dtype=torch.float64)


def _check(z: Tensor) -> None:
    if z.ndim < 4 or z.shape[-4] != 3 or 0 in z.shape[-3:]:
        raise ShapeError("z", "[*, 3, X, Y, Z] with X, Y, Z > 0", z.shape)


def _weight(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise OptionError(name, "finite and not negative", value)
    return value
