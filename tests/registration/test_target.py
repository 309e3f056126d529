from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.networks.blocks import DVF2DDF, Warp
from scipy.ndimage import map_coordinates
from torch import Tensor

from scripts.registration.errors import ShapeError
from scripts.registration.local_correlation import MSELikelihood, NCCLikelihood, local_ncc
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from scripts.registration.transform import VelocityTransform
from tests.registration.conftest import brain_like, noise, smooth

SHAPE = (6, 8, 10)
FIELD = (3, 4, 5)


def images(batch: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    moving = torch.cat([brain_like(*SHAPE, seed=b, dtype=dtype) for b in range(batch)])
    fixed = torch.cat([brain_like(*SHAPE, seed=10 + b, dtype=dtype) for b in range(batch)])
    return moving, fixed


def fields(count: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    return 1.3 * smooth(count, 3, *FIELD, seed=5, dtype=dtype)


def spline_by_scipy(z: np.ndarray) -> np.ndarray:
    """[3, x, y, z] to [3, X, Y, Z]: SciPy's cubic B-spline with z as coefficients, the border's repeated."""
    padded = np.pad(z, [(0, 0), (4, 4), (4, 4), (4, 4)], mode="edge")
    where = np.meshgrid(*[(np.arange(n) + 0.5) / 2 - 0.5 + 4 for n in SHAPE], indexing="ij")
    return np.stack([map_coordinates(channel, where, order=3, prefilter=False) for channel in padded])


def warp_by_scipy(image: np.ndarray, ddf: np.ndarray) -> np.ndarray:
    where = np.stack(np.meshgrid(*map(np.arange, SHAPE), indexing="ij")) + ddf
    return map_coordinates(image, where, order=1, mode="nearest")


def ncc_by_hand(fixed: np.ndarray, moving: np.ndarray, window: int, eps: float = 1e-5) -> np.ndarray:
    """Squared correlation of the voxels around each voxel, as many as there are."""
    radius, out = window // 2, np.empty(SHAPE)
    for voxel in itertools.product(*map(range, SHAPE)):
        around = tuple(slice(max(i - radius, 0), i + radius + 1) for i in voxel)
        (var_f, cov), (_, var_m) = np.cov(fixed[around].ravel(), moving[around].ravel(), bias=True)
        out[voxel] = cov**2 / ((var_f + eps) * (var_m + eps))
    return out


def roughness_by_hand(z: np.ndarray) -> float:
    """Σ ‖∇z‖² of [3, x, y, z], over all pairs of neighbors."""
    return sum(float(np.sum(np.diff(z, axis=axis) ** 2)) for axis in (1, 2, 3))


def test_posterior_by_hand():
    moving, fixed = images()
    target = Target(NCCLikelihood(window=5, sigma=0.5), DiffusionPrior(1.5), mean_prior=DiffusionPrior(2.5))
    (pair,) = target.prepare(moving, fixed)
    z = fields()
    for one, likelihood, prior, both in zip(
        z.numpy(), target.log_likelihood(pair, z), target.log_prior(z), target(pair, z), strict=True
    ):
        warped = warp_by_scipy(moving[0, 0].numpy(), spline_by_scipy(one))
        expected = ncc_by_hand(fixed[0, 0].numpy(), warped, 5).sum() / 0.5**2
        assert float(likelihood) == pytest.approx(expected, rel=1e-9)
        assert float(prior) == pytest.approx(-1.5 / 2 * roughness_by_hand(one), rel=1e-12)
        assert float(both) == pytest.approx(expected - 1.5 / 2 * roughness_by_hand(one), rel=1e-9)


def test_squared_differences_by_monai_s_warp():
    moving, fixed = images()
    target = Target(MSELikelihood(sigma=0.2))
    (pair,) = target.prepare(moving, fixed)
    z = fields()
    ddf = torch.from_numpy(np.stack([spline_by_scipy(one) for one in z.numpy()]))
    warped = Warp(padding_mode="border")(moving.expand(3, -1, -1, -1, -1), ddf)
    expected = -(warped - fixed).square().flatten(1).sum(1) / (2 * 0.2**2)
    # MONAI's Warp makes its reference grid in float32.
    torch.testing.assert_close(target.log_likelihood(pair, z), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("steps", [1, 5])
def test_a_velocity_is_integrated_before_it_warps(steps):
    moving, fixed = images()
    target = Target(MSELikelihood(), transform=VelocityTransform(steps=steps))
    (pair,) = target.prepare(moving, fixed)
    z = fields(2)
    # In voxels of the field grid a velocity is half as large; the flow goes through the spline and becomes as large.
    flow = 2 * DVF2DDF(num_steps=steps, padding_mode="border")(z / 2)
    warped = [warp_by_scipy(moving[0, 0].numpy(), spline_by_scipy(one)) for one in flow.numpy()]
    expected = [-np.sum((fixed[0, 0].numpy() - one) ** 2) / (2 * 0.1**2) for one in warped]
    assert target.log_likelihood(pair, z).tolist() == pytest.approx(expected, rel=1e-6)
    # The prior is that of the velocity.
    assert target.log_prior(z).tolist() == pytest.approx([-0.5 * roughness_by_hand(one) for one in z.numpy()])


def test_identical_images_are_explained_best_by_no_displacement():
    moving, _ = images()
    target = Target(NCCLikelihood(window=3))
    (pair,) = target.prepare(moving, moving)
    z = torch.cat([torch.zeros(1, 3, *FIELD, dtype=torch.float64), fields()])
    assert int(target(pair, z).argmax()) == 0
    assert float(target.log_prior(z)[0]) == 0


def test_float32_fields_have_float64_densities():
    results = {}
    for dtype in (torch.float32, torch.float64):
        target = Target(NCCLikelihood(window=3))
        (pair,) = target.prepare(*images(dtype=dtype))
        results[dtype] = target(pair, fields(dtype=dtype))
        assert results[dtype].dtype == torch.float64
    torch.testing.assert_close(results[torch.float32], results[torch.float64], rtol=1e-4, atol=0)


def test_fields_together_equal_the_loop_over_them():
    target = Target(NCCLikelihood(window=3))
    (pair,) = target.prepare(*images())
    z = fields()
    torch.testing.assert_close(target(pair, z), torch.cat([target(pair, one[None]) for one in z]), rtol=1e-12, atol=0)


def test_a_batch_equals_the_loop_over_it():
    moving, fixed = images(3)
    mask = (noise(3, 1, *SHAPE) > 0).double()
    target, z = Target(NCCLikelihood(window=3)), fields()
    for b, pair in enumerate(target.prepare(moving, fixed, mask)):
        (alone,) = target.prepare(moving[b : b + 1], fixed[b : b + 1], mask[b : b + 1])
        assert pair.shape == SHAPE
        assert torch.equal(target(pair, z), target(alone, z))


@pytest.mark.parametrize("likelihood", [NCCLikelihood(window=3), MSELikelihood()])
class TestMask:
    def value(self, likelihood, mask):
        target = Target(likelihood)
        (pair,) = target.prepare(*images(), mask)
        return target.log_likelihood(pair, fields())

    def test_ones_are_no_mask(self, likelihood):
        mask = torch.ones(1, 1, *SHAPE, dtype=torch.float64)
        torch.testing.assert_close(self.value(likelihood, mask), self.value(likelihood, None), rtol=1e-12, atol=0)

    def test_zeros_leave_nothing(self, likelihood):
        assert not self.value(likelihood, torch.zeros(1, 1, *SHAPE, dtype=torch.float64)).any()

    def test_a_mask_and_its_complement_add_up(self, likelihood):
        mask = torch.rand(1, 1, *SHAPE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        total = self.value(likelihood, mask) + self.value(likelihood, 1 - mask)
        torch.testing.assert_close(total, self.value(likelihood, None), rtol=1e-12, atol=0)


def test_a_mask_weighs_the_fixed_image_s_voxels():
    moving, fixed = images()
    mask = torch.zeros(1, 1, *SHAPE, dtype=torch.float64)
    mask[..., 2, 3, 4], mask[..., 0, 0, 0] = 2.0, 1.0
    target = Target(NCCLikelihood(window=3, sigma=2.0))
    (pair,) = target.prepare(moving, fixed, mask)
    z = torch.zeros(1, 3, *FIELD, dtype=torch.float64)
    ncc = local_ncc(fixed, moving, 3)[0, 0]
    assert float(target.log_likelihood(pair, z)) == pytest.approx(float(2 * ncc[2, 3, 4] + ncc[0, 0, 0]) / 4)


def test_mean_prior_by_hand():
    mean = fields(2)
    result = Target(mean_prior=DiffusionPrior(2.5)).log_mean_prior(mean)
    assert result.tolist() == pytest.approx([-2.5 / 2 * roughness_by_hand(one) for one in mean.numpy()])
    assert Target().log_mean_prior(mean).tolist() == [0.0, 0.0]
    assert Target().log_mean_prior(mean).dtype == torch.float64


def test_mean_prior_is_no_part_of_a_sample_s_density():
    z = fields()
    plain, with_mean = Target(), Target(mean_prior=DiffusionPrior(2.5))
    results = [target(target.prepare(*images())[0], z) for target in (plain, with_mean)]
    assert torch.equal(*results)


@pytest.mark.parametrize("transform", [None, VelocityTransform(steps=2)])
@pytest.mark.parametrize("likelihood", [NCCLikelihood(window=3), MSELikelihood()])
def test_gradient(likelihood, transform):
    shape = (4, 6, 4)
    target = Target(likelihood, transform=transform)
    mask = 0.5 + torch.rand(1, 1, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moving, fixed = (brain_like(*shape, seed=seed, dtype=torch.float64) for seed in (0, 1))
    (pair,) = target.prepare(moving, fixed, mask)
    z = (0.7 * noise(2, 3, 2, 3, 2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: target(pair, z), z)


@pytest.mark.parametrize("likelihood", [NCCLikelihood(window=3), MSELikelihood()])
def test_images_with_metadata_give_plain_densities(likelihood):
    moving, fixed = images()
    mask = torch.ones(1, 1, *SHAPE, dtype=torch.float64)
    target = Target(likelihood)
    (pair,) = target.prepare(MetaTensor(moving), MetaTensor(fixed), MetaTensor(mask))
    (plain,) = target.prepare(moving, fixed, mask)
    result = target(pair, fields())
    assert type(result) is Tensor
    assert torch.equal(result, target(plain, fields()))


def test_refuses_images_that_are_no_pairs():
    moving, fixed = images(2)
    target = Target()
    with pytest.raises(ShapeError, match="expected moving of shape"):
        target.prepare(moving[:, 0], fixed)
    with pytest.raises(ShapeError, match="expected fixed of shape"):
        target.prepare(moving, fixed[..., 1:])
    # One image for a batch of two is no pair for the second.
    with pytest.raises(ShapeError, match=r"expected fixed of shape \[2, 1, 6, 8, 10\], got \(1, "):
        target.prepare(moving, fixed[:1])
    with pytest.raises(ShapeError, match=r"expected mask of shape \[2, 1, 6, 8, 10\], got \(1, "):
        target.prepare(moving, fixed, torch.ones(1, 1, *SHAPE))
    with pytest.raises(ShapeError, match=r"expected mask of shape \[2, 1, 6, 8, 10\], got \(2, 1, 5, "):
        target.prepare(moving, fixed, torch.ones(2, 1, 5, 8, 10))
