from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline
from scipy.ndimage import binary_dilation
from scipy.stats import entropy
from sklearn.metrics import mutual_info_score

from scripts.core.described import make
from scripts.registration import mutual_information
from scripts.registration.errors import OptionError, RegistrationError, ShapeError
from scripts.registration.local_correlation import MSELikelihood
from scripts.registration.mutual_information import MutualInformationLikelihood
from scripts.registration.parts import Likelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from scripts.registration.warp import warp
from tests.devices.watch import Watch
from tests.registration.conftest import brain_like, noise, smooth

GRID = (9, 7, 8)


@pytest.fixture(params=["few", "all"])
def chunk(request, monkeypatch):
    """Each test with few voxels at a time, and in the way that other devices go, with all of them at once."""
    monkeypatch.setattr(mutual_information, "CHUNK", {"cpu": 50} if request.param == "few" else {})


def naive_information(fixed, moving, weights, bins):
    """N · MI by definition: a joint histogram from SciPy's spline of every voxel in every bin, and its entropies."""
    f, m, w = (image.double().flatten().numpy() for image in (fixed, moving, weights))
    spline = BSpline.basis_element(np.arange(-2.0, 3.0), extrapolate=False)
    joint = np.zeros((bins, bins))
    for bin_ in range(bins):
        # Bin 1 is an intensity of 0, the last but one 1.
        shares = np.nan_to_num(spline(1 + np.clip(m, 0, 1) * (bins - 3) - bin_))
        rows = np.minimum(np.floor(f * bins), bins - 1)
        joint[:, bin_], _ = np.histogram(rows, np.arange(bins + 1), weights=w * shares)
    return w.sum() * (entropy(joint.sum(0)) + entropy(joint.sum(1)) - entropy(joint, axis=None))


def everywhere(image):
    return torch.ones_like(image)


class TestLikelihood:
    @pytest.mark.parametrize("bins", [4, 9, 32])
    def test_agrees_with_the_definition(self, bins, device, chunk):
        fixed, moving = brain_like(*GRID, seed=1), 1.2 * brain_like(*GRID, seed=2) - 0.1
        mask = (smooth(1, 1, *GRID) - 0.2).clamp_min(0)
        likelihood = MutualInformationLikelihood(bins, weight=3.0)
        for weights in (everywhere(fixed), mask):
            expected = 3 * naive_information(fixed, moving, weights, bins)
            result = likelihood(fixed.to(device), moving.to(device), weights.to(device))
            assert result.dtype == torch.float64
            assert result.tolist() == pytest.approx([expected], rel=1e-6)

    def test_far_intensities_are_like_labels(self, device, chunk):
        # No bin is shared by two levels that are four apart: what is left is the information of their numbers.
        generator = torch.Generator().manual_seed(0)
        moving = torch.randint(0, 5, (1, 1, *GRID), generator=generator)
        fixed = (moving + torch.randint(0, 2, moving.shape, generator=generator)) % 5
        expected = moving.numel() * mutual_info_score(fixed.flatten(), moving.flatten())
        likelihood = MutualInformationLikelihood(bins=20, weight=1.0)
        for scale in (1.0, -1.0):
            image = 0.5 + scale * (moving.double() * 4 / 17 - 0.5)
            result = likelihood((fixed.double() / 5 + 0.1).to(device), image.to(device))
            assert result.tolist() == pytest.approx([expected])

    def test_counts_the_foreground_and_its_rim(self, device):
        fixed, moving = torch.zeros(1, 1, 12, 10, 11), brain_like(12, 10, 11, seed=2)
        fixed[..., 4:8, 4:6, 1:8] = brain_like(4, 2, 7, seed=1) + 0.01
        for rim in (0, 1, 3):
            likelihood = MutualInformationLikelihood(rim=rim)
            near = binary_dilation(fixed[0, 0].numpy() > 0, np.ones([2 * rim + 1] * 3))
            mask = torch.from_numpy(near).float()[None, None].to(device)
            expected = likelihood(fixed.to(device), moving.to(device), mask)
            assert torch.equal(likelihood(fixed.to(device), moving.to(device)), expected)

    def test_is_the_likelihood_of_the_fixed_intensities(self):
        # Where all moving intensities are at levels of their own, p(f | m) is a table of shares.
        moving = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]).reshape(1, 1, 5, 1, 1)
        fixed = torch.tensor([0.1, 0.1, 0.6, 0.6, 0.6]).reshape(1, 1, 5, 1, 1)
        given = 2 * math.log(2 / 3) + math.log(1 / 3)
        alone = 2 * math.log(2 / 5) + 3 * math.log(3 / 5)
        assert MutualInformationLikelihood(weight=1.0)(fixed, moving).tolist() == pytest.approx([given - alone])

    def test_a_batch_is_its_elements(self, device):
        likelihood = MutualInformationLikelihood()
        fixed = brain_like(*GRID, seed=1).to(device)
        moving = torch.cat([brain_like(*GRID, seed=s) for s in (2, 3, 4)]).to(device).requires_grad_()
        precomputed = likelihood.precompute(fixed)
        expected = torch.cat([likelihood(fixed, one[None]) for one in moving])
        result = likelihood(precomputed, moving)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)
        with torch.no_grad():
            torch.testing.assert_close(likelihood(precomputed, moving), result.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(likelihood(fixed.expand(3, -1, -1, -1, -1), moving), expected, rtol=1e-12, atol=0)
        weights = torch.tensor([1.0, 0.0, -2.0], device=device, dtype=torch.float64)
        (together,) = torch.autograd.grad(result, moving, weights)
        (apart,) = torch.autograd.grad(expected, moving, weights)
        torch.testing.assert_close(together, apart)
        masks = (moving.detach() > 0.2).float()
        apart = torch.cat([likelihood(fixed, moving[b : b + 1], masks[b : b + 1]) for b in range(3)])
        torch.testing.assert_close(likelihood(fixed, moving, masks), apart, rtol=1e-12, atol=0)
        assert likelihood(precomputed, moving[:0]).shape == (0,)

    @pytest.mark.parametrize("bins", [4, 12])
    def test_gradient(self, bins, device, chunk):
        likelihood = MutualInformationLikelihood(bins, weight=0.7)
        fixed, moving = (noise(b, 1, 5, 4, 3, seed=b).sigmoid().to(device) for b in (1, 2))
        moving[0, 0, 0, 0] = torch.tensor([-0.5, 1.5, 0.5])  # beyond, a change changes nothing
        mask = noise(1, 1, 5, 4, 3, seed=3).clamp_min(0).to(device)
        for weights in (None, mask):
            calls = lambda m, w=weights: likelihood(fixed, m, w)  # noqa: E731
            assert torch.autograd.gradcheck(calls, moving.requires_grad_())

    def test_gradient_of_single_precision(self, device):
        likelihood = MutualInformationLikelihood()
        fixed, moving = (brain_like(20, 12, 15, seed=s, dtype=torch.float64).to(device) for s in (1, 2))
        gradients = []
        for dtype in (torch.float32, torch.float64):
            image = moving.to(dtype).requires_grad_()
            gradients.append(torch.autograd.grad(likelihood(fixed.float(), image).sum(), image)[0].double())
        scale = float(gradients[1].abs().max())
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5 * scale)

    def test_leaves_the_images_as_they_are(self, chunk):
        image = noise(1, 1, *GRID)
        before = image.clone()
        MutualInformationLikelihood()(image, image)
        assert torch.equal(image, before)

    def test_contrast_does_not_matter(self, device):
        fixed, moving = (brain_like(*GRID, seed=s, dtype=torch.float64).to(device) for s in (1, 2))
        likelihood, mask = MutualInformationLikelihood(), everywhere(fixed)
        expected = likelihood(fixed, moving, mask).tolist()
        assert likelihood(fixed, 1 - moving, mask).tolist() == pytest.approx(expected)
        assert likelihood(1 - 1e-9 - fixed, moving, mask).tolist() == pytest.approx(expected)
        # Two dark tissues and one bright between them: no order, but each still tells the other.
        curved = (1 - (2 * fixed - 1).square()).clamp(0, 1)
        assert likelihood(curved, fixed, mask).item() > 3 * expected[0]

    @pytest.mark.parametrize("level", [0.0, 0.3, 1.0])
    def test_constant_images_say_nothing(self, level, device, chunk):
        image = brain_like(*GRID, seed=1).to(device)
        flat = torch.full_like(image, level)
        for fixed, moving in ((image, flat), (flat, image), (flat, flat)):
            moving = moving.clone().requires_grad_()
            value = MutualInformationLikelihood()(fixed, moving)
            (gradient,) = torch.autograd.grad(value.sum(), moving)
            assert value.tolist() == pytest.approx([0.0], abs=1e-9)
            assert torch.isfinite(gradient).all()

    def test_nothing_that_counts_says_nothing(self, device, chunk):
        image = brain_like(*GRID, seed=1).to(device).requires_grad_()
        value = MutualInformationLikelihood()(image.detach(), image, torch.zeros_like(image))
        value.sum().backward()
        assert value.item() == 0
        assert float(image.grad.abs().max()) == 0

    def test_what_is_not_finite_stays_so(self, chunk):
        image = brain_like(*GRID, seed=1)
        broken = image.clone()
        broken[..., 3] = math.nan
        result = MutualInformationLikelihood()(image, torch.cat([broken, image]))
        assert math.isnan(result[0])
        assert result[1] > 0

    def test_finer_has_the_same_rim(self):
        likelihood = MutualInformationLikelihood(24, 1.5, 3)
        assert likelihood.window == 1
        assert likelihood.finer().settings() == {"kind": "mi", "bins": 24, "weight": 1.5, "rim": 6}

    def test_evidence_counts_as_often_as_a_voxel(self):
        assert MutualInformationLikelihood(weight=3.0).evidence_weight == 3

    def test_can_be_stored(self):
        likelihood = MutualInformationLikelihood(16, 0.5, 0)
        again = make(likelihood.settings(), Likelihood)
        assert isinstance(again, MutualInformationLikelihood)
        assert again.settings() == likelihood.settings()

    def test_is_a_part_of_a_posterior(self):
        moving, fixed = brain_like(8, 10, 12, seed=1), brain_like(8, 10, 12, seed=2)
        target = Target(MutualInformationLikelihood(), DiffusionPrior(1.0))
        (pair,) = target.prepare(moving, fixed, (fixed > 0).float())
        z = noise(3, 3, 4, 5, 6, dtype=torch.float32).requires_grad_()
        value = target.log_likelihood(pair, z)
        value.sum().backward()
        assert float(z.grad.abs().max()) > 0
        with torch.no_grad():
            torch.testing.assert_close(target.log_likelihood(pair, z), value.detach(), rtol=1e-5, atol=1e-5)

    def test_asks_a_device_for_nothing(self):
        likelihood = MutualInformationLikelihood()
        fixed, moving, mask = (torch.empty(1, 1, *GRID, device="meta") for _ in range(3))
        with Watch() as watch:
            precomputed = likelihood.precompute(fixed)
            likelihood(precomputed, moving.expand(2, -1, -1, -1, -1).requires_grad_(), mask).sum().backward()
        assert not watch.asked
        assert not watch.moved

    def test_refuses_what_makes_no_likelihood(self):
        for options, name in (({"bins": 3}, "bins"), ({"weight": 0.0}, "weight"), ({"rim": -1}, "rim")):
            with pytest.raises(OptionError, match=f"expected {name} to be"):
                MutualInformationLikelihood(**options)

    def test_refuses_what_does_not_fit(self):
        image, likelihood = torch.zeros(1, 1, 5, 5, 5), MutualInformationLikelihood()
        with pytest.raises(OptionError, match="the fixed image's bins"):
            likelihood(MutualInformationLikelihood(16).precompute(image), image)
        with pytest.raises(ShapeError, match=r"expected moving of shape \[B, 1, X, Y, Z\]"):
            likelihood(image, image.expand(1, 2, 5, 5, 5))
        with pytest.raises(ShapeError, match="expected fixed"):
            likelihood(image[..., 1:], image)
        with pytest.raises(ShapeError, match="expected mask"):
            likelihood(image, image, image[..., 1:])
        with pytest.raises(RegistrationError, match="swap the images"):
            likelihood(image.clone().requires_grad_(), image)


def found_shift(likelihood, moving, fixed, steps=40):
    """The shift of the whole image at which the likelihood is largest, by gradient steps from no shift."""
    precomputed = likelihood.precompute(fixed)
    shift = torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.Adam([shift], lr=0.2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        ddf = shift[None, :, None, None, None].expand(1, -1, *moving.shape[2:])
        (-likelihood(precomputed, warp(moving, ddf))).sum().backward()
        optimizer.step()
        schedule.step()
    return shift.detach()


def test_finds_a_shift_where_contrast_is_inverted():
    whole = (0.5 + 0.2 * smooth(1, 1, 28, 24, 26, seed=4, passes=4)).clamp(0, 1)
    moving, fixed = whole[..., 2:-2, 2:-2, 2:-2], 1 - whole[..., 3:-1, 1:-3, 4:]
    truth = torch.tensor([1.0, -1.0, 2.0])
    error = (found_shift(MutualInformationLikelihood(), moving, fixed) - truth).norm()
    assert float(error) < 0.1
    assert float((found_shift(MSELikelihood(), moving, fixed) - truth).norm()) > 1
