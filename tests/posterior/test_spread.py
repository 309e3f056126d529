"""How samples are made around a mean: each kind against what it claims."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from scripts.core.described import make
from scripts.core.errors import DataError
from scripts.networks import ProposalLayout
from scripts.networks.curvature import CurvatureLayout
from scripts.posterior.pair_images import PairImages
from scripts.posterior.sampler import Sampler
from scripts.posterior.spread import CurvatureSpread, NetworkSpread, NoiseSpread, Spread, curvature, named_spread
from scripts.registration.curvature import curvature_weights
from scripts.registration.local_correlation import NCCLikelihood, local_ncc
from scripts.registration.target import Target
from tests.evaluation.brains import ensemble_of, sampler_of, shifted_pair

SHAPE = (20, 16, 24)
GRID = tuple(size // 2 for size in SHAPE)


def waves():
    """A plane wave of 5 voxels along the second axis, in the middle of a constant gray: [1, 1, X, Y, Z]."""
    y = torch.arange(40, dtype=torch.float64)
    line = 0.5 + 0.3 * torch.sin(2 * math.pi * y / 5)
    return line.reshape(1, 1, 1, -1, 1).expand(1, 1, 16, 40, 16).contiguous()


def test_the_curvature_is_the_second_derivative_of_the_likelihood():
    """Windows hold whole waves, so a window's line fit is blind to the wave's slope, and the formula is exact."""
    fixed, step = waves(), 0.01
    y = torch.arange(40, dtype=torch.float64)

    def value(shift):
        line = 0.5 + 0.3 * torch.sin(2 * math.pi * (y + shift) / 5)
        moved = line.reshape(1, 1, 1, -1, 1).expand_as(fixed).contiguous()
        return -local_ncc(fixed, moved, 5, eps=0.0)[0, 0, 6:-6, 10:30, 6:-6].mean() / 0.25

    numeric = (value(step) - 2 * value(0.0) + value(-step)) / step**2
    slope = 0.3 * 2 * math.pi / 5 * torch.cos(2 * math.pi * y / 5)
    weights = curvature_weights(fixed, fixed, 5, 0.5)[0, 0, 6:-6, 10:30, 6:-6]
    analytic = (weights * slope[10:30].square().float()[None, :, None]).mean()
    assert float(analytic) == pytest.approx(float(numeric), rel=2e-3)


def random_pair(seed=0):
    generator = torch.Generator().manual_seed(seed)
    moving, fixed = (
        torch.nn.functional.avg_pool3d(torch.rand(1, 1, *SHAPE, generator=generator), 3, 1, 1) for _ in range(2)
    )
    return PairImages.on_one_grid(moving, moving + 0.05 * fixed)


class TestCurvature:
    def test_it_is_a_sum_over_the_voxels_of_a_control_point(self):
        pair, target = random_pair(), Target(NCCLikelihood(5))
        mean = torch.zeros(1, 3, *GRID)
        w = curvature(target, pair.space, pair, mean)
        slopes = np.gradient(pair.moving[0, 0].numpy())
        weight = curvature_weights(pair.fixed, pair.moving, 5)[0, 0].numpy()
        block = (slice(4, 6), slice(6, 8), slice(10, 12))
        expected = (weight * slopes[0] * slopes[2])[block].sum()
        assert float(w[0, 4, 2, 3, 5]) == pytest.approx(float(expected), rel=1e-4)

    def test_masked_voxels_say_nothing_and_are_the_least_certain(self):
        pair = random_pair()
        mask = torch.ones_like(pair.fixed)
        mask[..., :12] = 0
        hidden = PairImages(pair.fixed, pair.moving, pair.space, mask)
        raw = torch.zeros(1, 3 + 45 + 6, *GRID)
        parts = CurvatureSpread().around(raw, ProposalLayout(rank=2), Target(NCCLikelihood(5)), pair.space, hidden)
        assert not parts[0][:, 3:, ..., :6].any()
        proposal = parts[1].proposal(parts[0])
        std = proposal.sample(64, seed=0)[:, 0].std(0).mean(0)
        assert float(std[..., :4].mean()) > 1.3 * float(std[..., 8:].mean())

    def test_more_trust_or_stiffness_is_less_width(self):
        raw = torch.zeros(1, 9, *GRID)
        raw[:, 3:6] = 100.0
        widths = [
            float(CurvatureLayout(trust, stiffness).proposal(raw).sample(32, seed=1).std())
            for trust, stiffness in ((0.002, 0.01), (0.008, 0.01), (0.002, 0.04))
        ]
        assert widths[0] > widths[1]
        assert widths[0] > widths[2]

    @pytest.mark.parametrize("numbers", [(-1, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.0, 0.0)])
    def test_impossible_numbers_are_refused(self, numbers):
        with pytest.raises(DataError, match="trust"):
            CurvatureSpread(*numbers)


class TestNoise:
    def test_width_and_length_are_as_asked_for(self):
        pair = random_pair()
        raw, layout = NoiseSpread(1.5, 4.0).around(
            torch.zeros(1, 3 + 45 + 6, 24, 24, 24), ProposalLayout(rank=2), Target(), pair.space, pair
        )
        z = layout.proposal(raw).sample(40, seed=2)[:, 0]
        inner = z[..., 6:18, 6:18, 6:18]
        assert float(inner.std()) == pytest.approx(1.5, rel=0.05)
        # White noise through a Gaussian of σ = 4 mm / (2 voxels of 1 mm) has correlation exp(−d²/4σ²).
        near = float((inner[..., 1:] * inner[..., :-1]).mean() / inner.square().mean())
        assert near == pytest.approx(math.exp(-1 / 16), abs=0.02)

    def test_samples_come_again_one_by_one(self):
        pair, raw = random_pair(), torch.zeros(1, 54, *GRID)
        _, layout = NoiseSpread().around(raw, ProposalLayout(rank=2), Target(), pair.space, pair)
        proposal = layout.proposal(torch.zeros(1, 3, *GRID))
        assert torch.equal(proposal.sample(indices=[3], seed=1)[0], proposal.sample(5, seed=1)[3])
        torch.testing.assert_close(
            proposal.average([0, 1], torch.tensor([0.25, 0.75]), seed=1)[0],
            0.25 * proposal.sample(2, seed=1)[0, 0] + 0.75 * proposal.sample(2, seed=1)[1, 0],
        )


def test_a_scaled_network_has_scaled_samples_and_its_density():
    generator = torch.Generator().manual_seed(0)
    raw, layout, pair = 0.1 * torch.randn(1, 54, *GRID, generator=generator), ProposalLayout(rank=2), random_pair()
    plain = layout.proposal(raw)
    wide = NetworkSpread(2.0).around(raw, layout, Target(), pair.space, pair)
    scaled = wide[1].proposal(wide[0])
    one, two = (part.sample(3, seed=0) - raw[:, :3] for part in (plain, scaled))
    torch.testing.assert_close(two, 2 * one, rtol=1e-4, atol=1e-5)
    assert float(scaled.log_det() - plain.log_det()) == pytest.approx(2 * 3 * math.prod(GRID) * math.log(2), rel=1e-5)


def test_names_settings_and_calibrated_numbers():
    assert isinstance(named_spread(None), NetworkSpread)
    assert named_spread("noise").settings() == NoiseSpread().settings()
    known = {**CurvatureSpread().settings(), "trust": 0.5}
    assert named_spread("curvature", known).trust == 0.5
    assert named_spread("noise", known).std_mm == NoiseSpread().std_mm
    given = NoiseSpread(3.0)
    assert named_spread(given, known) is given
    with pytest.raises(DataError, match="expected one of curvature, network, noise"):
        named_spread("wide")
    for spread in (NetworkSpread(2.0, False), NoiseSpread(2.0), CurvatureSpread(passes=3)):
        assert make(spread.settings(), Spread).settings() == spread.settings()


def test_an_ensemble_is_its_own_spread():
    assert isinstance(Sampler(ensemble_of(1.0, 2.0).model, spread="curvature").spread, NetworkSpread)


def test_the_papers_sampling_is_one_option_away():
    """Network and selection: proposals are weighed by SIR and resampled, as without any spread."""
    plain, named = (
        Sampler(sampler_of(2, 0.3).model, {"num_proposals": 30, "num_samples": 9, "progress": False}, spread=spread)
        for spread in (None, "network")
    )
    one, two = (sampler.posterior(shifted_pair().images) for sampler in (plain, named))
    assert torch.equal(one.draws.resampled, two.draws.resampled)
    assert len(one.draws.weights) == 30
    assert float(one.draws.weights.max()) > 1 / 30
    local = Sampler(
        sampler_of(2, 0.3).model, {"num_proposals": 30, "num_samples": 9, "progress": False}, spread="noise"
    )
    assert len(local.posterior(shifted_pair().images).draws.weights) == 9
