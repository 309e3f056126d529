from __future__ import annotations

import pytest
import torch

from scripts.gaussian.errors import ShapeError
from scripts.inference.objectives import ImportanceObjective, MeanObjective, SIRObjective, VariationalObjective
from scripts.inference.weights import resample
from scripts.networks import ProposalLayout
from tests.gaussian.conftest import VARIANTS
from tests.inference.conftest import (
    OBJECTIVES,
    VOXELS,
    apply,
    assert_same_with_gradient,
    images,
    layout_of,
    random_raw,
    registration_target,
)
from tests.inference.toy import GRID, dense_of_raw, dense_samples


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
        layout, raw, dense, z = self.dense(variant, 3)
        loss = apply(VariationalObjective(target, layout, num_samples=6), raw, y)
        mirrored = torch.cat([z, 2 * layout.mean(raw) - z])
        expected = -(target(y, mirrored).mean() + dense.normal.entropy()) / VOXELS
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
        # No gradient of the choice: only of log α at the chosen samples.
        log_alpha = target(y, z[chosen]) - dense.log_prob(z[chosen])
        assert_same_with_gradient(loss, -log_alpha.mean() / VOXELS, raw)

    def test_mean(self, variant, toy):
        target, y = toy
        layout = layout_of(variant)
        raw = random_raw(layout)
        loss = apply(MeanObjective(target, layout), raw, y)
        assert_same_with_gradient(loss, -target(y, raw[:, :3])[0] / VOXELS, raw)


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
