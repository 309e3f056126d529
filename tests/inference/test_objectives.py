from __future__ import annotations

import functools
import math
import statistics

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from scripts.gaussian.errors import ShapeError
from scripts.gaussian.noise import fold
from scripts.inference.errors import WeightError
from scripts.inference.objectives import (
    ImportanceObjective,
    MeanObjective,
    Objective,
    SIRObjective,
    VariationalObjective,
)
from scripts.inference.weights import resample
from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone, WeightScale
from scripts.registration.prior import DiffusionPrior
from scripts.registration.similarity import MSELikelihood, NCCLikelihood
from scripts.registration.target import Target
from tests.gaussian.conftest import VARIANTS, random_gaussian
from tests.inference.toy import (
    GRID,
    LinearGaussianTarget,
    dense_of,
    dense_of_raw,
    dense_samples,
    image_of,
    target_with_posterior,
)
from tests.registration.conftest import brain_like

VOXELS = math.prod(GRID)
SIZE = (8, 8, 8)  # of the images that a network sees
OBJECTIVES = {
    "V": VariationalObjective,
    "I": ImportanceObjective,
    "S": functools.partial(SIRObjective, num_proposals=6, num_resampled=3),
}


def layout_of(variant: str) -> ProposalLayout:
    cross_channel, rank = VARIANTS[variant]
    return ProposalLayout(cross_channel, rank, initial_std=0.7)


def random_raw(layout: ProposalLayout, batch: int = 1, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = 0.2 * torch.randn(batch, layout.out_channels, *GRID, generator=generator, dtype=torch.float64)
    return raw.requires_grad_()


@pytest.fixture(scope="module")
def toy() -> tuple[LinearGaussianTarget, Tensor]:
    """A target with a known posterior, and its observation."""
    return target_with_posterior(dense_of(random_gaussian("LC", 1, GRID)))


def images(batch: int = 1, size: tuple[int, ...] = SIZE, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    moving = torch.cat([brain_like(*size, seed=b, dtype=dtype) for b in range(batch)])
    fixed = torch.cat([brain_like(*size, seed=20 + b, dtype=dtype) for b in range(batch)])
    return moving, fixed


def apply(objective: Objective, raw: Tensor, y: Tensor, seed: int = 7) -> Tensor:
    """The loss on the toy without regularization."""
    objective.off_diagonal_penalty = 0.0
    moving = image_of(y)
    return objective(raw, moving, moving, seed).loss


def assert_same_with_gradient(loss: Tensor, expected: Tensor, raw: Tensor) -> None:
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    got, wanted = (torch.autograd.grad(value, raw)[0] for value in (loss, expected))
    assert float(wanted.abs().max()) > 1e-3
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
class TestAgainstDense:
    """Value and gradient of each objective, with the same noise, by dense matrices and torch's distributions."""

    def dense(self, variant: str, count: int, seed: int = 7):
        layout = layout_of(variant)
        raw = random_raw(layout)
        dense = dense_of_raw(layout, raw[0])
        return layout, raw, dense, dense_samples(dense, layout.gaussian(raw.detach()), count, seed)

    def test_variational(self, variant, toy):
        target, y = toy
        layout, raw, dense, z = self.dense(variant, 5)
        loss = apply(VariationalObjective(target, layout, num_samples=5), raw, y)
        expected = -(target(y, z).mean() + dense.normal.entropy()) / VOXELS
        assert_same_with_gradient(loss, expected, raw)

    def test_importance(self, variant, toy):
        target, y = toy
        layout, raw, dense, z = self.dense(variant, 5)
        loss = apply(ImportanceObjective(target, layout, num_samples=5), raw, y)
        alpha = (target(y, z) - dense.log_prob(z)).exp()
        assert_same_with_gradient(loss, -alpha.mean().log() / VOXELS, raw)

    def test_importance_with_one_sample_is_the_bound_with_a_sampled_entropy(self, variant, toy):
        target, y = toy
        layout, raw, dense, z = self.dense(variant, 1)
        loss = apply(ImportanceObjective(target, layout, num_samples=1), raw, y)
        assert_same_with_gradient(loss, -(target(y, z) - dense.log_prob(z))[0] / VOXELS, raw)

    def test_sir(self, variant, toy):
        target, y = toy
        layout, raw, dense, z = self.dense(variant, 12)
        objective = SIRObjective(target, layout, num_proposals=12, num_resampled=5, temperature=2.0, chunk=5)
        loss = apply(objective, raw, y)
        with torch.no_grad():
            log_weights = target(y, z) - dense.log_prob(z)
            weights = torch.softmax(2.0 * log_weights / log_weights.std(), dim=0)
            chosen = resample(weights, 5, torch.Generator().manual_seed(7))
        assert chosen.unique().numel() > 1
        # No gradient of the weights, none of log q: only of the posterior at the chosen samples.
        assert_same_with_gradient(loss, -target(y, z[chosen]).mean() / VOXELS, raw)

    def test_mean(self, variant, toy):
        target, y = toy
        layout = layout_of(variant)
        raw = random_raw(layout)
        loss = apply(MeanObjective(target, layout), raw, y)
        assert_same_with_gradient(loss, -target(y, raw[:, :3])[0] / VOXELS, raw)


class TestVariational:
    def test_bound_is_the_evidence_minus_the_divergence_from_the_posterior(self, toy):
        target, y = toy
        layout = layout_of("LC")
        raw, count = random_raw(layout), 2000
        gaussian, dense = layout.gaussian(raw.detach()), dense_of_raw(layout, raw[0].detach())
        loss = apply(VariationalObjective(target, layout, num_samples=count), raw, y)
        bound = target.log_evidence(y) - kl_divergence(dense.normal, target.posterior(y))
        spread = float(target(y, gaussian.sample(count, seed=0)[:, 0]).std())
        assert float(-loss * VOXELS - bound) == pytest.approx(0.0, abs=5 * spread / math.sqrt(count))

    def test_bound_is_the_likelihood_minus_the_divergence_from_the_prior(self, toy):
        # E[log p(y | z)] − KL(q ‖ p): the sign that the paper prints otherwise.
        target, y = toy
        layout = layout_of("C")
        raw, count = random_raw(layout), 2000
        gaussian, dense = layout.gaussian(raw.detach()), dense_of_raw(layout, raw[0].detach())
        moving = image_of(y)
        objective = VariationalObjective(target, layout, num_samples=count, off_diagonal_penalty=0.0)
        outcome = objective(raw, moving, moving, 7)
        size = gaussian.dimensions
        identity = torch.eye(size, dtype=torch.float64)
        prior = MultivariateNormal(torch.zeros(size, dtype=torch.float64), identity / target.prior_precision)
        divergence = outcome.figures["log_likelihood"] + float(outcome.loss) * VOXELS
        spread = float(target.log_prior(gaussian.sample(count, seed=0)[:, 0]).std())
        expected = float(kl_divergence(dense.normal, prior))
        assert expected > 1
        assert divergence == pytest.approx(expected, abs=5 * spread / math.sqrt(count))

    def test_best_diagonal_covariance_under_the_prior_alone_has_the_conditional_precision(self):
        # A flat likelihood leaves ½ tr(QΣ) − ½ log det Σ with Q = λDᵀD, which a diagonal Σ minimizes at 1/Q_ii: a voxel
        # with n neighbors gets the precision λn, 6λ inside (decision 9). There the expected gradient is zero.
        layout, weight, grid = layout_of("D"), 1.5, (3, 3, 3)
        axis = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
        neighbors = axis[:, None, None] + axis[:, None] + axis
        assert float(neighbors[1, 1, 1]) == 6
        # softplus(raw) / (σ₀ log 2) = √(λn)
        softplus = layout.stencil.initial_std * math.log(2) * (weight * neighbors).sqrt()
        raw = torch.zeros(1, 6, *grid, dtype=torch.float64)
        raw[:, 3:] = softplus.expm1().log()
        raw.requires_grad_()
        target = Target(MSELikelihood(), DiffusionPrior(weight))
        black = torch.zeros(1, 1, 6, 6, 6, dtype=torch.float64)
        objective = VariationalObjective(target, layout, num_samples=50)
        gradients = torch.stack(
            [torch.autograd.grad(objective(raw, black, black, seed).loss, raw)[0][0, 3:] for seed in range(60)]
        )
        error = gradients.mean(0) / (gradients.std(0) / math.sqrt(60))
        assert float(error.abs().max()) < 5
        # Half the precision would be noticed.
        (away,) = torch.autograd.grad(objective(raw - math.log(2) / 2, black, black, 0).loss, raw)
        assert float(away[0, 3:].abs().mean()) > 5 * float((gradients.std(0) / math.sqrt(60)).mean())


class TestImportance:
    def test_more_samples_raise_the_bound_towards_the_evidence(self, toy):
        target, y = toy
        layout = layout_of("LC")
        # A proposal near the posterior, but without its couplings: from far away the bound would hardly move.
        exact = random_gaussian("LC", 1, GRID)
        raw = torch.zeros(1, layout.out_channels, *GRID, dtype=torch.float64)
        raw[:, :3] = exact.mean + 0.2
        raw[:, 3:6] = (exact.stencil_parameters[:, :3] * layout.stencil.initial_std * math.log(2)).expm1().log()
        raw[:, 48:] = exact.cov_factor.flatten(1, 2)
        seeds, means, errors = range(60), [], []
        for count in (1, 4, 16):
            objective = ImportanceObjective(target, layout, num_samples=count)
            bounds = [-VOXELS * float(apply(objective, raw, y, seed)) for seed in seeds]
            means.append(statistics.mean(bounds))
            errors.append(statistics.stdev(bounds) / math.sqrt(len(seeds)))
        for k in (0, 1):
            assert means[k + 1] - means[k] > 3 * math.hypot(errors[k], errors[k + 1])
        assert means[-1] < float(target.log_evidence(y)) + 5 * errors[-1]

    def test_effective_sample_size_is_a_share(self, toy):
        target, y = toy
        layout = layout_of("LC")
        moving = image_of(y)
        outcome = ImportanceObjective(target, layout, num_samples=8)(random_raw(layout), moving, moving, 0)
        assert 1 / 8 <= outcome.figures["ess"] <= 1
        one = ImportanceObjective(target, layout, num_samples=1)(random_raw(layout), moving, moving, 0)
        assert one.figures["ess"] == pytest.approx(1.0)


class TestSIR:
    def log_weights(self, toy, layout: ProposalLayout, raw: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        target, y = toy
        with torch.no_grad():
            dense = dense_of_raw(layout, raw[0])
            z = dense_samples(dense, layout.gaussian(raw), count, seed)
            return target(y, z) - dense.log_prob(z), z

    def test_scale_is_averaged_over_the_steps(self, toy):
        target, y = toy
        layout = layout_of("LC")
        raw, scale, expected = random_raw(layout), WeightScale(decay=0.8), math.nan
        objective = SIRObjective(target, layout, num_proposals=10, scale=scale)
        moving = image_of(y)
        for step, seed in enumerate((3, 4, 9)):
            outcome = objective(raw, moving, moving, seed)
            spread = float(self.log_weights(toy, layout, raw, 10, seed)[0].std())
            expected = spread if step == 0 else 0.8 * expected + 0.2 * spread
            assert float(scale.value) == pytest.approx(expected, rel=1e-9)
            assert outcome.figures["weight_scale"] == pytest.approx(expected, rel=1e-9)
            log_weights, _ = self.log_weights(toy, layout, raw, 10, seed)
            weights = torch.softmax(3.0 * log_weights / expected, dim=0)
            assert outcome.figures["ess"] == pytest.approx(float(1 / weights.square().sum()) / 10, rel=1e-6)

    def test_scale_is_kept_in_a_checkpoint(self, toy):
        target, y = toy
        objective = SIRObjective(target, layout_of("D"))
        apply(objective, random_raw(layout_of("D")), y)
        state = objective.state_dict()
        assert list(state) == ["scale.value"]
        assert torch.isfinite(state["scale.value"])

    def test_without_temperature_the_choice_is_uniform(self, toy):
        target, y = toy
        layout = layout_of("LC")
        raw, moving = random_raw(layout), image_of(y)
        for temperature in (0.0, 1e-12):
            objective = SIRObjective(
                target, layout, 10, num_resampled=10, temperature=temperature, off_diagonal_penalty=0.0
            )
            outcome = objective(raw, moving, moving, 5)
            assert outcome.figures["ess"] == pytest.approx(1.0)
            chosen = resample(torch.full((10,), 0.1), 10, torch.Generator().manual_seed(5))
            _, z = self.log_weights(toy, layout, raw, 10, 5)
            assert float(outcome.loss) == pytest.approx(float(-target(y, z[chosen]).mean()) / VOXELS, rel=1e-9)

    def test_a_high_temperature_takes_the_best_only(self, toy):
        target, y = toy
        layout = layout_of("LC")
        raw = random_raw(layout)
        log_weights, z = self.log_weights(toy, layout, raw, 10, 5)
        loss = apply(SIRObjective(target, layout, 10, num_resampled=4, temperature=1e6), raw, y, seed=5)
        best = z[log_weights.argmax()][None]
        assert float(loss) == pytest.approx(float(-target(y, best)) / VOXELS, rel=1e-9)

    @pytest.mark.parametrize("chunk", [1, 3, 32])
    def test_loss_does_not_depend_on_the_chunk_size(self, toy, chunk):
        target, y = toy
        raw = random_raw(layout_of("LC"))
        losses = [apply(SIRObjective(target, layout_of("LC"), 10, chunk=size), raw, y) for size in (10, chunk)]
        torch.testing.assert_close(*losses, rtol=1e-9, atol=0)

    def test_proposals_are_weighed_without_gradients(self, toy):
        target, y = toy
        recorded = []

        class Watching(LinearGaussianTarget):
            def log_likelihood(self, y, z):
                recorded.append((z.shape[0], z.requires_grad))
                return super().log_likelihood(y, z)

        watching = Watching(target.design, target.prior_precision)
        layout = layout_of("LC")
        apply(SIRObjective(watching, layout, 10, 2, chunk=6), random_raw(layout), y)
        assert recorded == [(6, False), (4, False), (2, True)]

    def test_nan_is_an_error_and_stays_out_of_the_scale(self):
        layout = layout_of("D")
        scale = WeightScale()
        objective = SIRObjective(Target(NCCLikelihood(window=3)), layout, scale=scale)
        moving, fixed = images(size=tuple(2 * n for n in GRID))
        objective(random_raw(layout), moving, fixed, 0)
        before = float(scale.value)
        with pytest.raises(WeightError, match="16 of 16 log-weights are NaN"):
            objective(random_raw(layout), moving * math.nan, fixed, 0)
        assert float(scale.value) == before

    @pytest.mark.parametrize(("proposals", "resampled"), [(4, 5), (4, 0), (1, 1)])
    def test_refuses_numbers_that_cannot_be(self, toy, proposals, resampled):
        with pytest.raises(ValueError, match=f"got {resampled} of {proposals}"):
            SIRObjective(toy[0], layout_of("D"), proposals, resampled)


def registration_target() -> Target:
    return Target(NCCLikelihood(window=3), DiffusionPrior(1.0), mean_prior=DiffusionPrior(2.5))


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("variant", VARIANTS)
class TestWithImages:
    def test_a_batch_equals_the_mean_over_its_elements(self, variant, name):
        layout = layout_of(variant)
        raw = random_raw(layout, batch=3)
        moving, fixed = images(3, tuple(2 * n for n in GRID))
        mask = (torch.rand(moving.shape, generator=torch.Generator().manual_seed(0)) > 0.3).double()
        together = OBJECTIVES[name](registration_target(), layout)(raw, moving, fixed, 5, mask)
        objective = OBJECTIVES[name](registration_target(), layout)  # S averages its scale over the same sequence
        alone = []
        for b in range(3):
            part = slice(b, b + 1)
            alone.append(objective(raw[part], moving[part], fixed[part], fold(5, b), mask[part]))
        expected = torch.stack([outcome.loss for outcome in alone]).mean()
        assert_same_with_gradient(together.loss, expected, raw)
        for figure, value in together.figures.items():
            if figure != "weight_scale":
                assert value == pytest.approx(sum(outcome.figures[figure] for outcome in alone) / 3)

    def test_regularization_by_hand(self, variant, name):
        layout = layout_of(variant)
        raw = random_raw(layout, batch=2)
        moving, fixed = images(2, tuple(2 * n for n in GRID))
        plain = OBJECTIVES[name](Target(NCCLikelihood(window=3)), layout, off_diagonal_penalty=0.0)
        full = OBJECTIVES[name](registration_target(), layout, off_diagonal_penalty=0.3)
        got = full(raw, moving, fixed, 5).loss - plain(raw, moving, fixed, 5).loss
        mean, rest = raw[:, :3], raw[:, 6 : 3 + layout.stencil.num_channels]
        # (λ_μ/2) Σ ‖∇μ‖² and 0.3 Σ L_pq², both a voxel and as the mean over the batch
        roughness = sum(mean.diff(dim=axis).square().sum() for axis in (2, 3, 4))
        expected = (2.5 / 2 * roughness + 0.3 * rest.square().sum()) / (2 * VOXELS)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)

    def test_the_same_seed_gives_the_same_loss_and_another_does_not(self, variant, name):
        layout = layout_of(variant)
        raw, pair = random_raw(layout), images(size=tuple(2 * n for n in GRID))
        losses = [float(OBJECTIVES[name](registration_target(), layout)(raw, *pair, seed).loss) for seed in (1, 1, 2)]
        assert losses[0] == losses[1] != losses[2]

    def test_figures_are_plain_numbers(self, variant, name):
        layout = layout_of(variant)
        outcome = OBJECTIVES[name](registration_target(), layout)(
            random_raw(layout), *images(size=tuple(2 * n for n in GRID)), 1
        )
        expected = {"V": {"entropy"}, "I": {"ess"}, "S": {"ess", "weight_scale"}}[name]
        assert set(outcome.figures) == {"log_likelihood", "log_prior", "variance"} | expected
        assert all(type(value) is float and math.isfinite(value) for value in outcome.figures.values())
        assert outcome.loss.shape == ()
        assert outcome.loss.dtype == torch.float64


def tiny_network(layout: ProposalLayout, dtype: torch.dtype = torch.float64) -> ProposalNetwork:
    torch.manual_seed(0)
    return ProposalNetwork(layout, UNetBackbone((4, 4, 4))).to(dtype)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("variant", VARIANTS)
class TestWithANetwork:
    def test_gradients_reach_every_parameter(self, variant, name):
        cross_channel, rank = VARIANTS[variant]
        network = tiny_network(ProposalLayout(cross_channel, rank), torch.float32)
        moving, fixed = images(2, dtype=torch.float32)
        objective = OBJECTIVES[name](registration_target(), network.layout)
        outcome = objective(network(torch.cat([moving, fixed], 1)), moving, fixed, 0)
        assert torch.isfinite(outcome.loss)
        outcome.loss.backward()
        for parameter_name, parameter in network.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert torch.isfinite(parameter.grad).all(), parameter_name
            assert parameter.grad.abs().sum() > 0, parameter_name

    def test_a_few_steps_lower_the_loss(self, variant, name):
        cross_channel, rank = VARIANTS[variant]
        network = tiny_network(ProposalLayout(cross_channel, rank))
        moving, fixed = images()
        pair = torch.cat([moving, fixed], 1)
        objective = OBJECTIVES[name](registration_target(), network.layout)
        optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
        losses = []
        for _ in range(12):
            loss = objective(network(pair), moving, fixed, 0).loss  # the same noise, so that losses can be compared
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
        assert losses[-1] < losses[0]


def test_mean_only_network():
    layout = ProposalLayout(deterministic=True, rank=0)
    network = tiny_network(layout)
    moving, fixed = images()
    target = registration_target()
    objective = MeanObjective(target, layout)
    raw = network(torch.cat([moving, fixed], 1))
    outcome = objective(raw, moving, fixed, 0)
    (pair,) = target.prepare(moving, fixed)
    expected = -(target(pair, raw) + target.log_mean_prior(raw))[0] / 4**3
    assert_same_with_gradient(outcome.loss, expected, raw)
    assert set(outcome.figures) == {"log_likelihood", "log_prior"}
    assert float(objective(raw, moving, fixed, 1).loss) == float(outcome.loss)  # nothing is random


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_mean_only_network_has_nothing_to_sample(name):
    layout = ProposalLayout(deterministic=True, rank=0)
    objective = OBJECTIVES[name](registration_target(), layout)
    with pytest.raises(ValueError, match="not a distribution"):
        objective(torch.zeros(1, 3, 4, 4, 4), *images(dtype=torch.float32), 0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_refuses_what_does_not_fit(name):
    layout = layout_of("LC")
    objective = OBJECTIVES[name](registration_target(), layout)
    moving, fixed = images(2, tuple(2 * n for n in GRID))
    with pytest.raises(ShapeError, match=str(layout.out_channels)):
        objective(random_raw(layout)[:, 1:], moving, fixed, 0)
    # Two outputs for one pair, or one for two: neither may be passed over.
    for outputs, pairs in ((2, 1), (1, 2)):
        with pytest.raises(ShapeError, match=rf"\({pairs}, {layout.out_channels}, x, y, z\)"):
            objective(random_raw(layout, outputs), moving[:pairs], fixed[:pairs], 0)


@pytest.mark.parametrize("objective", [VariationalObjective, ImportanceObjective])
def test_refuses_to_work_without_samples(objective):
    with pytest.raises(ValueError, match="num_samples must be positive, got 0"):
        objective(registration_target(), layout_of("D"), num_samples=0)
