"""A registration without images: y = A z + noise with a Gaussian prior, whose posterior and evidence are known."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal

from scripts.gaussian import StructuredGaussian
from scripts.networks import ProposalLayout
from tests.gaussian.dense import DenseGaussian, unvec, vec

GRID = (2, 2, 3)


class LinearGaussianTarget(nn.Module):
    """Stands in for `Target`: z ~ N(0, I/τ) and y | z ~ N(A z, I), densities with all their constants.

    Its `prepare` takes y from the first numbers of the moving image.
    """

    def __init__(self, design: Tensor, prior_precision: float) -> None:
        super().__init__()
        self.design = design  # A, (m, D)
        self.prior_precision = prior_precision  # τ

    def prepare(self, moving: Tensor, fixed: Tensor, mask=None, labels=None, seed=0) -> list[Tensor]:
        return list(moving.flatten(1)[:, : self.design.shape[0]])

    def log_likelihood(self, y: Tensor, z: Tensor) -> Tensor:
        return _standard_normal(y - vec(z).T @ self.design.T)

    def log_prior(self, z: Tensor) -> Tensor:
        scaled = vec(z).T * self.prior_precision**0.5
        return _standard_normal(scaled) + scaled.shape[1] * 0.5 * math.log(self.prior_precision)

    def forward(self, y: Tensor, z: Tensor) -> Tensor:
        return self.log_likelihood(y, z) + self.log_prior(z)

    def log_mean_prior(self, mean: Tensor) -> Tensor:
        return mean.new_zeros(mean.shape[0])

    def posterior(self, y: Tensor) -> MultivariateNormal:
        """N(Λ⁻¹Aᵀy, Λ⁻¹) with Λ = τI + AᵀA."""
        precision = self.prior_precision * torch.eye(self.design.shape[1], dtype=y.dtype) + self.design.T @ self.design
        mean = torch.linalg.solve(precision, self.design.T @ y)
        return MultivariateNormal(mean, precision_matrix=precision)

    def log_evidence(self, y: Tensor) -> Tensor:
        """log p(y): y ~ N(0, A Aᵀ/τ + I)."""
        covariance = self.design @ self.design.T / self.prior_precision + torch.eye(len(y), dtype=y.dtype)
        return MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)


def _standard_normal(x: Tensor) -> Tensor:
    """Log-density of N(0, I) at the rows of x."""
    return -0.5 * (x.square().sum(1) + x.shape[1] * math.log(2 * math.pi))


def target_with_posterior(dense: DenseGaussian) -> tuple[LinearGaussianTarget, Tensor]:
    """A target and an observation y whose posterior is the given Gaussian.

    Half of the smallest eigenvalue of its precision Λ becomes the prior's τ, and Λ − τI = C Cᵀ is left to A = Cᵀ.
    """
    precision = torch.linalg.inv(dense.covariance)
    tau = 0.5 * float(torch.linalg.eigvalsh(precision).min())
    factor = torch.linalg.cholesky(precision - tau * torch.eye(len(precision), dtype=precision.dtype))
    return LinearGaussianTarget(factor.T, tau), torch.linalg.solve(factor, precision @ dense.mean)


def image_of(*observations: Tensor) -> Tensor:
    """A batch of moving images [B, 1, 4, 4, 6] from which `prepare` takes the observations again."""
    moving = torch.zeros(len(observations), 4 * 4 * 6, dtype=torch.float64)
    for row, y in zip(moving, observations, strict=True):
        row[: len(y)] = y
    return moving.reshape(-1, 1, 4, 4, 6)


def dense_of(gaussian: StructuredGaussian) -> DenseGaussian:
    """The only batch element as a plain multivariate normal."""
    return DenseGaussian(gaussian.stencil, gaussian.mean[0], gaussian.stencil_parameters[0], gaussian.cov_factor[0])


def dense_of_raw(layout: ProposalLayout, raw: Tensor) -> DenseGaussian:
    """The same from a network's raw output [C, x, y, z], read by hand: mean, diagonal and rest of L, columns of R."""
    split = 3 + layout.stencil.num_channels
    diagonal = torch.log1p(torch.exp(raw[3:6])) / (math.log(2) * layout.stencil.initial_std)
    entries = torch.cat([diagonal, raw[6:split]])
    return DenseGaussian(layout.stencil, raw[:3], entries, raw[split:].reshape(layout.rank, 3, *raw.shape[1:]))


def dense_samples(dense: DenseGaussian, gaussian: StructuredGaussian, count: int, seed: int) -> Tensor:
    """Samples 0 … count − 1 of the seed, [N, 3, x, y, z], by dense linear algebra: μ + R ε_R + L⁻ᵀ ε_L."""
    noise = gaussian.noise(count, seed=seed)
    columns = dense.mean[:, None] + dense.R @ noise.low_rank[:, 0].T
    columns = columns + torch.linalg.solve(dense.L.T, vec(noise.structured[:, 0]))
    return unvec(columns, tuple(gaussian.event_shape[1:]))
