"""A Gaussian of smoothed fields against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from scripts.gaussian import Stencil, StructuredGaussian
from scripts.gaussian.errors import GaussianError
from scripts.gaussian.smoothed import SmoothedCholesky

GRID = (3, 4, 3)
SHARE, PASSES = 0.2, 2


@pytest.fixture
def gaussian():
    generator = torch.Generator().manual_seed(1)
    entries = Stencil("voxel").entries(0.2 * torch.randn(1, 45, *GRID, generator=generator, dtype=torch.float64))
    mean = torch.randn(1, 3, *GRID, generator=generator, dtype=torch.float64)
    factor = 0.3 * torch.randn(1, 2, 3, *GRID, generator=generator, dtype=torch.float64)
    made = StructuredGaussian(mean, entries, factor)
    made.cholesky = SmoothedCholesky(made.cholesky, SHARE, PASSES)
    return made


def smoothing():
    """S as a matrix for dimensions by channel, then voxel."""
    parts = []
    for size in GRID:
        one = np.eye(size) * (1 - 2 * SHARE)
        for i in range(size):
            one[i, max(i - 1, 0)] += SHARE
            one[i, min(i + 1, size - 1)] += SHARE
        parts.append(np.linalg.matrix_power(one, PASSES))
    return np.kron(np.eye(3), np.kron(parts[0], np.kron(parts[1], parts[2])))


def covariance(gaussian):
    plain = StructuredGaussian(gaussian.mean, gaussian.stencil_parameters)
    unit = torch.eye(gaussian.dimensions, dtype=torch.float64).reshape(-1, 1, 3, *GRID)
    precision = plain.cholesky.multiply(plain.cholesky.multiply(unit, transpose=True)).flatten(1).numpy()  # L Lᵀ
    s, r = smoothing(), gaussian.cov_factor.flatten(2)[0].numpy()
    return s @ np.linalg.inv(precision) @ s + r.T @ r


def test_density_and_log_det_are_those_of_the_dense_covariance(gaussian):
    dense = covariance(gaussian)
    z = gaussian.sample(5, seed=3)
    expected = multivariate_normal(gaussian.mean.flatten().numpy(), dense).logpdf(z.flatten(1).numpy())
    np.testing.assert_allclose(gaussian.log_prob(z)[:, 0].numpy(), expected, rtol=1e-9)
    drawn, log_q = gaussian.draw(range(5), seed=3)
    assert torch.equal(drawn, z)
    np.testing.assert_allclose(log_q[:, 0].numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(float(gaussian.log_det()), np.linalg.slogdet(dense)[1], rtol=1e-9)


def test_samples_have_the_dense_covariance(gaussian):
    z = gaussian.sample(20000, seed=0).flatten(1).numpy()
    dense = covariance(gaussian)
    found = np.cov(z.T)
    # Var of a sample covariance: (c_ii c_jj + c_ij²)/n; five standard errors.
    error = np.sqrt((np.outer(np.diag(dense), np.diag(dense)) + dense**2) / 20000)
    assert (np.abs(found - dense) < 5.5 * error).all()
    variance, _ = gaussian.marginal_variance(2000)
    np.testing.assert_allclose(variance.flatten().numpy(), np.diag(dense), rtol=0.2)


def test_one_and_its_inverse(gaussian):
    x = torch.randn(2, 1, 3, *GRID, dtype=torch.float64)
    torch.testing.assert_close(gaussian.cholesky.roughened(gaussian.cholesky.smoothed(x)), x)
    constant = torch.ones(1, 1, 3, *GRID, dtype=torch.float64)
    torch.testing.assert_close(gaussian.cholesky.smoothed(constant), constant)


@pytest.mark.parametrize(("share", "passes"), [(0.25, 1), (-0.1, 1), (0.1, -1)])
def test_impossible_smoothing_is_refused(gaussian, share, passes):
    with pytest.raises(GaussianError, match="smoothing"):
        SmoothedCholesky(gaussian.cholesky, share, passes)
