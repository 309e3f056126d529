"""A Gaussian over displacement fields with covariance R Rᵀ + (L Lᵀ)⁻¹, in the manner of torch.distributions."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.core.memory import free_bytes
from scripts.gaussian.capacitance import capacitance, inner_products, recorded, squared_norms
from scripts.gaussian.cholesky import StencilCholesky
from scripts.gaussian.errors import GaussianError, OutOfMemoryError, ShapeError, check_finite
from scripts.gaussian.noise import fold, standard_normal
from scripts.gaussian.stencil import CHANNELS, Stencil


class Noise(NamedTuple):
    """What a sample is made of; a few bytes (seed and index) bring it back, see `StructuredGaussian.noise`."""

    structured: Tensor  # ε_L, shape (N, *batch, 3, X, Y, Z)
    low_rank: Tensor  # ε_R, shape (N, *batch, r)


class StructuredGaussian:
    """N(mean, R Rᵀ + (L Lᵀ)⁻¹) over fields with three channels on a 3-D grid, D = 3·X·Y·Z dimensions.

    The paper's four covariances come from leaving parts out: D (diagonal L), LD (diagonal L and R), C (L with
    neighbors), LC (both).

    Args:
        mean: shape (*batch, 3, X, Y, Z).
        stencil_parameters: entries of L with positive diagonal, shape (*batch, 3 | 45 | 123, X, Y, Z); raw network
            output goes through `Stencil.entries` first.
        cov_factor: R as r fields, shape (*batch, r, 3, X, Y, Z); None or r = 0 for no low-rank part.
        backend: solver for L, see `scripts.gaussian.backends`; None for the fastest on the device.
        validate: check the parameters' values (shapes are always checked).

    Raises:
        ShapeError, NonFiniteError, NonPositiveDiagonalError: for parameters that are no such Gaussian.

    Densities are float64 whatever the dtype of the parameters: in 1.6 million dimensions they are of the order 10⁶,
    where float32 has steps of 0.1, and importance weights are differences of them.

    Examples:
        >>> entries = Stencil("voxel").entries(torch.zeros(1, 45, 4, 4, 4))
        >>> gaussian = StructuredGaussian(torch.zeros(1, 3, 4, 4, 4), entries)
        >>> gaussian.rsample(5, seed=0).shape
        torch.Size([5, 1, 3, 4, 4, 4])
    """

    limit: int | None = None
    """Of different samples; none."""

    def __init__(
        self,
        mean: Tensor,
        stencil_parameters: Tensor,
        cov_factor: Tensor | None = None,
        *,
        backend: str | None = None,
        validate: bool = True,
    ) -> None:
        if mean.ndim < 4 or mean.shape[-4] != CHANNELS:
            raise ShapeError("mean", f"(*batch, {CHANNELS}, X, Y, Z)", mean.shape)
        if 0 in mean.shape[-3:]:
            raise ShapeError("mean", f"(*batch, {CHANNELS}, X, Y, Z) with X, Y, Z > 0", mean.shape)
        self.batch_shape, self.event_shape = mean.shape[:-4], mean.shape[-4:]
        batch, grid = self.batch_shape, mean.shape[-3:]
        named = ", ".join(map(str, (*batch, "{}", *grid)))
        if (*stencil_parameters.shape[:-4], *stencil_parameters.shape[-3:]) != (*batch, *grid):
            raise ShapeError("stencil_parameters", f"({named.format('3 | 45 | 123')})", stencil_parameters.shape)
        if cov_factor is None:
            cov_factor = mean.new_zeros((*batch, 0, *self.event_shape))
        if (*cov_factor.shape[:-5], *cov_factor.shape[-4:]) != (*batch, *self.event_shape):
            raise ShapeError("cov_factor", f"({named.format(f'r, {CHANNELS}')})", cov_factor.shape)
        if validate:
            for name, tensor in (("mean", mean), ("cov_factor", cov_factor)):
                check_finite(name, tensor.detach())

        self.stencil = Stencil.from_num_channels(stencil_parameters.shape[-4])
        self.rank = cov_factor.shape[-5]
        self.mean = mean
        self.stencil_parameters = stencil_parameters
        self.cov_factor = cov_factor
        flat = (batch.numel(), -1, *grid)
        self.cholesky = StencilCholesky(self.stencil, stencil_parameters.reshape(flat), backend, validate)

    @property
    def dimensions(self) -> int:
        """D: numbers in one field."""
        return self.event_shape.numel()

    # Sampling

    def noise(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Noise:
        """Noise of samples 0 … n−1 of a seed, or of exactly those in `indices`; always the same for the same sample.

        Elements of a batch have independent noise: element b is drawn from `fold(seed, b)`, so the loop over the batch
        with these seeds gives the batch.

        Raises:
            OutOfMemoryError: if so many samples do not fit into memory.
        """
        if (n is None) == (indices is None):
            raise GaussianError("give either the number of samples n or their indices")
        indices = range(n) if indices is None and n is not None else list(indices or [])
        make = functools.partial(standard_normal, device=self.mean.device, dtype=self.mean.dtype)
        size = len(indices) * self.batch_shape.numel() * self.dimensions * self.mean.element_size()
        available = free_bytes(self.mean.device)
        if available is not None and size > available:
            raise OutOfMemoryError(f"noise for {len(indices)} samples of {tuple(self.event_shape)}", size, available)
        structured, low_rank = [], []
        for b in range(self.batch_shape.numel()):
            # The low-rank numbers have a stream of their own, so that they do not depend on the grid.
            structured.append(make(self.event_shape, fold(seed, b), indices))
            low_rank.append(make((self.rank,), fold(fold(seed, b), 1 << 32), indices))
        return Noise(
            _joined(structured).reshape(len(indices), *self.batch_shape, *self.event_shape),
            _joined(low_rank).reshape(len(indices), *self.batch_shape, self.rank),
        )

    def rsample(
        self,
        n: int | None = None,
        *,
        seed: int = 0,
        indices: Sequence[int] | None = None,
        noise: Noise | None = None,
        overwrite: bool = False,
    ) -> Tensor:
        """Z = mean + R ε_R + L⁻ᵀ ε_L (decision 5), with gradients to all parameters.

        Args:
            n: how many samples; or
            indices: which samples of the seed; or
            noise: what to make them of.
            seed: which sequence of samples.
            overwrite: the given noise is not needed any more: make the samples in its memory (where no gradient is
                wanted).

        Returns:
            shape (n, *batch, 3, X, Y, Z).
        """
        if noise is None:
            noise, overwrite = self.noise(n, seed=seed, indices=indices), True
        self._check_noise(noise)
        z = self.cholesky.solve(self._internal(noise.structured), transpose=True, overwrite=overwrite)
        z = z.reshape(noise.structured.shape)
        if self.rank:
            # (b, n, r) @ (b, r, D): one small matrix product per batch element
            weights = noise.low_rank.reshape(-1, self.batch_shape.numel(), self.rank).transpose(0, 1)
            factor = self.cov_factor.reshape(-1, self.rank, self.dimensions)
            if len(factor) == 1 and not recorded(z, weights, factor):
                # in place: no second set of samples
                z = z.reshape(-1, self.dimensions).addmm_(weights[0], factor[0]).reshape(z.shape)
            else:
                z = _add(z, (weights @ factor).transpose(0, 1).reshape(z.shape))
        return _add(z, self.mean)

    def sample(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Tensor:
        """`rsample` without gradients."""
        with torch.no_grad():
            return self.rsample(n, seed=seed, indices=indices)

    def draw(self, indices: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples of a seed with their log-densities, shapes (n, *batch, 3, X, Y, Z) and (n, *batch); no gradients."""
        with torch.no_grad():
            noise = self.noise(indices=indices, seed=seed)
            log_density = self.log_prob_from_noise(noise)
            return self.rsample(noise=noise, overwrite=True), log_density

    def average(self, indices: Sequence[int], weights: Tensor, seed: int = 0) -> Tensor:
        """Σ w Z of some samples, Σ w = 1, shape (*batch, 3, X, Y, Z): one solve, as Z is linear in its noise."""
        with torch.no_grad():
            total: Noise | None = None
            for index, weight in zip(indices, weights.tolist(), strict=True):
                part = Noise(*(values.mul_(weight) for values in self.noise(indices=[index], seed=seed)))
                total = part if total is None else Noise(*(a.add_(b) for a, b in zip(total, part, strict=True)))
            return self.rsample(noise=total, overwrite=True)[0]

    # Densities

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density, shape (N, *batch), of fields (N, *batch, 3, X, Y, Z); N may be missing in both.

        k = Lᵀ(z − mean);  (z − mean)ᵀΣ⁻¹(z − mean) = kᵀk − (Sᵀk)ᵀM⁻¹(Sᵀk)
        """
        single = value.ndim == self.mean.ndim
        value = value[None] if single else value
        self._check_fields("value", value)
        whitened = self.cholesky.multiply(self._internal(value - self.mean), transpose=True)  # k
        square = whitened.square().sum(dim=(2, 3, 4, 5), dtype=torch.float64)
        if self.rank:
            projected = self._project(whitened)  # Sᵀk
            square = square - self._inverse_capacitance_form(projected)
        return self._log_density(square)[0 if single else slice(None)]

    def log_prob_from_noise(self, noise: Noise) -> Tensor:
        """Log-density of the samples made of this noise, shape (N, *batch), without touching the stencil (decision 6).

        k = Lᵀ(Z − mean) = S ε_R + ε_L, so with G = SᵀS and t = Sᵀε_L:
        kᵀk = ε_RᵀGε_R + 2 ε_Rᵀt + ε_Lᵀε_L and Sᵀk = Gε_R + t.
        """
        self._check_noise(noise)
        structured = self._internal(noise.structured)
        square = squared_norms(structured.flatten(2))
        if self.rank:
            eps = noise.low_rank.reshape(-1, self.batch_shape.numel(), self.rank).double()
            t = self._project(structured)
            g_eps = torch.einsum("brs,nbs->nbr", self._gram, eps)
            square = square + (eps * (g_eps + 2 * t)).sum(-1) - self._inverse_capacitance_form(g_eps + t)
        return self._log_density(square)

    def log_det(self) -> Tensor:
        """log det Σ = −2 log det L + log det M, shape (*batch)."""
        value = -2.0 * self.cholesky.log_det()
        if self.rank:
            value = value + self._capacitance[1]
        return value.reshape(self.batch_shape)

    def entropy(self) -> Tensor:
        """½ (D (1 + log 2π) + log det Σ), shape (*batch)."""
        return 0.5 * (self.dimensions * (1.0 + math.log(2.0 * math.pi)) + self.log_det())

    def marginal_variance(self, num_probes: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
        """The diagonal of Σ and the standard error of each number, both of shape (*batch, 3, X, Y, Z).

        Exact, with error 0, where L is diagonal (D, LD). Otherwise the diagonal of (L Lᵀ)⁻¹ is estimated without bias
        from `num_probes` samples x = L⁻ᵀε by the law of total variance: given all its neighbors, dimension i has the
        variance 1/Q_ii and the mean x_i − (Qx)_i/Q_ii, with Q = L Lᵀ and Qx = Lε at hand. Only the variance of that
        mean is estimated, so the error is smaller than that of the plain sample variance, √(2/num_probes).
        """
        cholesky = self.cholesky
        low_rank = self.cov_factor.detach().square().sum(-5)
        with torch.no_grad():
            if self.stencil.is_diagonal:
                exact = cholesky.diagonal.square().reciprocal().reshape(self.mean.shape)
                return exact + low_rank, torch.zeros_like(low_rank)
            conditional = cholesky.row_norms().reciprocal()  # 1 / Q_ii, shape (B, 3, X, Y, Z)
            total = torch.zeros_like(conditional, dtype=torch.float64)
            total_square = torch.zeros_like(total)
            chunk = 16
            for start in range(0, num_probes, chunk):
                probes = range(start, min(start + chunk, num_probes))
                eps = self._internal(self.noise(indices=probes, seed=seed).structured)
                deviation = cholesky.solve(eps, transpose=True) - cholesky.multiply(eps) * conditional
                square = deviation.double().square()
                total += square.sum(0)
                total_square += square.square().sum(0)
            mean_square = total / num_probes
            spread = (total_square / num_probes - mean_square.square()).clamp_min(0.0)
            error = (spread / max(num_probes - 1, 1)).sqrt()
            estimate = (conditional.double() + mean_square).to(conditional.dtype).reshape(self.mean.shape)
            return estimate + low_rank, error.to(low_rank.dtype).reshape(self.mean.shape)

    # Parts

    @functools.cached_property
    def _s(self) -> Tensor:
        """S = LᵀR as fields, shape (r, B, 3, X, Y, Z)."""
        factors = self.cov_factor.reshape(-1, self.rank, *self.event_shape).transpose(0, 1)
        return self.cholesky.multiply(factors, transpose=True)

    @functools.cached_property
    def _gram(self) -> Tensor:
        """G = SᵀS, shape (B, r, r), float64."""
        flat = self._s.flatten(2)
        return inner_products(flat, flat)

    @functools.cached_property
    def _capacitance(self) -> tuple[Tensor, Tensor]:
        """M⁻¹ and log det M."""
        return capacitance(self._gram)

    def _project(self, fields: Tensor) -> Tensor:
        """Sᵀx for x of shape (N, B, 3, X, Y, Z); shape (N, B, r), float64."""
        return inner_products(fields.flatten(2), self._s.flatten(2)).transpose(0, 1)

    def _inverse_capacitance_form(self, a: Tensor) -> Tensor:
        """aᵀM⁻¹a for a of shape (N, B, r)."""
        return torch.einsum("nbr,brs,nbs->nb", a, self._capacitance[0], a)

    def _log_density(self, square: Tensor) -> Tensor:
        """−½ (square + log det Σ + D log 2π): all D = 3·X·Y·Z dimensions count, not the voxels."""
        square = square.reshape(-1, *self.batch_shape)
        return -0.5 * (square + self.log_det() + self.dimensions * math.log(2.0 * math.pi))

    def _internal(self, fields: Tensor) -> Tensor:
        """(N, *batch, 3, X, Y, Z) to (N, B, 3, X, Y, Z)."""
        return fields.reshape(fields.shape[0], self.batch_shape.numel(), *self.event_shape)

    def _check_fields(self, name: str, fields: Tensor) -> None:
        expected = (*self.batch_shape, *self.event_shape)
        if tuple(fields.shape[1:]) != expected:
            raise ShapeError(name, f"(N, {', '.join(map(str, expected))})", fields.shape)

    def _check_noise(self, noise: Noise) -> None:
        self._check_fields("noise.structured", noise.structured)
        expected = (noise.structured.shape[0], *self.batch_shape, self.rank)
        if tuple(noise.low_rank.shape) != expected:
            raise ShapeError("noise.low_rank", str(expected), noise.low_rank.shape)


def _joined(parts: list[Tensor]) -> Tensor:
    """The batch's elements side by side; a single one is not copied, which would cost as much as solving with it."""
    return parts[0][:, None] if len(parts) == 1 else torch.stack(parts, dim=1)


def _add(total: Tensor, term: Tensor) -> Tensor:
    """total + term, in total's memory where no gradient is recorded."""
    return total + term if recorded(total, term) else total.add_(term)
