from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import uniform_filter

from scripts.registration.errors import OptionError, RegistrationError, ShapeError
from scripts.registration.local_correlation import (
    EPS,
    MSELikelihood,
    NCCLikelihood,
    box_sum,
    fixed_statistics,
    local_ncc,
)
from tests.registration.conftest import brain_like, noise

GRID = (30, 12, 15)  # more than one slab of planes
pytestmark = pytest.mark.usefixtures("engine")


def naive_ncc(fixed, moving, window, eps=EPS):
    """By definition: loop over voxels, NumPy's statistics of each window."""
    f, m, r = fixed[0, 0].double().numpy(), moving[0, 0].double().numpy(), window // 2
    out = np.empty(f.shape)
    for index in np.ndindex(f.shape):
        box = tuple(slice(max(i - r, 0), i + r + 1) for i in index)
        a, b = f[box] - f[box].mean(), m[box] - m[box].mean()
        out[index] = (a * b).mean() ** 2 / (((a * a).mean() + eps) * ((b * b).mean() + eps))
    return out


def autograd_ncc(fixed, moving, window, eps=EPS):
    """Plain torch operations, for autograd to differentiate."""
    share = 1 / box_sum(torch.ones_like(fixed), window)
    f_mean, m_mean = box_sum(fixed, window) * share, box_sum(moving, window) * share
    covariance = box_sum(fixed * moving, window) * share - f_mean * m_mean
    f_var = box_sum(fixed**2, window) * share - f_mean**2
    m_var = box_sum(moving**2, window) * share - m_mean**2
    return covariance**2 / ((f_var + eps) * (m_var + eps))


class TestLocalCorrelation:
    @pytest.mark.parametrize("window", [1, 3, 5, 9])
    def test_agrees_with_the_definition(self, window, device):
        fixed, moving = brain_like(*GRID, seed=1), brain_like(*GRID, seed=2)
        result = local_ncc(fixed.to(device), moving.to(device), window).cpu()
        assert result.dtype == torch.float32
        np.testing.assert_allclose(result[0, 0], naive_ncc(fixed, moving, window), rtol=1e-6, atol=1e-7)

    def test_agrees_with_uniform_filter_inside(self, device):
        fixed, moving = brain_like(*GRID, seed=1), brain_like(*GRID, seed=2)
        f, m = fixed[0, 0].double().numpy(), moving[0, 0].double().numpy()
        mean = lambda x: uniform_filter(x, 5)  # noqa: E731
        covariance = mean(f * m) - mean(f) * mean(m)
        expected = covariance**2 / ((mean(f * f) - mean(f) ** 2 + EPS) * (mean(m * m) - mean(m) ** 2 + EPS))
        result = local_ncc(fixed.to(device), moving.to(device), 5).cpu()[0, 0]
        inside = (slice(2, -2),) * 3
        np.testing.assert_allclose(result[inside], expected[inside], rtol=1e-6, atol=1e-7)

    @pytest.mark.parametrize("window", [3, 9])
    def test_brightness_and_contrast_do_not_matter(self, window, device):
        fixed, moving = (noise(1, 1, *GRID, seed=s, dtype=torch.float32).to(device) for s in (1, 2))
        expected = local_ncc(fixed, moving, window, 1e-12)
        torch.testing.assert_close(local_ncc(fixed, -7 * moving + 100, window, 1e-12), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(local_ncc(0.5 * fixed - 3, moving, window, 1e-12), expected, rtol=0, atol=1e-4)

    def test_equal_images_correlate_fully_where_there_is_contrast(self, device):
        image = noise(1, 1, *GRID, dtype=torch.float32).to(device)
        result = local_ncc(image, 3 - 2 * image, 5)
        assert float(result.max()) <= 1
        assert float(result.min()) > 0.999

    @pytest.mark.parametrize("level", [0.0, 0.3, 1.0, 4095.7])
    def test_constant_regions_give_zero(self, level, device):
        image = noise(1, 1, *GRID, dtype=torch.float32).to(device)
        flat = image.clone()
        flat[:, :, 5:25, :, 2:] = level  # constant after something that is not
        for pair in ((image, flat), (flat, image), (flat, flat)):
            moving = pair[1].clone().requires_grad_()
            result = local_ncc(pair[0], moving, 5)
            (gradient,) = torch.autograd.grad(result.sum(), moving)
            result = result.detach()
            assert torch.isfinite(gradient).all()
            assert float(result.min()) >= 0
            assert float(result.max()) <= 1
            assert float(result[:, :, 7:23, :, 4:].max()) < 1e-6

    def test_float32_is_as_good_as_float64(self, device):
        # Weak contrast on a bright ground: where float32 sums lose everything.
        fixed, moving = (0.8 + 0.01 * noise(1, 1, *GRID, seed=s, dtype=torch.float32) for s in (1, 2))
        result = local_ncc(fixed.to(device), moving.to(device), 9).cpu()
        torch.testing.assert_close(result.double(), local_ncc(fixed.double(), moving.double(), 9), rtol=0, atol=1e-7)

    @pytest.mark.parametrize("window", [3, 5])
    def test_gradient(self, window):
        fixed, moving = noise(2, 1, 4, 5, 6, seed=1), noise(2, 1, 4, 5, 6, seed=2).requires_grad_()
        assert torch.autograd.gradcheck(lambda m: local_ncc(fixed, m, window), moving)

    def test_gradient_equals_autograds(self, device):
        fixed = brain_like(*GRID, seed=1, dtype=torch.float64).to(device)
        moving = brain_like(*GRID, seed=2, dtype=torch.float64).to(device).requires_grad_()
        weight = noise(1, 1, *GRID, seed=3).to(device)
        (expected,) = torch.autograd.grad(autograd_ncc(fixed, moving, 5), moving, weight)
        (result,) = torch.autograd.grad(local_ncc(fixed, moving, 5), moving, weight)
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-8)
        single = moving.detach().float().requires_grad_()
        (result,) = torch.autograd.grad(local_ncc(fixed.float(), single, 5), single, weight.float())
        torch.testing.assert_close(result.double(), expected, rtol=1e-3, atol=1e-5 * float(expected.abs().max()))

    def test_one_fixed_image_serves_many_samples(self, device):
        module = NCCLikelihood(5)
        fixed = brain_like(*GRID, seed=1).to(device)
        moving = torch.cat([brain_like(*GRID, seed=s) for s in (2, 3, 4)]).to(device)
        statistics = module.precompute(fixed)
        expected = torch.cat([module(fixed, one[None]) for one in moving])
        assert torch.equal(module(statistics, moving), expected)

    def test_refuses_what_does_not_fit(self):
        image = torch.zeros(1, 1, 5, 5, 5)
        with pytest.raises(OptionError, match="expected window to be odd and positive, got 4"):
            local_ncc(image, image, 4)
        with pytest.raises(OptionError, match="window"):
            NCCLikelihood(3)(fixed_statistics(image, 5), image)
        with pytest.raises(ShapeError, match=r"expected moving of shape \[B, 1, X, Y, Z\], got \(1, 2, 5, 5, 5\)"):
            local_ncc(image, image.expand(1, 2, 5, 5, 5))
        with pytest.raises(ShapeError, match="expected fixed"):
            local_ncc(image[..., 1:], image)
        with pytest.raises(RegistrationError, match="swap the images"):
            local_ncc(image.clone().requires_grad_(), image)


class TestLikelihoods:
    def test_ncc_sums_over_voxels_by_hand(self, device):
        # One 3-voxel line, window 3. Windows {1,0}, {1,0,1}, {0,1} of f and its negative of m: ncc² = (v/(v + ε))².
        fixed = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64, device=device).reshape(1, 1, 3, 1, 1)
        expected = 2 * (0.25 / (0.25 + EPS)) ** 2 + (2 / 9 / (2 / 9 + EPS)) ** 2
        result = NCCLikelihood(window=3, sigma=0.5)(fixed, 1 - fixed)
        assert result.dtype == torch.float64
        assert result.tolist() == pytest.approx([4 * expected])

    def test_ncc_with_a_mask_and_a_batch(self, device):
        fixed = brain_like(*GRID, seed=1).to(device)
        moving = torch.cat([brain_like(*GRID, seed=s) for s in (2, 3)]).to(device)
        mask = (fixed > 0).float()
        likelihood = NCCLikelihood(5, sigma=2.0)
        expected = (local_ncc(fixed, moving, 5).double() * mask).sum(dim=(1, 2, 3, 4)) / 4
        torch.testing.assert_close(likelihood(fixed, moving, mask), expected)
        torch.testing.assert_close(likelihood(likelihood.precompute(fixed), moving, mask), expected)
        assert likelihood(fixed, moving).shape == (2,)

    def test_mse_by_hand(self, device):
        fixed = torch.zeros(1, 1, 2, 1, 1, device=device)
        moving = torch.tensor([[1.0, 2.0], [0.0, 3.0]], device=device).reshape(2, 1, 2, 1, 1)
        assert MSELikelihood(sigma=0.5)(fixed, moving).tolist() == [-10.0, -18.0]
        mask = torch.tensor([1.0, 0.0], device=device).reshape(1, 1, 2, 1, 1)
        assert MSELikelihood(sigma=0.5)(fixed, moving, mask).tolist() == [-2.0, 0.0]

    def test_sums_keep_their_digits(self, device):
        # 2²⁴ + 1 ones: a float32 sum stops at 2²⁴.
        moving = torch.ones(1, 1, 257, 257, 255, device=device)
        total = MSELikelihood(sigma=math.sqrt(0.5))(torch.zeros(1, 1, 257, 257, 255, device=device), moving)
        assert total.item() == pytest.approx(-257 * 257 * 255, abs=1e-3)

    @pytest.mark.parametrize("likelihood", [NCCLikelihood(3, sigma=0.7), MSELikelihood(0.7)])
    def test_gradient(self, likelihood):
        fixed, moving = noise(1, 1, 3, 4, 5, seed=1), noise(2, 1, 3, 4, 5, seed=2).requires_grad_()
        assert torch.autograd.gradcheck(lambda m: likelihood(fixed, m), moving)

    def test_refuses_what_makes_no_likelihood(self):
        for sigma in (0.0, -1.0, math.nan):
            with pytest.raises(OptionError, match="expected sigma to be positive"):
                NCCLikelihood(sigma=sigma)
            with pytest.raises(OptionError, match="expected sigma to be positive"):
                MSELikelihood(sigma=sigma)
        image = torch.zeros(1, 1, 5, 5, 5)
        with pytest.raises(ShapeError, match="expected mask"):
            NCCLikelihood(3)(image, image, image[..., 1:])
