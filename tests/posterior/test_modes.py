"""Modes of samples: a dense PCA, scikit-learn's silhouettes, and how often one Gaussian is taken for two."""

import numpy as np
import pytest
import torch
from sklearn.metrics import silhouette_samples

from scripts.posterior import modes
from scripts.posterior.modes import are_distinct, find_modes

DIMENSIONS = 300


def gaussian(count=80, seed=0):
    """Samples with a few strong directions in noise, far from the origin; float32."""
    rng = np.random.default_rng(seed)
    samples = rng.normal(size=(count, DIMENSIONS))
    samples[:, :8] *= np.linspace(12, 4, 8)
    return torch.from_numpy(samples + 10).float()


def two_groups(count=80, smaller=30, gap=50.0, seed=0):
    samples = gaussian(count, seed)
    chosen = np.random.default_rng(seed).permutation(count)[:smaller]
    samples[chosen, 3] += gap
    return samples, set(chosen.tolist())


def principal_scores(samples, weights, components):
    """By the dense covariance matrix."""
    values = samples.double().numpy()
    centered = values - np.average(values, axis=0, weights=weights)
    _, vectors = np.linalg.eigh(np.cov(values.T, aweights=weights))
    return centered @ vectors[:, ::-1][:, :components]


class TestGroups:
    def test_two_groups_are_found_with_their_weights(self):
        samples, chosen = two_groups(gap=100.0)
        large, small = find_modes(samples)
        assert set(small.members) == chosen
        assert set(large.members) == set(range(80)) - chosen
        assert (large.weight, small.weight) == (pytest.approx(50 / 80), pytest.approx(30 / 80))
        assert large.sample in large.members
        assert small.sample in small.members
        assert are_distinct([large, small])

    def test_weights_move_the_balance(self):
        samples, chosen = two_groups(gap=100.0)
        weights = torch.ones(80)
        weights[list(chosen)] = 10
        heavy, light = find_modes(samples, weights, simulations=0)
        assert set(heavy.members) == chosen
        assert heavy.weight == pytest.approx(300 / 350)
        assert light.weight == pytest.approx(50 / 350)

    @pytest.mark.parametrize("equal", [True, False])
    def test_representatives_are_nearest_to_the_centers_of_a_dense_pca(self, equal):
        samples, _ = two_groups()
        weights = np.ones(80) if equal else np.random.default_rng(1).uniform(0.2, 3, 80)
        scores = principal_scores(samples, weights, 4)
        modes = find_modes(samples, weights, num_components=4, simulations=0)
        for mode in modes:
            members = list(mode.members)
            center = np.average(scores[members], axis=0, weights=weights[members])
            distances = np.linalg.norm(scores[members] - center, axis=1)
            assert mode.sample == members[distances.argmin()]
            assert mode.distance == pytest.approx(distances.min() / DIMENSIONS**0.5, rel=1e-4)

    def test_silhouettes_are_those_of_scikit_learn(self):
        samples, _ = two_groups(gap=25.0)
        labels = np.zeros(80)
        modes = find_modes(samples, num_modes=3, simulations=0)
        for number, mode in enumerate(modes):
            labels[list(mode.members)] = number
        expected = silhouette_samples(principal_scores(samples, np.ones(80), 5), labels)
        for mode in modes:
            assert mode.silhouette == pytest.approx(expected[list(mode.members)].mean(), abs=1e-4)

    def test_modes_are_sorted_and_add_up_to_one(self):
        modes = find_modes(gaussian(), num_modes=4, simulations=0)
        weights = [mode.weight for mode in modes]
        assert len(modes) == 4
        assert weights == sorted(weights, reverse=True)
        assert sum(weights) == pytest.approx(1)
        assert sorted(k for mode in modes for k in mode.members) == list(range(80))

    def test_shapes_of_fields_do_not_matter(self):
        samples, _ = two_groups()
        assert find_modes(samples.reshape(80, 3, 10, 10), simulations=9) == find_modes(samples, simulations=9)


def test_columns_in_chunks_give_the_same(monkeypatch):
    samples, _ = two_groups()
    whole = find_modes(samples, simulations=9)
    monkeypatch.setattr(modes, "_COLUMNS", 70)
    parts = find_modes(samples, simulations=9)
    assert [(mode.sample, mode.members, mode.p_value) for mode in parts] == [
        (mode.sample, mode.members, mode.p_value) for mode in whole
    ]
    assert [mode.distance for mode in parts] == pytest.approx([mode.distance for mode in whole])


def test_a_common_displacement_loses_no_digits():
    samples, _ = two_groups()
    moved = find_modes(samples.double() + 1e6, simulations=0)
    assert [mode.members for mode in moved] == [mode.members for mode in find_modes(samples, simulations=0)]


class TestOneGaussianOrTwo:
    def test_one_gaussian_is_seldom_called_two_modes(self):
        calls = [find_modes(gaussian(seed=seed), seed=seed) for seed in range(8)]
        # At a level of 1 %, two or more of 8 would come once in 400 cases.
        assert sum(are_distinct(modes) for modes in calls) <= 1
        assert np.median([modes[0].p_value for modes in calls]) > 0.1

    def test_resampled_copies_do_not_make_modes(self):
        rng = np.random.default_rng(0)
        calls = []
        for seed in range(6):
            drawn = rng.multinomial(80, rng.dirichlet(np.full(60, 0.7)))
            calls.append(find_modes(gaussian(60, seed).repeat_interleave(torch.from_numpy(drawn), dim=0), seed=seed))
        assert sum(are_distinct(modes) for modes in calls) <= 1

    @pytest.mark.parametrize(("smaller", "gap"), [(40, 50.0), (16, 80.0)])
    def test_two_modes_are_recognized(self, smaller, gap):
        assert all(are_distinct(find_modes(two_groups(smaller=smaller, gap=gap, seed=s)[0])) for s in range(2))

    def test_a_skewed_cloud_is_seldom_called_two_modes(self):
        rng = np.random.default_rng(0)
        calls = []
        for seed in range(4):
            samples = gaussian(seed=seed)
            samples[:, :8] = torch.from_numpy(rng.exponential(size=(80, 8)) * np.linspace(24, 8, 8))
            calls.append(find_modes(samples, seed=seed))
        assert np.median([modes[0].p_value for modes in calls]) <= 0.05  # no Gaussian ...
        assert sum(are_distinct(modes) for modes in calls) <= 1  # ... but in one piece

    def test_a_stray_sample_is_no_mode(self):
        samples = gaussian()
        samples[7] += 40
        modes = find_modes(samples)
        assert modes[1].members == (7,)
        assert not are_distinct(modes)


class TestFewSamples:
    def test_one_sample(self):
        (mode,) = find_modes(torch.ones(1, 30), [2.0])
        assert (mode.weight, mode.sample, mode.distance, mode.silhouette) == (1, 0, 0, 0)
        assert mode.members == (0,)
        assert not are_distinct([mode])

    def test_identical_samples_are_one_mode(self):
        (mode,) = find_modes(gaussian(1).expand(20, -1))
        assert (mode.weight, mode.sample, mode.p_value) == (pytest.approx(1), 0, 1)
        assert mode.members == tuple(range(20))

    def test_fewer_different_samples_than_modes(self):
        samples = gaussian(2)[[0, 1, 1, 0, 1]]
        first, second = find_modes(samples, num_modes=3)
        assert (first.members, second.members) == ((1, 2, 4), (0, 3))
        assert (first.weight, second.weight) == (pytest.approx(0.6), pytest.approx(0.4))
        assert (first.sample, second.sample) == (1, 0)
        assert not are_distinct([first, second])

    def test_copies_equal_weights(self):
        samples, _ = two_groups(count=30, smaller=10)
        times = torch.arange(30) % 4 + 1
        copies = find_modes(samples.repeat_interleave(times, dim=0), seed=3, simulations=19)
        weighted = find_modes(samples, times, seed=3, simulations=19)
        first = times.cumsum(0) - times
        assert [mode.sample for mode in copies] == [int(first[mode.sample]) for mode in weighted]
        assert [mode.weight for mode in copies] == pytest.approx([mode.weight for mode in weighted])
        assert [mode.silhouette for mode in copies] == pytest.approx([mode.silhouette for mode in weighted])
        assert copies[0].p_value == weighted[0].p_value

    def test_samples_of_no_weight_are_left_out(self):
        samples, _ = two_groups(count=30, smaller=10)
        weights = torch.ones(30)
        weights[[0, 5, 9]] = 0
        kept = torch.nonzero(weights).flatten()
        with_zeros, without = (find_modes(*args, simulations=9) for args in ((samples, weights), (samples[kept],)))
        assert [mode.members for mode in with_zeros] == [tuple(int(kept[k]) for k in mode.members) for mode in without]

    def test_one_mode_is_the_sample_nearest_to_the_mean(self):
        samples = gaussian(20)
        (mode,) = find_modes(samples, num_modes=1, num_components=19)
        assert mode.sample == int((samples - samples.mean(0)).norm(dim=1).argmin())
        assert mode.p_value == 1

    @pytest.mark.parametrize("count", [2, 3, 4, 7])
    def test_more_components_than_samples(self, count):
        modes = find_modes(gaussian(count), num_components=50)
        assert sum(mode.weight for mode in modes) == pytest.approx(1)
        assert not are_distinct(modes)


def test_a_seed_gives_the_same_modes_again():
    samples = gaussian()
    assert find_modes(samples, seed=5) == find_modes(samples, seed=5)


def test_refuses_what_makes_no_sense():
    samples = gaussian(4)
    for weights in ([1.0, -1, 1, 1], [0.0] * 4, [float("nan")] * 4):
        with pytest.raises(ValueError, match="expected finite weights, none negative and not all zero"):
            find_modes(samples, weights)
    with pytest.raises(ValueError, match=r"expected 4 weights, one a sample, got shape \(3,\)"):
        find_modes(samples, [1.0, 1, 1])
    with pytest.raises(ValueError, match="expected at least one sample"):
        find_modes(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="at least 1 mode"):
        find_modes(samples, num_modes=0)
    samples[0, 0] = torch.nan
    with pytest.raises(ValueError, match="expected finite samples"):
        find_modes(samples)
