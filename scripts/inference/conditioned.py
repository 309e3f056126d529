"""The proposal given what an expert knows: exact conditioning of the structured Gaussian on linear observations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.core.memory import free_bytes
from scripts.gaussian import StructuredGaussian
from scripts.gaussian.capacitance import inner_products
from scripts.gaussian.distribution import Noise
from scripts.gaussian.errors import OutOfMemoryError, ShapeError
from scripts.gaussian.noise import fold, standard_normal
from scripts.inference.observations import Observations

_STREAM = 1 << 33
"""Of the observations' errors, apart from those of the field's own noise."""


class ConditionedGaussian(StructuredGaussian):
    """q(z | y) ∝ q(z) N(y; H z, s²) for a structured Gaussian q = N(μ, Σ): a Gaussian again, in all of its operations.

    With H̃ = H/s, ỹ = y/s (errors of variance one), V = L⁻¹H̃ᵀ and the small matrix

        K = I + H̃ΣH̃ᵀ = I + VᵀV + (H̃R)(H̃R)ᵀ,

    the mean is μ + ΣH̃ᵀK⁻¹(ỹ − H̃μ) and the precision Σ⁻¹ + H̃ᵀH̃. A sample is made by Matheron's rule: draw δ from
    N(0, Σ) and e from N(0, I), and take mean + δ − ΣH̃ᵀK⁻¹(H̃δ + e). As δ = R ε_R + L⁻ᵀε_L and
    ΣH̃ᵀc = R (H̃R)ᵀc + L⁻ᵀVc, the correction is one of the noise,

        ε_L ← ε_L + Vc,   ε_R ← ε_R + (H̃R)ᵀc,   c = −K⁻¹(Vᵀε_L + H̃R ε_R + e),

    after which everything goes as without observations: no further solve a sample, and densities from the noise.

    Args:
        proposal: q, batch shape (1,).
        observations: y, H and s.
        known: of the same Σ; where H and s are the same, too, V and K are taken from it.

    Raises:
        ShapeError: for a batch.
        OutOfMemoryError: if V, a field for each observation, does not fit into memory.
    """

    @torch.no_grad()
    def __init__(
        self, proposal: StructuredGaussian, observations: Observations, known: ConditionedGaussian | None = None
    ) -> None:
        if tuple(proposal.batch_shape) != (1,):
            raise ShapeError("the mean of one pair's proposal", "(1, 3, x, y, z)", proposal.mean.shape)
        super().__init__(proposal.mean, proposal.stencil_parameters, proposal.cov_factor, validate=False)
        self.cholesky = proposal.cholesky  # what is packed for its solves is used again
        self.proposal, self.observations = proposal, observations
        self._std = observations.std.to(self.mean.device)
        same = known is not None and known.cholesky is self.cholesky and known.cov_factor is self.cov_factor
        if known is not None and same and observations.has_rows_of(known.observations):
            self._solved: tuple[Tensor, Tensor, Tensor] = known._solved
        else:
            self._solved = self._solve_rows()
        self._whitened, self._on_factor, self._k = self._solved
        values = observations.values.to(self.mean.device)
        self._surprise = (values - observations.apply(proposal.mean)[0]) / self._std  # ỹ − H̃μ, (m,)
        shift = self._lift(self._solve_k(self._surprise[None]))
        self.mean = proposal.rsample(noise=shift, overwrite=True)[0]
        self._residual = (values - observations.apply(self.mean)[0]) / self._std  # ỹ − H̃ mean, (m,)

    def around(self, mean: Tensor, observations: Observations | None = None) -> ConditionedGaussian:
        """The proposal around another mean, [1, 3, x, y, z], given the same observations or others."""
        moved = StructuredGaussian(mean, self.stencil_parameters, self.cov_factor, validate=False)
        moved.cholesky = self.cholesky
        return ConditionedGaussian(moved, observations or self.observations, self)

    # Sampling

    @torch.no_grad()
    def noise(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Noise:
        """As that of the proposal, and corrected by Matheron's rule; sample i has the same noise ε as before."""
        free = super().noise(n, seed=seed, indices=indices)
        which = range(n) if n is not None else list(indices or [])
        stream = fold(seed, _STREAM)
        error = standard_normal((len(self.observations),), stream, which, dtype=torch.float64)
        change = self._lift(-self._solve_k(self._seen(free) + error.to(self.mean.device)))
        return Noise(free.structured.add_(change.structured), free.low_rank.add_(change.low_rank))

    def draw(self, indices: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples and log q(Z | y) − log p(y | Z): the likelihood of what is known stands in the target, too."""
        with torch.no_grad():
            noise = self.noise(indices=indices, seed=seed)
            log_density = self.log_prob_from_noise(noise) - self.log_observations(noise)
            return self.rsample(noise=noise, overwrite=True), log_density

    # Densities

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, as of the base class: (z − mean)ᵀ(Σ⁻¹ + H̃ᵀH̃)(z − mean) is the sum of two squares."""
        single = value.ndim == self.mean.ndim
        fields = (value if not single else value[None])[:, 0] - self.mean
        seen = self.observations.apply(fields) / self._std
        density = super().log_prob(value)
        return density - 0.5 * seen.square().sum(1).reshape(density.shape)

    def log_prob_from_noise(self, noise: Noise) -> Tensor:
        """Log-density of the samples made of this noise, shape (N, 1)."""
        return super().log_prob_from_noise(noise) - 0.5 * self._seen(noise).square().sum(1, keepdim=True)

    def log_det(self) -> Tensor:
        """log det (Σ⁻¹ + H̃ᵀH̃)⁻¹ = log det Σ − log det K, shape (1,)."""
        return super().log_det() - self._log_det_k()

    def marginal_variance(self, num_probes: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
        """diag Σ − diag ΣH̃ᵀK⁻¹H̃Σ; the second term is exact, so the error is that of the first."""
        variance, error = self.proposal.marginal_variance(num_probes, seed)
        root = torch.linalg.solve_triangular(self._k, torch.eye(len(self._k)).to(self._k), upper=False)
        columns = self.proposal.rsample(noise=self._lift(root), overwrite=True) - self.proposal.mean
        return variance - columns.square().sum(0), error

    # What the observations say

    def log_observations(self, noise: Noise) -> Tensor:
        """log N(y; H z, s²) of the samples made of this noise, shape (N, 1)."""
        square = (self._residual - self._seen(noise)).square().sum(1, keepdim=True)
        return -0.5 * (square + self._log_scale())

    def log_evidence(self) -> float:
        """log N(y; Hμ, HΣHᵀ + s²): how much the proposal expected what was observed."""
        return float(-0.5 * (self.surprise() + self._log_det_k() + self._log_scale()))

    def surprise(self) -> float:
        """(y − Hμ)ᵀ(HΣHᵀ + s²)⁻¹(y − Hμ): like χ² with m degrees of freedom, if proposal and errors are as they say."""
        return float((self._surprise * self._solve_k(self._surprise[None])[0]).sum())

    def surprise_and_spread(self) -> tuple[Tensor, Tensor]:
        """(y − Hμ)/s, (m,), and the covariance (HΣHᵀ + s²)/s² that the proposal gives it, (m, m); float64."""
        return self._surprise, self._k @ self._k.T

    # Parts

    def _solve_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """V, (m, 1, 3, x, y, z); (H̃R)ᵀ, (r, m), float64; and the Cholesky factor of K, (m, m)."""
        seen = self.observations
        needed = 2 * len(seen) * self.dimensions * self.mean.element_size()
        available = free_bytes(self.mean.device)
        if available is not None and needed > available:
            raise OutOfMemoryError(f"conditioning on {len(seen)} numbers", needed, available)
        rows = seen.rows(self.event_shape[1:], self.mean) / self._std.to(self.mean.dtype)[:, None, None, None, None]
        whitened = self.cholesky.solve(rows[:, None], overwrite=True)
        on_factor = seen.apply(self.cov_factor[0]) / self._std
        spread = inner_products(whitened.flatten(2), whitened.flatten(2))[0]
        spread = spread + on_factor.T @ on_factor
        unit = torch.eye(len(seen), device=spread.device, dtype=spread.dtype)
        return whitened, on_factor, torch.linalg.cholesky(unit + spread)

    def _seen(self, noise: Noise) -> Tensor:
        """H̃(R ε_R + L⁻ᵀε_L) = Vᵀε_L + H̃R ε_R, shape (N, m), float64."""
        structured = inner_products(noise.structured.flatten(2), self._whitened.flatten(2))[0]
        return structured + noise.low_rank[:, 0].double() @ self._on_factor

    def _lift(self, coefficients: Tensor) -> Noise:
        """Noise that makes ΣH̃ᵀc, for c of shape (N, m)."""
        flat = coefficients.to(self._whitened.dtype) @ self._whitened.flatten(1)
        structured = flat.reshape(-1, *self._whitened.shape[1:])
        return Noise(structured, (coefficients @ self._on_factor.T).to(structured.dtype)[:, None])

    def _solve_k(self, rows: Tensor) -> Tensor:
        """K⁻¹ applied to each row of (N, m)."""
        return torch.cholesky_solve(rows.T, self._k).T

    def _log_det_k(self) -> Tensor:
        return 2 * self._k.diagonal().log().sum()

    def _log_scale(self) -> Tensor:
        return 2 * self._std.log().sum() + len(self._std) * math.log(2 * math.pi)
