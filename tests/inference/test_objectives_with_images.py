from __future__ import annotations

import math

import pytest
import torch

from scripts.core.processes import ALONE
from scripts.gaussian.noise import fold
from scripts.inference.objectives import MeanObjective
from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone, WeightScale
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target
from tests.gaussian.conftest import VARIANTS
from tests.inference.conftest import (
    OBJECTIVES,
    VOXELS,
    assert_same_with_gradient,
    images,
    layout_of,
    random_raw,
    registration_target,
)
from tests.inference.toy import GRID


class Known(WeightScale):
    """σ_α of a whole batch, for its pairs alone."""

    def update(self, log_weights, processes=ALONE):
        return self.value


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("variant", VARIANTS)
class TestWithImages:
    def test_a_batch_equals_the_mean_over_its_elements(self, variant, name):
        layout = layout_of(variant)
        raw = random_raw(layout, batch=3)
        moving, fixed = images(3, tuple(2 * n for n in GRID))
        mask = (torch.rand(moving.shape, generator=torch.Generator().manual_seed(0)) > 0.3).double()
        both = OBJECTIVES[name](registration_target(), layout)
        together = both(raw, moving, fixed, 5, mask)
        objective = OBJECTIVES[name](registration_target(), layout)
        if name == "S":
            objective.scale = Known()
            objective.scale.value.copy_(both.scale.value)
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
        expected = {"V": {"entropy"}, "I": {"ess"}, "S": {"ess", "weight_scale", "log_proposal"}}[name]
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
