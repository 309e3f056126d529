from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scripts.core.described import make
from scripts.registration import self_similarity
from scripts.registration.errors import OptionError, RegistrationError, ShapeError
from scripts.registration.local_correlation import MSELikelihood
from scripts.registration.parts import Likelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.self_similarity import EPS, MINDLikelihood
from scripts.registration.target import Target
from scripts.registration.warp import warp
from tests.devices.watch import Watch
from tests.registration.conftest import brain_like, noise, smooth

GRID = (9, 5, 6)
SIZES = [(1, 1), (0, 1), (1, 2), (2, 1)]
NEIGHBORS = [np.array(step) for step in ((-1, 0, 0), (1, 0, 0), (0, -1, 0), (0, 1, 0), (0, 0, -1), (0, 0, 1))]
# By the numbers of their neighbors, in the order of the channels: on axes a and b, behind is even and in front odd.
SIDES = ((0, 1), (1, 0), (0, 0), (1, 1))
PAIRS = [(2 * a + i, 2 * b + j) for a, b in ((0, 1), (0, 2), (1, 2)) for i, j in SIDES]


@pytest.fixture(params=[1, 2**17])
def slab(request, monkeypatch):
    """Each test with slabs of as few planes as there can be, and with one for all."""
    monkeypatch.setitem(self_similarity.SLAB, "cpu", request.param)


def descriptors(image, radius=1, dilation=1, eps=EPS):
    return MINDLikelihood(radius, dilation, eps=eps).precompute(image).channels


def naive_descriptors(image, radius, dilation, eps=EPS):
    """By definition: for each voxel and pair, NumPy's mean over two patches; a dictionary of pairs to [X, Y, Z]."""
    volume = image[0, 0].double().numpy()
    reach = radius + dilation
    padded = np.pad(volume, reach, mode="edge")
    distances = {pair: np.empty(volume.shape) for pair in PAIRS}
    for index in np.ndindex(volume.shape):
        patches = []
        for step in NEIGHBORS:
            center = np.array(index) + reach + dilation * step
            patches.append(padded[tuple(slice(c - radius, c + radius + 1) for c in center)])
        for i, j in PAIRS:
            distances[i, j][index] = ((patches[i] - patches[j]) ** 2).mean()
    v = np.mean(list(distances.values()), axis=0) + eps
    return {pair: np.exp(-distance / v) for pair, distance in distances.items()}


class TestDescriptors:
    @pytest.mark.parametrize(("radius", "dilation"), SIZES)
    def test_agree_with_the_definition(self, radius, dilation, device, slab):
        image = brain_like(*GRID, seed=1)
        expected = naive_descriptors(image, radius, dilation)
        result = descriptors(image.to(device), radius, dilation).cpu()
        assert result.shape == (1, 12, *GRID)
        assert result.dtype == torch.float32
        for channel, pair in zip(result[0], PAIRS, strict=True):
            np.testing.assert_allclose(channel, expected[pair], rtol=1e-5, atol=1e-6)

    def test_pairs_are_all_that_do_not_face_each_other(self):
        apart = {
            frozenset((i, j)) for i in range(6) for j in range(i) if np.square(NEIGHBORS[i] - NEIGHBORS[j]).sum() == 2
        }
        assert {frozenset(pair) for pair in PAIRS} == apart
        assert len(PAIRS) == len(apart) == 12

    def test_brightness_and_contrast_do_not_matter(self, device):
        image = noise(1, 1, *GRID).to(device)
        expected = descriptors(image, eps=1e-12)
        for other in (1 - image, 100 - 7 * image, 0.3 * image):
            torch.testing.assert_close(descriptors(other, eps=1e-12), expected, rtol=0, atol=1e-9)

    def test_differences_below_the_noise_count_for_little(self):
        image = 0.5 + 0.003 * noise(1, 1, *GRID)
        assert float((1 - descriptors(image)).max()) < 0.2

    def test_grids_smaller_than_a_patch(self, device):
        for shape in ((1, 1, 1), (2, 1, 3)):
            image = noise(1, 1, *shape)
            result = descriptors(image.to(device), 2, 2).cpu()
            expected = naive_descriptors(image, 2, 2)
            np.testing.assert_allclose(result[0].mean(0), np.mean(list(expected.values()), axis=0), rtol=1e-9)


class TestLikelihood:
    @pytest.mark.parametrize(("radius", "dilation"), SIZES)
    def test_agrees_with_the_definition(self, radius, dilation, device, slab):
        fixed, moving, mask = brain_like(*GRID, seed=1), brain_like(*GRID, seed=2), smooth(1, 1, *GRID).abs()
        f, m = (naive_descriptors(image, radius, dilation) for image in (fixed, moving))
        squares = np.mean([(f[pair] - m[pair]) ** 2 for pair in PAIRS], axis=0)
        likelihood = MINDLikelihood(radius, dilation, sigma=0.3)
        result = likelihood(fixed.to(device), moving.to(device))
        assert result.dtype == torch.float64
        assert result.tolist() == pytest.approx([-squares.sum() / 0.18], rel=1e-6)
        result = likelihood(fixed.to(device), moving.to(device), mask.to(device))
        assert result.tolist() == pytest.approx([-(squares * mask[0, 0].numpy()).sum() / 0.18], rel=1e-6)

    def test_a_batch_is_its_elements(self, device):
        likelihood = MINDLikelihood()
        fixed = brain_like(*GRID, seed=1).to(device)
        moving = torch.cat([brain_like(*GRID, seed=s) for s in (2, 3, 4)]).to(device).requires_grad_()
        precomputed = likelihood.precompute(fixed)
        expected = torch.cat([likelihood(fixed, one[None]) for one in moving])
        result = likelihood(precomputed, moving)
        assert torch.equal(result, expected)
        with torch.no_grad():
            assert torch.equal(likelihood(precomputed, moving), result)
        assert torch.equal(likelihood(fixed.expand(3, -1, -1, -1, -1), moving), expected)
        weights = torch.tensor([1.0, 0.0, -2.0], device=device, dtype=torch.float64)
        (together,) = torch.autograd.grad(result, moving, weights)
        (apart,) = torch.autograd.grad(expected, moving, weights)
        assert torch.equal(together, apart)
        masks = (moving.detach() > 0.2).float()
        apart = torch.cat([likelihood(fixed, moving[b : b + 1], masks[b : b + 1]) for b in range(3)])
        assert torch.equal(likelihood(fixed, moving, masks), apart)
        assert likelihood(precomputed, moving[:0]).shape == (0,)

    @pytest.mark.parametrize(("radius", "dilation"), SIZES)
    def test_gradient(self, radius, dilation, device, slab):
        likelihood = MINDLikelihood(radius, dilation, sigma=0.7, eps=0.01)
        shape = (6, 3, 2) if radius + dilation == 2 else (4, 2, 3)
        fixed, moving = noise(1, 1, *shape, seed=1).to(device), noise(2, 1, *shape, seed=2).to(device)
        mask = noise(1, 1, *shape, seed=3).abs().to(device)
        for weights in (None, mask):
            calls = lambda m, w=weights: likelihood(fixed, m, w)  # noqa: E731
            assert torch.autograd.gradcheck(calls, moving.requires_grad_(), fast_mode=True)

    def test_gradient_of_every_voxel(self, slab):
        fixed, moving = noise(1, 1, 5, 2, 2, seed=1), noise(1, 1, 5, 2, 2, seed=2).requires_grad_()
        assert torch.autograd.gradcheck(lambda m: MINDLikelihood(sigma=0.7, eps=0.01)(fixed, m), moving)

    def test_gradient_of_single_precision(self, device):
        likelihood = MINDLikelihood()
        fixed, moving = (brain_like(20, 12, 15, seed=s, dtype=torch.float64).to(device) for s in (1, 2))
        gradients = []
        for dtype in (torch.float32, torch.float64):
            image = moving.to(dtype).requires_grad_()
            gradients.append(torch.autograd.grad(likelihood(fixed.to(dtype), image).sum(), image)[0].double())
        scale = float(gradients[1].abs().max())
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-5 * scale)

    def test_equal_images_are_best_and_contrast_does_not_matter(self, device):
        image = brain_like(*GRID, seed=1, dtype=torch.float64).to(device) + 0.1
        other = brain_like(*GRID, seed=2, dtype=torch.float64).to(device)
        likelihood = MINDLikelihood()
        assert likelihood(image, image).tolist() == [0.0]
        assert likelihood(image, 1.2 - image).tolist() == pytest.approx([0.0], abs=1e-12)
        assert likelihood(image, 1 - other).tolist() == pytest.approx(likelihood(image, other).tolist())
        assert likelihood(image, other).item() < -100

    @pytest.mark.parametrize("level", [0.0, 1.0])
    def test_constant_images_are_finite(self, level, device):
        image = brain_like(*GRID, seed=1).to(device)
        flat = torch.full_like(image, level)
        for fixed, moving in ((image, flat), (flat, image), (flat, flat)):
            moving = moving.clone().requires_grad_()
            value = MINDLikelihood()(fixed, moving)
            (gradient,) = torch.autograd.grad(value.sum(), moving)
            assert torch.isfinite(value).all()
            assert torch.isfinite(gradient).all()
        assert value.item() == 0

    def test_what_is_not_finite_stays_so(self):
        image = brain_like(*GRID, seed=1)
        broken = image.clone()
        broken[..., 3] = math.nan
        result = MINDLikelihood()(image, torch.cat([broken, image]))
        assert math.isnan(result[0])
        assert result[1] == 0

    def test_repeated_border_voxels_are_no_edge(self):
        # Slices that differ only along the first axis look the same wherever the image is cut off.
        image = noise(1, 1, 9, 1, 1).expand(1, 1, 9, 6, 7)
        result = descriptors(image)
        torch.testing.assert_close(result, result[..., :1, :1].expand_as(result))

    def test_finer_sees_the_same_size(self):
        likelihood = MINDLikelihood(1, 2, 0.2, 0.01)
        assert likelihood.window == 7
        finer = likelihood.finer()
        assert finer.window == 13
        assert finer.settings() == {"kind": "mind", "radius": 2, "dilation": 4, "sigma": 0.2, "eps": 0.01}

    def test_evidence_counts_as_often_as_a_voxel(self):
        assert MINDLikelihood().evidence_weight == 125
        assert MINDLikelihood(sigma=0.05).evidence_weight == pytest.approx(500)

    def test_can_be_stored(self):
        likelihood = MINDLikelihood(2, 1, 0.3, 1e-4)
        again = make(likelihood.settings(), Likelihood)
        assert isinstance(again, MINDLikelihood)
        assert again.settings() == likelihood.settings()

    def test_is_a_part_of_a_posterior(self):
        moving, fixed = brain_like(8, 10, 12, seed=1), brain_like(8, 10, 12, seed=2)
        target = Target(MINDLikelihood(), DiffusionPrior(1.0))
        (pair,) = target.prepare(moving, fixed, (fixed > 0).float())
        z = noise(3, 3, 4, 5, 6, dtype=torch.float32).requires_grad_()
        value = target.log_likelihood(pair, z)
        value.sum().backward()
        assert float(z.grad.abs().max()) > 0
        with torch.no_grad():
            torch.testing.assert_close(target.log_likelihood(pair, z), value.detach(), rtol=1e-6, atol=1e-6)

    def test_asks_a_device_for_nothing(self):
        likelihood = MINDLikelihood()
        fixed, moving, mask = (torch.empty(1, 1, *GRID, device="meta") for _ in range(3))
        with Watch() as watch:
            precomputed = likelihood.precompute(fixed)
            likelihood(precomputed, moving.expand(2, -1, -1, -1, -1).requires_grad_(), mask).sum().backward()
        assert not watch.asked
        assert not watch.moved

    def test_refuses_what_makes_no_likelihood(self):
        for options, name in (({"radius": -1}, "radius"), ({"dilation": 0}, "dilation"), ({"sigma": 0.0}, "sigma")):
            with pytest.raises(OptionError, match=f"expected {name} to be"):
                MINDLikelihood(**options)
        with pytest.raises(OptionError, match="expected eps to be positive"):
            MINDLikelihood(eps=0.0)

    def test_refuses_what_does_not_fit(self):
        image, likelihood = torch.zeros(1, 1, 5, 5, 5), MINDLikelihood()
        with pytest.raises(OptionError, match="radius, dilation and eps"):
            likelihood(MINDLikelihood(2, 1).precompute(image), image)
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
    error = (found_shift(MINDLikelihood(), moving, fixed) - truth).norm()
    assert float(error) < 0.1
    assert float((found_shift(MSELikelihood(), moving, fixed) - truth).norm()) > 1
