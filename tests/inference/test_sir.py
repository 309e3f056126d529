from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scripts.inference.errors import WeightError
from scripts.inference.objectives import SIRObjective
from scripts.inference.weights import resample
from scripts.networks import ProposalLayout, WeightScale
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target
from tests.inference.conftest import VOXELS, apply, images, layout_of, random_raw
from tests.inference.toy import GRID, LinearGaussianTarget, dense_of_raw, dense_samples, image_of


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
        raw, scale, expected = random_raw(layout), WeightScale(), math.nan
        objective = SIRObjective(target, layout, num_proposals=10, scale=scale)
        moving = image_of(y)
        for step, seed in enumerate((3, 4, 9)):
            outcome = objective(raw, moving, moving, seed)
            spread = float(self.log_weights(toy, layout, raw, 10, seed)[0].std())
            expected = spread if step == 0 else 0.9 * expected + 0.1 * spread
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

    @pytest.mark.parametrize("density", [True, False])
    @pytest.mark.parametrize("temperature", [0.0, 1e-12])
    def test_without_temperature_the_choice_is_uniform(self, toy, temperature, density):
        target, y = toy
        layout = layout_of("LC")
        raw, moving = random_raw(layout), image_of(y)
        objective = SIRObjective(
            target, layout, 10, 10, temperature=temperature, off_diagonal_penalty=0.0, proposal_density=density
        )
        outcome = objective(raw, moving, moving, 5)
        assert outcome.figures["ess"] == pytest.approx(1.0)
        chosen = resample(torch.full((10,), 0.1), 10, torch.Generator().manual_seed(5))
        log_weights, z = self.log_weights(toy, layout, raw, 10, 5)
        maximized = log_weights[chosen] if density else target(y, z[chosen])
        assert float(outcome.loss.detach()) == pytest.approx(float(-maximized.mean()) / VOXELS, rel=1e-9)

    def test_a_high_temperature_takes_the_best_only(self, toy):
        target, y = toy
        layout = layout_of("LC")
        raw = random_raw(layout)
        log_weights, _ = self.log_weights(toy, layout, raw, 10, 5)
        loss = apply(SIRObjective(target, layout, 10, num_resampled=4, temperature=1e6), raw, y, seed=5)
        assert float(loss.detach()) == pytest.approx(float(-log_weights.max()) / VOXELS, rel=1e-9)

    def test_the_proposal_s_density_keeps_its_variance_up(self, toy):
        # Where the proposal is the posterior, nothing is to be gained: the mean gradient of log α over samples is zero.
        # Without log q it pulls all of L's diagonal up, that is the variance down.
        target, y = toy
        layout = layout_of("D")
        pulls = []
        for density in (True, False):
            raw = torch.zeros(1, layout.out_channels, *GRID, dtype=torch.float64, requires_grad=True)
            objective = SIRObjective(target, layout, 10, 10, temperature=0.0, proposal_density=density)
            apply(objective, raw, y).backward()
            pulls.append(float(raw.grad[:, 3:].mean()))
        with_density, without = pulls
        assert without < with_density

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
        # 10 in chunks of 6 and 4; then the 2 that were chosen
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
