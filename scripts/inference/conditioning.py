"""The proposal given what an expert knows: exact conditioning of the structured Gaussian on linear observations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.gaussian import StructuredGaussian
from scripts.gaussian.capacitance import inner_products
from scripts.gaussian.distribution import Noise
from scripts.gaussian.errors import OutOfMemoryError, ShapeError
from scripts.gaussian.memory import free_bytes
from scripts.inference.errors import ObservationError
from scripts.inference.observations import Observations

MOST_WIDENING = 1e4
_NEGLIGIBLE = 1e-9
"""Directions of the observations that the proposal cannot tell apart, as a share of the widest: left as they are."""


class ConditionedGaussian(StructuredGaussian):
    """q(z | y) ∝ q(z) N(y; H z, s²) for a structured Gaussian q = N(μ, Σ): a Gaussian again, in all of its operations.

    With H̃ = H/s, ỹ = y/s (errors of variance one), V = L⁻¹H̃ᵀ and the eigenvectors of the small matrix

        H̃ΣH̃ᵀ = VᵀV + (H̃R)(H̃R)ᵀ = U Λ Uᵀ,

    the m numbers a = UᵀH̃(z − μ) are independent under q, with variances λ. Given y they have the variances
    v = λ/(1 + λ) and the means v·Uᵀ(ỹ − H̃μ), and the rest of z follows them as it did before: Matheron's rule, by which
    z − ΣH̃ᵀUΛ⁻¹(a − a′) is a sample if a′ is one of the new a. As new a serves the old one, shrunk by √(v/λ). With
    z − μ = R ε_R + L⁻ᵀε_L and ΣH̃ᵀc = R (H̃R)ᵀc + L⁻ᵀVc, that is a correction of the noise,

        ε_L ← ε_L + Vc,   ε_R ← ε_R + (H̃R)ᵀc,   c = UΛ⁻¹(√(v/λ) − 1) Uᵀ(Vᵀε_L + H̃R ε_R),

    after which everything goes as without observations: no further solve a sample, and densities from the noise.

    A proposal may be surer of itself than it should. `widening` multiplies the variances that it gives to what was
    observed, λ ← τλ, and leaves how the rest of the field follows: q_τ(z) = q(z | Hz) N(Hz; Hμ, τHΣHᵀ) takes q's place.

    Args:
        proposal: q, batch shape (1,).
        observations: y, H and s.
        widening: τ ≥ 1; None for the one under which the observations are likeliest, N(y; Hμ, τHΣHᵀ + s²). It is 1
            where the proposal had room for them.

    Raises:
        ShapeError: for a batch.
        ObservationError: for a widening below 1.
        OutOfMemoryError: if V, a field for each observation, does not fit into memory.
    """

    @torch.no_grad()
    def __init__(self, proposal: StructuredGaussian, observations: Observations, widening: float | None = 1.0) -> None:
        if tuple(proposal.batch_shape) != (1,):
            raise ShapeError("the mean of one pair's proposal", "(1, 3, x, y, z)", proposal.mean.shape)
        if widening is not None and not 1.0 <= widening <= MOST_WIDENING:
            raise ObservationError(f"the widening must be from 1 to {MOST_WIDENING:g}, got {widening}")
        super().__init__(proposal.mean, proposal.stencil_parameters, proposal.cov_factor, validate=False)
        self.cholesky = proposal.cholesky  # what is packed for its solves is used again
        self.proposal, self.observations = proposal, observations
        needed = 2 * len(observations) * self.dimensions * self.mean.element_size()
        available = free_bytes(self.mean.device)
        if available is not None and needed > available:
            raise OutOfMemoryError(f"conditioning on {len(observations)} numbers", needed, available)
        self._std = observations.std.to(self.mean.device)
        rows = observations.rows(self.event_shape[1:], self.mean)
        rows /= self._std.to(rows.dtype)[:, None, None, None, None]
        self._whitened = self.cholesky.solve(rows[:, None], overwrite=True)  # V, (m, 1, 3, x, y, z)
        self._on_factor = observations.apply(self.cov_factor[0]) / self._std  # (H̃R)ᵀ, (r, m), float64
        spread = inner_products(self._whitened.flatten(2), self._whitened.flatten(2))[0]
        values, self._u = torch.linalg.eigh(spread + self._on_factor.T @ self._on_factor)
        self._lambda = values.clamp_min(values[-1] * 1e-14)
        given = observations.values.to(self.mean.device)
        self._surprise = (given - observations.apply(proposal.mean)[0]) / self._std @ self._u  # Uᵀ(ỹ − H̃μ), (m,)
        self._wide = values > _NEGLIGIBLE * values[-1]
        self.widening = self._likeliest() if widening is None else float(widening)
        self._tau = torch.where(self._wide, self.widening, 1.0).to(self._lambda)
        total = 1 + self._tau * self._lambda
        self.mean = proposal.rsample(noise=self._lift((self._tau / total * self._surprise)[None]), overwrite=True)[0]
        self._residual = (given - observations.apply(self.mean)[0]) / self._std  # ỹ − H̃ mean, (m,)

    # Sampling

    @torch.no_grad()
    def noise(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Noise:
        """As that of the proposal, and corrected by Matheron's rule; sample i has the same noise ε as before."""
        free = super().noise(n, seed=seed, indices=indices)
        shrink = ((self._tau / (1 + self._tau * self._lambda)).sqrt() - 1) / self._lambda
        # Where λ is nothing beside 1, the difference of two ones is.
        shrink = torch.where((self._tau == 1) & (self._lambda < 1e-6), -0.5, shrink)
        change = self._lift(self._seen(free) @ self._u * shrink)
        return Noise(free.structured.add_(change.structured), free.low_rank.add_(change.low_rank))

    # Densities

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, as of the base class: (z − mean)ᵀ(Σ⁻¹ + H̃ᵀUEUᵀH̃)(z − mean) is the sum of two forms."""
        single = value.ndim == self.mean.ndim
        fields = (value if not single else value[None])[:, 0] - self.mean
        density = super().log_prob(value)
        return density - 0.5 * self._form(self.observations.apply(fields) / self._std).reshape(density.shape)

    def log_prob_from_noise(self, noise: Noise) -> Tensor:
        """Log-density of the samples made of this noise, shape (N, 1)."""
        return super().log_prob_from_noise(noise) - 0.5 * self._form(self._seen(noise))[:, None]

    def log_det(self) -> Tensor:
        """Of the covariance: log det Σ + Σ log v/λ, shape (1,)."""
        return super().log_det() + (self._tau / (1 + self._tau * self._lambda)).log().sum()

    def precision_matvec(self, x: Tensor) -> Tensor:
        """(Σ⁻¹ + H̃ᵀUEUᵀH̃) x for x of shape (N, 1, 3, x, y, z)."""
        seen = self.observations.apply(x[:, 0]) / self._std @ self._u * self._extra() @ self._u.T / self._std
        rows = self.observations.rows(self.event_shape[1:], self.mean).flatten(1)
        return super().precision_matvec(x) + (seen.to(x.dtype) @ rows).reshape(x.shape)

    def marginal_variance(self, num_probes: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
        """diag Σ + Σ_i (v_i − λ_i)/λ_i² (ΣH̃ᵀu_i)²; the second term is exact, so the error is that of the first."""
        variance, error = self.proposal.marginal_variance(num_probes, seed)
        tau, values = self._tau, self._lambda
        change = (tau - 1 - tau * values) / (values * (1 + tau * values))
        change = torch.where(tau == 1, -1 / (1 + values), change).to(variance.dtype)
        columns = self.proposal.rsample(noise=self._lift(torch.eye(len(values)).to(values)), overwrite=True)
        columns = (columns - self.proposal.mean).square() * change[:, None, None, None, None, None]
        return variance + columns.sum(0), error

    # What the observations say

    def log_observations(self, noise: Noise) -> Tensor:
        """log N(y; H z, s²) of the samples made of this noise, shape (N, 1)."""
        square = (self._residual - self._seen(noise)).square().sum(1, keepdim=True)
        return -0.5 * (square + self._log_scale())

    def log_evidence(self) -> float:
        """log N(y; Hμ, τHΣHᵀ + s²): how much the proposal expected what was observed."""
        return float(self._log_evidence(self._tau)) - 0.5 * float(self._log_scale())

    def surprise(self) -> float:
        """(y − Hμ)ᵀ(HΣHᵀ + s²)⁻¹(y − Hμ), whatever the widening: like χ² with m degrees of freedom, if proposal and
        errors are as they say.
        """
        return float((self._surprise.square() / (1 + self._lambda)).sum())

    # Parts

    def _likeliest(self) -> float:
        """The τ of the highest evidence on a fine logarithmic grid: no more is needed, and no search can go astray."""
        grid = torch.logspace(0, math.log10(MOST_WIDENING), 401, dtype=torch.float64, device=self._lambda.device)
        values = torch.stack([self._log_evidence(torch.where(self._wide, tau, 1.0)) for tau in grid])
        return float(grid[int(values.argmax())])

    def _log_evidence(self, tau: Tensor) -> Tensor:
        """Up to the constant of `_log_scale`."""
        total = 1 + tau * self._lambda
        return -0.5 * (self._surprise.square() / total + total.log()).sum()

    def _extra(self) -> Tensor:
        """E = 1/v − 1/λ: what the observations add to the precision of the m numbers; 1 without widening."""
        return 1 - (self._tau - 1) / (self._tau * self._lambda)

    def _form(self, seen: Tensor) -> Tensor:
        """The form with UEUᵀ of H̃x, (N, m); shape (N,)."""
        return ((seen @ self._u).square() * self._extra()).sum(1)

    def _seen(self, noise: Noise) -> Tensor:
        """H̃(R ε_R + L⁻ᵀε_L) = Vᵀε_L + H̃R ε_R, shape (N, m), float64."""
        structured = inner_products(noise.structured.flatten(2), self._whitened.flatten(2))[0]
        return structured + noise.low_rank[:, 0].double() @ self._on_factor

    def _lift(self, coefficients: Tensor) -> Noise:
        """Noise that makes ΣH̃ᵀUc, for c of shape (N, m)."""
        coefficients = coefficients @ self._u.T
        flat = coefficients.to(self._whitened.dtype) @ self._whitened.flatten(1)
        structured = flat.reshape(-1, *self._whitened.shape[1:])
        return Noise(structured, (coefficients @ self._on_factor.T).to(structured.dtype)[:, None])

    def _log_scale(self) -> Tensor:
        return 2 * self._std.log().sum() + len(self._std) * math.log(2 * math.pi)
