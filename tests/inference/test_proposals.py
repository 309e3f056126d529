from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

from scripts.gaussian import StructuredGaussian
from scripts.gaussian.errors import ShapeError
from scripts.inference.errors import WeightError
from scripts.inference.proposals import Draws, redraw, sample_posterior, spread_of, weigh_proposals
from scripts.inference.weights import pareto_khat
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Pair, Target
from tests.gaussian.conftest import VARIANTS, random_gaussian
from tests.gaussian.dense import vec
from tests.inference.toy import GRID, dense_of, target_with_posterior
from tests.registration.conftest import brain_like

CHUNKS = [1, 7, 16, 30, 64]


def registration(dtype: torch.dtype = torch.float64, mean_prior: float | None = None) -> tuple[Target, Pair]:
    """A tiny pair of images for fields on the grid (2, 2, 3)."""
    target = Target(NCCLikelihood(window=3), mean_prior=None if mean_prior is None else DiffusionPrior(mean_prior))
    images = [brain_like(*(2 * n for n in GRID), seed=seed, dtype=dtype) for seed in (0, 1)]
    return target, target.prepare(*images)[0]


def narrow(variant: str = "LC", dtype: torch.dtype = torch.float64) -> StructuredGaussian:
    gaussian = random_gaussian(variant, 1, GRID, dtype)
    return StructuredGaussian(0.2 * gaussian.mean, 4 * gaussian.stencil_parameters, 0.3 * gaussian.cov_factor)


def wider(gaussian: StructuredGaussian) -> StructuredGaussian:
    """A proposal beside the given Gaussian: mean off by about one standard deviation in all, covariance × 1.2."""
    offset = (gaussian.sample(1, seed=1)[0] - gaussian.mean) / math.sqrt(gaussian.dimensions)
    grow = math.sqrt(1.2)
    return StructuredGaussian(gaussian.mean + offset, gaussian.stencil_parameters / grow, gaussian.cov_factor * grow)


@pytest.mark.parametrize("variant", VARIANTS)
class TestWeighing:
    def test_log_weights_equal_the_target_minus_the_dense_density_of_the_samples(self, variant):
        gaussian, (target, pair) = narrow(variant), registration()
        weighted = weigh_proposals(gaussian, target, pair, 9, seed=3, chunk=4)
        z = gaussian.sample(9, seed=3)[:, 0]
        expected = target(pair, z) - dense_of(gaussian).log_prob(z)
        torch.testing.assert_close(weighted.log_weights, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(weighted.log_prior, target.log_prior(z), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(weighted.log_likelihood, target.log_likelihood(pair, z), rtol=1e-9, atol=1e-9)
        assert weighted.seed == 3

    def test_a_proposal_that_is_the_posterior_gives_the_evidence_with_every_sample(self, variant):
        # α = p(y | z) p(z) / p(z | y) = p(y)
        gaussian = random_gaussian(variant, 1, GRID)
        target, y = target_with_posterior(dense_of(gaussian))
        log_weights = weigh_proposals(gaussian, target, y, 20, seed=0).log_weights
        torch.testing.assert_close(log_weights, target.log_evidence(y).expand(20), rtol=1e-9, atol=1e-9)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_result_does_not_depend_on_the_chunk_size(self, variant, dtype):
        gaussian, (target, pair) = narrow(variant, dtype), registration(dtype)
        first, *others = (sample_posterior(gaussian, target, pair, num_proposals=30, chunk=chunk) for chunk in CHUNKS)
        for other in others:
            for got, expected in zip(other.proposals[:3], first.proposals[:3], strict=True):
                assert got.dtype == torch.float64
                torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)
            torch.testing.assert_close(other.weights, first.weights, rtol=1e-4, atol=1e-6)
            assert torch.equal(other.resampled, first.resampled)
            assert (other.ess, other.khat) == pytest.approx((first.ess, first.khat), rel=1e-4)


def test_no_gradients_are_recorded():
    gaussian, (target, pair) = narrow(), registration()
    gaussian.mean.requires_grad_()
    weighted = weigh_proposals(gaussian, target, pair, 4, seed=0)
    assert not any(part.requires_grad for part in weighted[:3])


def test_mean_prior_cancels_in_the_weights():
    first, second = (
        sample_posterior(narrow(), *registration(mean_prior=weight), num_proposals=30) for weight in (None, 2.5)
    )
    assert torch.equal(first.weights, second.weights)
    assert torch.equal(first.resampled, second.resampled)


def test_progress_is_told_after_each_chunk():
    done: list[int] = []
    target, pair = registration()
    weigh_proposals(narrow(), target, pair, 10, seed=0, chunk=4, progress=done.append)
    assert done == [4, 8, 10]
    sample_posterior(narrow(), target, pair, num_proposals=6, chunk=6, progress=done.append)
    assert done == [4, 8, 10, 6]


@pytest.mark.parametrize(("count", "chunk"), [(0, 4), (-1, 4), (4, 0), (4, -2)])
def test_no_proposals_or_empty_chunks_are_a_clear_error(count, chunk):
    with pytest.raises(ValueError, match=r"(proposals|chunk) must be positive, got"):
        weigh_proposals(narrow(), *registration(), count, seed=0, chunk=chunk)


def test_a_batch_of_proposals_is_refused():
    # Weighing its first element only would be a silent mistake.
    gaussian = random_gaussian("D", 2, GRID)
    with pytest.raises(ShapeError, match=r"\(1, 3, x, y, z\)"):
        weigh_proposals(gaussian, *registration(), 4, seed=0)
    with pytest.raises(ShapeError, match=r"\(1, 3, x, y, z\)"):
        next(redraw(gaussian, [0], seed=0))


class TestAgainstTheKnownPosterior:
    """y = A z + noise: the importance-weighted samples must have the posterior's mean and variance."""

    @pytest.fixture(scope="class", params=["D", "LC", "LC full"])
    @classmethod
    def case(cls, request):
        exact = random_gaussian(request.param, 1, GRID)
        target, y = target_with_posterior(dense_of(exact))
        gaussian = wider(exact)
        result = sample_posterior(
            gaussian, target, y, num_proposals=4000, num_samples=2000, temperature=1.0, scale=1.0, chunk=500, seed=11
        )
        return target, y, result, vec(gaussian.sample(4000, seed=11)[:, 0]).T  # (N, D)

    def test_the_toy_s_posterior_is_the_gaussian_it_was_made_from(self):
        dense = dense_of(random_gaussian("LC", 1, GRID))
        target, y = target_with_posterior(dense)
        posterior = target.posterior(y)
        torch.testing.assert_close(posterior.mean, dense.mean)
        torch.testing.assert_close(posterior.covariance_matrix, dense.covariance)

    def test_weighted_mean(self, case):
        target, y, result, z = case
        posterior = target.posterior(y)
        assert 100 < result.ess < 4000
        # A weighted mean has a standard error of about σ/√ESS in each dimension; five of them.
        error = (result.weights @ z - posterior.mean) / (posterior.stddev / math.sqrt(result.ess))
        assert float(error.abs().max()) < 5
        # The proposal's own mean is clearly off: (m − μ)ᵀΛ(m − μ)·ESS would be about the number of dimensions.
        offset = z.mean(0) - posterior.mean
        assert float(offset @ posterior.precision_matrix @ offset) * result.ess > 5 * len(offset)

    def test_weighted_variance(self, case):
        target, y, result, z = case
        posterior = target.posterior(y)
        variance = result.weights @ (z - posterior.mean).square()
        # A Gaussian's squared deviation has the variance 2σ⁴.
        error = (variance / posterior.variance - 1) / math.sqrt(2 / result.ess)
        assert float(error.abs().max()) < 5

    def test_mean_weight_is_the_evidence(self, case):
        target, y, result, _ = case
        log_weights = result.proposals.log_weights
        # The mean of α has a relative standard error of √(1/ESS − 1/N).
        error = float(torch.logsumexp(log_weights, 0) - math.log(4000) - target.log_evidence(y))
        assert abs(error) < 5 / math.sqrt(result.ess)

    def test_resampled_mean(self, case):
        target, y, result, z = case
        posterior = target.posterior(y)
        # Resampling adds the error of 2000 independent draws to that of the weights.
        bound = 5 * posterior.stddev * math.sqrt(1 / result.ess + 1 / 2000)
        assert ((z[result.resampled].mean(0) - posterior.mean).abs() < bound).all()


class TestDraws:
    def sample(self, **options) -> Draws:
        return sample_posterior(narrow(), *registration(), **{"num_proposals": 60, **options})

    @pytest.mark.parametrize("scale", [None, 2.5])
    @pytest.mark.parametrize("temperature", [0.5, 3.0])
    def test_weights_by_scipy(self, temperature, scale):
        result = self.sample(temperature=temperature, scale=scale)
        log_weights = result.proposals.log_weights.numpy()
        spread = np.std(log_weights, ddof=1) if scale is None else scale
        expected = softmax(temperature * log_weights / spread)
        np.testing.assert_allclose(result.weights.numpy(), expected, rtol=1e-9)
        assert result.ess == pytest.approx(1 / np.sum(expected**2))

    def test_khat_is_that_of_the_weights_in_use(self):
        result = self.sample(num_proposals=200, scale=2.0, temperature=3.0)
        assert math.isfinite(result.khat)
        assert result.khat == pytest.approx(pareto_khat(result.weights.log()), rel=1e-6)

    def test_the_same_seed_gives_the_same_result_and_another_does_not(self):
        first, again, other = (self.sample(seed=seed) for seed in (5, 5, 6))
        assert torch.equal(first.weights, again.weights)
        assert torch.equal(first.resampled, again.resampled)
        assert not torch.equal(first.resampled, other.resampled)
        assert not torch.allclose(first.weights, other.weights)

    def test_more_proposals_begin_with_the_same_ones(self):
        few, many = self.sample(num_proposals=20), self.sample(num_proposals=60)
        torch.testing.assert_close(many.proposals.log_weights[:20], few.proposals.log_weights, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("num_samples", [1, 17, 200])
    def test_as_many_are_resampled_as_asked_for(self, num_samples):
        resampled = self.sample(num_samples=num_samples).resampled
        assert resampled.shape == (num_samples,)
        assert resampled.dtype == torch.int64
        assert 0 <= int(resampled.min()) <= int(resampled.max()) < 60

    def test_defaults_are_the_paper_s(self):
        result = sample_posterior(narrow("D"), *registration(), chunk=400)
        assert result.weights.shape == (1200,)
        assert result.resampled.shape == (80,)

    def test_how_often_each_was_taken(self):
        result = self.sample()._replace(resampled=torch.tensor([4, 2, 4, 4, 9, 2, 2, 4, 4, 4]))
        assert result.counts() == {2: 3, 4: 6, 9: 1}

    def test_counts_add_up(self):
        counts = self.sample(num_samples=77).counts()
        assert list(counts) == sorted(counts)
        assert sum(counts.values()) == 77

    def test_a_single_proposal_has_all_the_weight(self):
        result = self.sample(num_proposals=1, num_samples=3)
        assert result.weights.tolist() == [1.0]
        assert result.counts() == {0: 3}
        assert result.ess == 1.0

    def test_hotter_weights_are_more_selective(self):
        sizes = [self.sample(temperature=temperature).ess for temperature in (1e-9, 0.5, 1.0, 3.0, 1e9)]
        assert sizes == sorted(sizes, reverse=True)
        assert (sizes[0], sizes[-1]) == pytest.approx((60.0, 1.0))

    @pytest.mark.parametrize("scale", [math.nan, 0.0, -1.0, math.inf])
    def test_a_scale_that_was_never_learned_is_an_error_instead_of_nan(self, scale):
        # A network trained with V or I has no σ_α: its buffer is NaN.
        with pytest.raises(WeightError, match="scale must be positive and finite"):
            self.sample(scale=scale)

    def test_images_with_nan_are_an_error(self):
        target, pair = registration()
        with pytest.raises(WeightError, match="10 of 10 log-weights are NaN"):
            sample_posterior(narrow(), target, pair._replace(moving=pair.moving * math.nan), num_proposals=10)


def test_spread_of_log_weights():
    assert spread_of(torch.tensor([0.0, 2.0, 4.0])) == pytest.approx(2.0)
    assert spread_of(torch.tensor([3.0])) == 1.0
    assert spread_of(torch.full((5,), 3.0)) == 1.0


class TestRedraw:
    @pytest.mark.parametrize("chunk", [1, 3, 32])
    def test_the_same_fields_come_back(self, chunk):
        gaussian, indices = narrow(), [5, 0, 17, 5, 3]
        every = gaussian.sample(20, seed=8)[:, 0]
        positions, parts = zip(*redraw(gaussian, indices, seed=8, chunk=chunk), strict=True)
        assert [i for part in positions for i in part] == [0, 1, 2, 3, 4]
        torch.testing.assert_close(torch.cat(parts), every[indices], rtol=1e-12, atol=1e-12)

    def test_they_have_the_weights_they_were_given(self):
        gaussian, (target, pair) = narrow(), registration()
        result = sample_posterior(gaussian, target, pair, num_proposals=40, seed=2)
        indices = list(result.counts())
        for part, z in redraw(gaussian, indices, result.proposals.seed, chunk=2):
            expected = result.proposals.log_likelihood[indices[part.start : part.stop]]
            torch.testing.assert_close(target.log_likelihood(pair, z), expected, rtol=1e-9, atol=0)

    def test_gradients_stay_on_for_those_who_use_the_fields(self):
        gaussian = narrow()
        gaussian.mean.requires_grad_()
        for _, z in redraw(gaussian, [0, 1], seed=0, chunk=1):
            assert not z.requires_grad
            assert torch.is_grad_enabled()
            break
        assert torch.is_grad_enabled()
