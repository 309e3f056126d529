from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from scripts.registration import one_pass
from scripts.registration.backends import numba_likelihood
from scripts.registration.errors import ShapeError
from scripts.registration.label_overlap import OverlapLikelihood
from scripts.registration.local_correlation import MSELikelihood, NCCLikelihood
from scripts.registration.spline import phases, upsample
from scripts.registration.target import Pair, Target
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from tests.registration.conftest import brain_like, smooth

SHAPE = (14, 18, 20)


def with_empty_border(image: Tensor) -> Tensor:
    """A head in the middle of nothing, nearer to some sides than to others."""
    out = torch.zeros_like(image)
    inside = (..., slice(5, -3), slice(7, None), slice(4, -6))
    out[inside] = image[inside] + 0.1
    return out


def images(shape: tuple[int, ...] = SHAPE, background: bool = False) -> tuple[Tensor, Tensor]:
    moving, fixed = brain_like(*shape, seed=1), brain_like(*shape, seed=2)
    return (with_empty_border(moving), with_empty_border(fixed)) if background else (moving, fixed)


def fields(count: int, shape: tuple[int, ...] = SHAPE, factor: int = 2, size: float = 2.0) -> Tensor:
    return size * smooth(count, 3, *(-(-n // factor) for n in shape), seed=3)


def both(target: Target, pair: Pair, z: Tensor) -> tuple[Tensor, Tensor]:
    """Log-likelihoods in one pass and step by step."""
    assert one_pass.serves(target.transform, target.likelihood, pair, z)
    with torch.no_grad():
        return target.log_likelihood(pair, z), target._step_by_step(pair, z)


def assert_equal(got: Tensor, expected: Tensor) -> None:
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-5 * float(expected.std()))


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("window", [3, 5, 7, 9])
@pytest.mark.parametrize("shape", [SHAPE, (13, 11, 35), (9, 21, 16), (6, 5, 7)])
def test_equals_the_steps(shape, window, background):
    background = background and min(shape) > 12
    target = Target(NCCLikelihood(window, sigma=0.7))
    (pair,) = target.prepare(*images(shape, background))
    assert_equal(*both(target, pair, fields(5, shape)))


@pytest.mark.parametrize("factor", [1, 2, 3, 4])
def test_any_factor(factor):
    target = Target(NCCLikelihood(5), transform=DisplacementTransform(factor))
    (pair,) = target.prepare(*images())
    assert_equal(*both(target, pair, fields(4, factor=factor)))


@pytest.mark.parametrize("shape", [(1, 8, 9), (8, 1, 9), (8, 9, 1), (1, 1, 1), (2, 3, 40)])
def test_thin_images(shape):
    target = Target(NCCLikelihood(5))
    moving, fixed = torch.rand(2, 1, 1, *shape, generator=torch.Generator().manual_seed(0))
    (pair,) = target.prepare(moving, fixed)
    z = torch.randn(4, 3, *(-(-n // 2) for n in shape), generator=torch.Generator().manual_seed(1))
    got, expected = both(target, pair, z)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [0.0, 30.0, 1e6])
def test_displacements_that_leave_the_image(size):
    target = Target(NCCLikelihood(5))
    (pair,) = target.prepare(*images())
    got, expected = both(target, pair, fields(4, size=size))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-4)


def test_an_integer_shift_by_hand():
    moving, fixed = images()
    target = Target(NCCLikelihood(3, sigma=1.0))
    (pair,) = target.prepare(moving, fixed)
    z = torch.zeros(1, 3, *(n // 2 for n in SHAPE))
    z[:, 0], z[:, 2] = 2.0, -1.0
    where = [np.clip(np.arange(n) + shift, 0, n - 1) for n, shift in zip(SHAPE, (2, 0, -1), strict=True)]
    warped = torch.from_numpy(moving[0, 0].numpy()[np.ix_(*where)])[None, None]
    with torch.no_grad():
        torch.testing.assert_close(target.log_likelihood(pair, z), target.likelihood(fixed, warped), rtol=1e-6, atol=0)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bool])
def test_masks(dtype, background):
    mask = torch.rand(1, 1, *SHAPE, generator=torch.Generator().manual_seed(0))
    mask = (mask * (mask > 0.6)).to(dtype)
    mask[..., :6] = 0
    target = Target(NCCLikelihood(5))
    (pair,) = target.prepare(*images(background=background), mask)
    assert_equal(*both(target, pair, fields(5)))


def test_an_empty_mask_and_an_empty_image_leave_nothing():
    moving, fixed = images()
    target = Target(NCCLikelihood(5))
    for pair in (
        target.prepare(moving, fixed, torch.zeros(1, 1, *SHAPE))[0],
        target.prepare(moving, torch.zeros_like(fixed))[0],
    ):
        assert target.log_likelihood(pair, fields(2)).tolist() == [0.0, 0.0]


def test_only_what_counts_is_warped():
    target = Target(NCCLikelihood(5))
    (pair,) = target.prepare(*images((40, 40, 64), background=True))
    inner = torch.zeros(1, 1, 40, 40, 64)
    inner[..., 18:22, 18:22, 20:24] = 1
    warped = {}
    for name, mask in (("all", None), ("inner", inner)):
        prepared = numba_likelihood.prepare(pair.moving, pair.fixed, mask, 1e-5, 0.5)
        warped[name] = int(16 * prepared.needed[..., 1].sum())
    # Windows of 4³ voxels reach 2 further on either side; rows are warped in blocks of 16.
    assert warped["inner"] == 8 * 8 * 16
    # Windows around the head's 32 × 33 × 54 voxels are not constant up to 2 away from it, and reach 2 further.
    assert warped["all"] == 39 * 37 * 64 < inner.numel()


class TestSamples:
    @pytest.fixture
    def target(self) -> Target:
        return Target(NCCLikelihood(5))

    def test_do_not_depend_on_each_other_nor_on_threads(self, target):
        (pair,) = target.prepare(*images(background=True))
        z, before, results = fields(9), torch.get_num_threads(), []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                for size in (1, 2, 4, 9):
                    results.append(torch.cat([target.log_likelihood(pair, part) for part in z.split(size)]))
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(result, results[0]) for result in results)

    def test_one_that_is_not_finite_is_nan_and_leaves_the_others(self, target):
        (pair,) = target.prepare(*images())
        z = fields(4)
        expected = target.log_likelihood(pair, z)
        z[1, 2, 3, 4, 5], z[2, 0, 0, 0, 0] = float("nan"), float("inf")
        result = target.log_likelihood(pair, z)
        assert result.isnan().tolist() == [False, True, True, False]
        assert torch.equal(result[::3], expected[::3])

    def test_of_images_that_are_not_finite_are_nan(self, target):
        for broken in (0, 1):
            pair_of_images = [image.clone() for image in images(background=True)]
            pair_of_images[broken][..., 10, 12, 9] = float("nan")
            (pair,) = target.prepare(*pair_of_images)
            assert target.log_likelihood(pair, fields(2)).isnan().all()

    def test_need_not_be_contiguous(self, target):
        (pair,) = target.prepare(*images())
        z = fields(3)
        turned = z.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
        assert torch.equal(target.log_likelihood(pair, turned), target.log_likelihood(pair, z))

    def test_none_give_none(self, target):
        (pair,) = target.prepare(*images())
        assert target.log_likelihood(pair, fields(1)[:0]).shape == (0,)

    def test_must_fit_the_image(self, target):
        (pair,) = target.prepare(*images())
        with pytest.raises(ShapeError, match="field"):
            target.log_likelihood(pair, fields(1)[..., :-1])
        with pytest.raises(ShapeError, match="expected z of shape"):
            target.log_likelihood(pair, fields(1)[:, :2])


class TestDispatch:
    @pytest.fixture
    def calls(self, monkeypatch) -> list[int]:
        """How many fields went through the image in one pass, call by call."""
        made, original = [], numba_likelihood.log_likelihood
        monkeypatch.setattr(numba_likelihood, "log_likelihood", lambda *a: made.append(a[1].shape[0]) or original(*a))
        return made

    def test_fields_without_gradient_take_one_pass_those_with_do_not(self, calls):
        target = Target(NCCLikelihood(5))
        (pair,) = target.prepare(*images())
        z = fields(3)
        target.log_likelihood(pair, z)
        with torch.no_grad():
            target.log_likelihood(pair, z.clone().requires_grad_())
        assert calls == [3, 3]
        loss = target.log_likelihood(pair, z.requires_grad_()).sum()
        loss.backward()
        assert calls == [3, 3]
        assert z.grad.any()

    def test_a_pair_is_arranged_once(self, monkeypatch):
        target = Target(NCCLikelihood(5))
        (pair,) = target.prepare(*images())
        made, original = [], numba_likelihood.prepare
        monkeypatch.setattr(numba_likelihood, "prepare", lambda *a: made.append(1) or original(*a))
        first = target.log_likelihood(pair, fields(1))
        assert torch.equal(target.log_likelihood(pair, fields(1)), first)
        assert made == [1]
        # Another trust in the images is another arrangement.
        other = Target(NCCLikelihood(5, sigma=1.0))
        torch.testing.assert_close(4 * other.log_likelihood(pair, fields(1)), first, rtol=1e-6, atol=0)
        assert made == [1, 1]

    @pytest.mark.parametrize(
        "target",
        [
            Target(MSELikelihood()),
            Target(NCCLikelihood(5), transform=VelocityTransform()),
        ],
    )
    def test_other_models_go_step_by_step(self, target, calls):
        (pair,) = target.prepare(*images())
        z = fields(5)
        result = target.log_likelihood(pair, z)
        assert not calls
        torch.testing.assert_close(result, target._step_by_step(pair, z), rtol=1e-9, atol=0)

    def test_float64_goes_step_by_step(self, calls):
        target = Target(NCCLikelihood(5))
        moving, fixed = (image.double() for image in images())
        target.log_likelihood(target.prepare(moving, fixed)[0], fields(2).double())
        assert not calls

    def test_labels_go_step_by_step(self, calls):
        target = Target(NCCLikelihood(5), overlap=OverlapLikelihood([1], structures=1))
        moving, fixed = images()
        labels = ((moving > 0.3).int(), (fixed > 0.3).int())
        with_labels, without = (target.prepare(moving, fixed, labels=maps)[0] for maps in (labels, None))
        z = fields(2)
        higher = target.log_likelihood(with_labels, z)
        assert not calls
        assert (higher > target.log_likelihood(without, z)).all()
        assert calls == [2]


@pytest.mark.parametrize("factor", [1, 2, 3, 5])
def test_phases_are_the_spline(factor):
    controls = smooth(1, 1, 6, 1, 1, dtype=torch.float64)
    weights, starts = phases(factor)
    dense = upsample(controls, factor)[0, 0, :, 0, 0]
    flat = controls.flatten()
    for i, expected in enumerate(dense[:: factor * factor if factor > 1 else 1]):
        voxel = i * (factor * factor if factor > 1 else 1)
        kappa, p = divmod(voxel, factor)
        taken = flat[(kappa + int(starts[p]) + torch.arange(4)).clamp(0, 5)]
        assert float((weights[p].double() * taken).sum()) == pytest.approx(float(expected), abs=1e-6)
