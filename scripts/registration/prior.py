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


def bending_energy(z: Tensor) -> Tensor:
    """½ Σ ‖∇²z‖²: half the squared second differences, mixed ones twice, of [*, 3, X, Y, Z]; 0 for affine fields."""
    _check(z)
    energy = z.new_zeros(z.shape[:-4], dtype=torch.float64)
    for a in (-3, -2, -1):
        first = z.diff(dim=a)
        for b in range(a, 0):
            second = first.diff(dim=b).square().sum(dim=(-4, -3, -2, -1), dtype=torch.float64)
            # ‖∇²z‖² = Σ_ab z_ab², in which z_ab and z_ba are the same number
            energy = energy + (0.5 if a == b else 1.0) * second
    return energy


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


def hyperelastic_energies(z: Tensor, factor: int = 2, smallest: float = 0.1) -> tuple[Tensor, Tensor]:
    """Area and volume terms of hyperelasticity (Burger et al. 2013), [*] each, summed over the cells of the field grid.

    Area: Σ max(‖cof ∇φ‖² − 3, 0)², which grows with surfaces and is convex. Volume: Σ ψ(det ∇φ) with
    ψ(v) = ((v − 1)²/v)², which treats growing and shrinking alike, ψ(v) = ψ(1/v), and rises without bound as v → 0. A
    sampled field may fold nevertheless, and its weight and gradient must stay finite: below `smallest`, ψ goes on along
    its tangent.
    """
    _check(z)
    rows = deformation_gradient(z, factor).unbind(dim=-5)  # three of [*, 3, X−1, Y−1, Z−1]
    # The rows of the cofactor matrix are cross products of the other two rows; det = row · its cofactors.
    cofactors = [torch.linalg.cross(rows[(c + 1) % 3], rows[(c + 2) % 3], dim=-4) for c in range(3)]
    area = sum((cofactor.square().sum(dim=-4) for cofactor in cofactors), start=z.new_zeros(()))
    area = (area - 3).clamp_min(0).square()
    determinant = (rows[0] * cofactors[0]).sum(dim=-4)
    safe = determinant.clamp_min(smallest)
    value = (smallest - 1) ** 2 / smallest
    slope = 2 * value * (1 - 1 / smallest**2)  # ψ'(v) = 2 ((v − 1)²/v) (1 − 1/v²)
    volume = ((safe - 1).square() / safe).square() + slope * (determinant - safe)
    return tuple(term.sum(dim=(-3, -2, -1), dtype=torch.float64) for term in (area, volume))  # type: ignore[return-value]


def fold_price(z: Tensor, factor: int = 2, smallest: float = 0.05) -> Tensor:
    """Σ max(smallest − det ∇φ, 0)² over the cells of fields [*, 3, X, Y, Z]; [*]. See `FoldPrior`."""
    _check(z)
    first, second, third = deformation_gradient(z, factor).unbind(dim=-5)  # of [*, 3, X−1, Y−1, Z−1]
    determinant = (first * torch.linalg.cross(second, third, dim=-4)).sum(dim=-4)
    return (smallest - determinant).clamp_min(0).square().sum(dim=(-3, -2, -1), dtype=torch.float64)


class _WeightedPrior(Prior):
    """A single energy times its weight."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = _weight("weight", weight)

    @property
    def stiffness(self) -> float:
        """See `Prior.stiffness`."""
        return self.weight


class DiffusionPrior(_WeightedPrior):
    """log p(z) = −weight · ½ Σ ‖∇z‖² (decision 9), up to a constant: neighbors move alike.

    Args:
        weight: λ.
    """

    kind = "diffusion"

    def forward(self, z: Tensor) -> Tensor:
        """[*, 3, X, Y, Z] to [*], float64."""
        return -self.weight * diffusion_energy(z)


class BendingEnergyPrior(_WeightedPrior):
    """log p(z) = −weight · ½ Σ ‖∇²z‖², up to a constant: affine motion is free.

    Args:
        weight: λ.
    """

    kind = "bending"

    def forward(self, z: Tensor) -> Tensor:
        """[*, 3, X, Y, Z] to [*], float64."""
        return -self.weight * bending_energy(z)


class HyperelasticPrior(Prior):
    """log p(z) = −(length · ½ Σ ‖∇z‖² + area · E_area + volume · E_volume), up to a constant: folds are expensive.

    On the field grid, where it costs an eighth of what it would on the image grid: the spline between the two only
    averages (decision 7).

    Args:
        length: weight of the diffusion energy, as in `DiffusionPrior`.
        area: weight of the change of surfaces, see :func:`hyperelastic_energies`.
        volume: weight of the change of volume.
        factor: image voxels along the edge of a field voxel.
    """

    kind = "hyperelastic"

    def __init__(self, length: float = 1.0, area: float = 0.1, volume: float = 1.0, factor: int = 2) -> None:
        super().__init__()
        self.length, self.area = _weight("length", length), _weight("area", area)
        self.volume, self.factor = _weight("volume", volume), factor

    def forward(self, z: Tensor) -> Tensor:
        """[*, 3, X, Y, Z] to [*], float64."""
        area, volume = hyperelastic_energies(z, self.factor)
        return -(self.length * diffusion_energy(z) + self.area * area + self.volume * volume)

    @property
    def stiffness(self) -> float:
        """See `Prior.stiffness`."""
        return self.length


class FoldPrior(Prior):
    """log p(z) = −weight · Σ max(smallest − det ∇φ, 0)², up to a constant: all is free but what folds or nearly does.

    Args:
        weight: of the price.
        smallest: the determinant below which a cell of the field grid costs something. A large ventricle that is
            compared to a small one has 0.1 or less with good reason.
        factor: image voxels along the edge of a field voxel.
    """

    kind = "folds"

    def __init__(self, weight: float = 1000.0, smallest: float = 0.05, factor: int = 2) -> None:
        super().__init__()
        self.weight, self.smallest, self.factor = _weight("weight", weight), smallest, factor

    def forward(self, z: Tensor) -> Tensor:
        """[*, 3, X, Y, Z] to [*], float64."""
        return -self.weight * fold_price(z, self.factor, self.smallest)

    @property
    def stiffness(self) -> float:
        """None: everything but folds is free."""
        return 0.0


def _check(z: Tensor) -> None:
    if z.ndim < 4 or z.shape[-4] != 3 or 0 in z.shape[-3:]:
        raise ShapeError("z", "[*, 3, X, Y, Z] with X, Y, Z > 0", z.shape)


def _weight(name: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise OptionError(name, "finite and not negative", value)
    return value
