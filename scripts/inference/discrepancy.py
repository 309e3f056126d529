"""What the proposal got wrong near the observations: a smooth local shift of its mean, as large as they call for.

A proposal may be surer of itself than it should: where a mark is 5 mm off and the proposal has a standard deviation of
0.3 mm, exact conditioning alone hardly moves anything. So the field is taken as z + b, with z from the proposal and a
discrepancy b, a Gaussian process with covariance κ² exp(−‖x − x′‖²/2ℓ²) for each component. What is observed then has
the covariance

    C = HΣHᵀ + s² + κ²K,   K_ij = exp(−‖x_i − x_j‖²/2ℓ²) d_iᵀd_j,

and κ and ℓ are those under which the observations are likeliest, N(y; Hμ, C); κ = 0 where the proposal had room for
them. The mean is shifted by the expectation of b, b̂(x) = κ² Σ_i exp(−‖x − x_i‖²/2ℓ²) d_i (C⁻¹(y − Hμ))_i, and then
N(μ + b̂, Σ) is conditioned on the observations exactly. Its mean is that of z + b given y; its covariance is that of z
given y and b.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.gaussian import StructuredGaussian
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.observations import Observations

LENGTHS_MM = (8.0, 12.0, 18.0)
_AMPLITUDES = 61
_LARGEST = 16.0
"""κ, in image voxels."""


class Discrepancy(NamedTuple):
    """The likeliest discrepancy."""

    amplitude: float  # κ in image voxels; 0 for none
    length: float  # ℓ in field voxels
    shift: Tensor  # b̂, control points in image voxels, [3, x, y, z]


class Conditioned(NamedTuple):
    """The proposal given observations, with a discrepancy where they call for one."""

    gaussian: ConditionedGaussian  # its `proposal` has the shifted mean
    plain: ConditionedGaussian  # without the discrepancy: the one that can be surprised
    discrepancy: Discrepancy | None  # None if there is none


def condition(proposal: StructuredGaussian, observations: Observations, lengths: Sequence[float] = ()) -> Conditioned:
    """Condition on observations, V solved once; `lengths` are candidates for ℓ in field voxels, if any."""
    plain = ConditionedGaussian(proposal, observations)
    found = likeliest(plain, lengths) if lengths else None
    if found is None or found.amplitude == 0:
        return Conditioned(plain, plain, None)
    return Conditioned(plain.around(proposal.mean + found.shift.to(proposal.mean)), plain, found)


@torch.no_grad()
def likeliest(plain: ConditionedGaussian, lengths: Sequence[float]) -> Discrepancy:
    """κ and ℓ (of `lengths`, in field voxels) of the highest evidence on a grid, and the shift that they make."""
    seen, (surprise, spread) = plain.observations, plain.surprise_and_spread()
    distance = torch.cdist(seen.places, seen.places).to(spread.device)
    directions = (seen.directions / seen.std[:, None]).to(spread.device)
    along = directions @ directions.T
    amplitudes = torch.logspace(math.log10(0.02), math.log10(_LARGEST), _AMPLITUDES, dtype=torch.float64)
    best = (_log_evidence(spread, surprise)[0], 0.0, float(lengths[0]), torch.zeros_like(surprise))
    for length in lengths:
        kernel = torch.exp(-0.5 * (distance / length).square()) * along
        for amplitude in amplitudes.tolist():
            value, solved = _log_evidence(spread + amplitude**2 * kernel, surprise)
            if value > best[0]:
                best = (value, amplitude, float(length), solved)
    _, amplitude, length, solved = best
    weights = amplitude**2 * solved[:, None] * directions  # (m, 3)
    return Discrepancy(amplitude, length, _bumps(seen.places.to(weights.device), weights, length, plain.mean))


def _log_evidence(covariance: Tensor, surprise: Tensor) -> tuple[float, Tensor]:
    """log N(surprise; 0, covariance) up to a constant, and covariance⁻¹ surprise."""
    factor = torch.linalg.cholesky(covariance)
    solved = torch.cholesky_solve(surprise[:, None], factor)[:, 0]
    return float(-0.5 * surprise @ solved - factor.diagonal().log().sum()), solved


def _bumps(places: Tensor, weights: Tensor, length: float, like: Tensor) -> Tensor:
    """Σ_i exp(−‖x − x_i‖²/2ℓ²) w_i at all control points: an axis at a time; [3, x, y, z]."""
    along = []
    for axis, size in enumerate(like.shape[-3:]):
        where = torch.arange(size, dtype=torch.float64, device=places.device)
        along.append(torch.exp(-0.5 * ((where - places[:, axis, None]) / length).square()))  # (m, size)
    return torch.einsum("mc,mx,my,mz->cxyz", weights, *along)
