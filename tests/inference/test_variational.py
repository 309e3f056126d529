from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from scripts.inference.objectives import VariationalObjective
from scripts.registration.local_correlation import MSELikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from tests.inference.conftest import VOXELS, apply, layout_of, random_raw
from tests.inference.toy import dense_of_raw, image_of


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

    def test_pairs_cancel_what_a_slope_adds_to_the_noise_of_the_covariance(self):
        # log p linear in z: the bound does not depend on the covariance but for its entropy, and neither do gradients.
        class Slope(torch.nn.Module):
            overlap = mean_prior = None

            def prepare(self, moving, fixed, mask=None, labels=None, seeds=None):
                return [None] * len(moving)

            def log_mean_prior(self, mean):
                return mean.new_zeros(len(mean))

            def log_likelihood(self, pair, z):
                return 100 * z.flatten(1).sum(1)

            def log_prior(self, z):
                return z.new_zeros(len(z))

        layout = layout_of("LC")
        raw = random_raw(layout)
        images = torch.zeros(1, 1, 4, 4, 4, dtype=torch.float64)
        objective = VariationalObjective(Slope(), layout, num_samples=2)
        gradients = [torch.autograd.grad(objective(raw, images, images, seed).loss, raw)[0] for seed in range(3)]
        for other in gradients[1:]:
            torch.testing.assert_close(other, gradients[0], rtol=1e-9, atol=1e-9)

    def test_an_odd_number_of_samples_is_refused(self, toy):
        with pytest.raises(ValueError, match="must be even, since samples come in pairs, got 3"):
            VariationalObjective(toy[0], layout_of("D"), num_samples=3)
