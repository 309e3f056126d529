"""Weights of each voxel: exact where voxels are independent, and what the accumulator makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from scripts.core.grid import Grid
from scripts.posterior.label_samples import LabelSamples
from scripts.posterior.local_weights import BINS, LocalWeights
from scripts.registration.space import PairSpace

SHAPE = (12, 10, 8)
GRID = Grid(SHAPE, np.eye(4))
SPACE = PairSpace(GRID, GRID, GRID)


def images(seed=0):
    """Two images of whole bins with something in common, and a label map of the moving one."""
    rng = np.random.default_rng(seed)
    moving = rng.integers(1, 4, SHAPE) / 3
    fixed = np.where(rng.random(SHAPE) < 0.7, moving, rng.integers(1, 4, SHAPE) / 3)
    label = rng.integers(0, 3, SHAPE)
    return (torch.from_numpy(part) for part in (fixed.astype(np.float32), moving.astype(np.float32), label))


def test_label_probabilities_are_the_exact_posterior_where_voxels_are_independent():
    """Each voxel looks at itself or at its neighbor along the first axis, with a known prior, each for itself."""
    fixed, moving, label = images()
    weights = LocalWeights(fixed, moving, SPACE, torch.zeros(3, *SHAPE))
    prior, count = 0.3, 3000
    generator = torch.Generator().manual_seed(1)
    samples = LabelSamples([1, 2])
    for _ in range(count):
        step = (torch.rand(SHAPE, generator=generator) < prior).float()
        step[-1] = 0
        displacement = torch.stack([step, torch.zeros(SHAPE), torch.zeros(SHAPE)])
        samples.add(SPACE.warp_labels(label.int(), displacement), 1.0, weights(displacement))
    # Bayes by enumeration, with the histogram's own p(f | m): codes of thirds of 31.
    codes = [torch.round(part * (BINS - 1) / part.max()).long() for part in (fixed, moving)]
    likelihood = weights._table.reshape(BINS, BINS)
    stay = (1 - prior) * likelihood[codes[0], codes[1]]
    go = prior * likelihood[codes[0][:-1], codes[1][1:]]
    for value in (1, 2):
        here = (label == value).double()
        expected = (stay[:-1] * here[:-1] + go * here[1:]) / (stay[:-1] + go)
        found = samples.probability(value)[:-1]
        # The delta method: the standard error of a self-normalized estimate of a share is at most max w / (w̄ √N).
        ratio = torch.maximum(stay[:-1] / (1 - prior), go / prior) / (stay[:-1] + go)
        assert bool(((found - expected).abs() < 5 * ratio / count**0.5).all())


def test_weights_are_ratios_of_likelihoods_to_the_mean_fields():
    fixed, moving, _ = images(3)
    zero = torch.zeros(3, *SHAPE)
    weights = LocalWeights(fixed, moving, SPACE, zero)
    torch.testing.assert_close(weights(zero), torch.ones(SHAPE))
    one = zero.clone()
    one[1] = 1
    found = weights(one)
    assert float(found.min()) > 0
    # Where the neighbor has the same intensity the weight is the same.
    same = moving[:, :-1] == moving[:, 1:]
    torch.testing.assert_close(found[:, :-1][same], torch.ones(int(same.sum())))


def test_any_contrast_will_do():
    """Inverted intensities: the same ranking of samples, by the histogram of the pair."""
    fixed, moving, _ = images(5)
    step = torch.zeros(3, *SHAPE)
    step[0] = 1
    one, other = (LocalWeights(fixed, part, SPACE, torch.zeros(3, *SHAPE))(step) for part in (moving, 4 / 3 - moving))
    inner = (slice(0, -1),)
    assert np.corrcoef(one[inner].log().flatten(), other[inner].log().flatten())[0, 1] > 0.95


class TestAccumulator:
    def test_constant_local_weights_change_nothing(self):
        maps = torch.from_numpy(np.random.default_rng(0).integers(0, 3, (6, *SHAPE)))
        plain, local = LabelSamples([1, 2]), LabelSamples([1, 2])
        for label_map in maps:
            plain.add(label_map)
            local.add(label_map, 1.0, torch.full(SHAPE, 0.5))
        torch.testing.assert_close(plain.probability(1), local.probability(1))
        for one, two in zip(plain.summary(), local.summary(), strict=True):
            torch.testing.assert_close(one, two)
        torch.testing.assert_close(plain.volume_interval(), local.volume_interval())

    def test_probabilities_are_weighted_voxel_by_voxel(self):
        rng = np.random.default_rng(1)
        maps, weights = rng.integers(0, 3, (5, *SHAPE)), rng.random((5, *SHAPE)) + 0.1
        samples = LabelSamples([1, 2], voxel_volume=2.0)
        for label_map, weight in zip(maps, weights, strict=True):
            samples.add(torch.from_numpy(label_map), 1.0, torch.from_numpy(weight))
        expected = ((maps == 2) * weights).sum(0) / weights.sum(0)
        np.testing.assert_allclose(samples.probability(2).numpy(), expected)
        np.testing.assert_allclose(float(samples.mean_volumes[1]), 2 * expected.sum())
        summary = samples.summary()
        shares = np.stack([((maps == value) * weights).sum(0) / weights.sum(0) for value in (0, 1, 2)])
        assert np.array_equal(summary.label.numpy(), shares.argmax(0))
        np.testing.assert_allclose(summary.probability.numpy(), shares.max(0))

    def test_all_samples_have_local_weights_or_none(self):
        samples = LabelSamples([1])
        samples.add(torch.ones(SHAPE, dtype=torch.int32))
        with pytest.raises(ValueError, match="for all samples or for none"):
            samples.add(torch.ones(SHAPE, dtype=torch.int32), 1.0, torch.ones(SHAPE))

    def test_probabilities_are_blurred_as_scipy_blurs_a_whole_volume(self):
        maps = torch.zeros(2, *SHAPE, dtype=torch.int32)
        maps[0, 4:8, 3:7, 2:6] = 1
        maps[1, 5:8, 3:7, 2:6] = 1
        samples = LabelSamples.from_maps(maps, [1, 2])
        before = samples.probability(1).numpy()
        samples.smooth(0.5)
        expected = gaussian_filter(before, 0.5, mode="nearest", truncate=3.0)
        np.testing.assert_allclose(samples.probability(1).numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(float(samples.mean_volumes[0]), before.sum(), rtol=1e-9)
        assert not samples.probability(2).any()
