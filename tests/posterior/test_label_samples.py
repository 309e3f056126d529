"""The accumulator of label samples against one-hot averages kept in full."""

import doctest

import numpy as np
import pytest
import torch

from scripts.posterior import label_samples
from scripts.posterior.boxes import box_shape
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.label_samples import LabelSamples, weighted_quantile

LABELS = [4, 9000, 17, 60]


def moving_blocks(samples=7, shape=(24, 20, 22), seed=0):
    """Blocks of four labels that jump about, out of the boxes of earlier samples; label 60 never occurs."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.zeros(samples, *shape, dtype=torch.int16)
    for sample in maps:
        for label in (4, 9000, 17, 33):  # 33 is not one of LABELS
            x, y, z = (int(torch.randint(0, n - 5, (), generator=generator)) for n in shape)
            sample[x : x + 5, y : y + 4, z : z + 3] = label
    return maps


def dense(maps, weights):
    """Probabilities of "none of them" and of LABELS, from one-hot volumes, [S + 1, X, Y, Z]."""
    weights = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    structures = [torch.einsum("k,kxyz->xyz", weights, (maps == label).double()) for label in LABELS]
    none = torch.einsum("k,kxyz->xyz", weights, (~torch.isin(maps, torch.tensor(LABELS))).double())
    return torch.stack([none, *structures])


@pytest.mark.parametrize("weights", [[1.0] * 7, [1e-5, 0.3, 0.0, 2.0, 1 / 3, 0.1, 5.0], [3, 1, 2, 1, 5, 1, 1]])
def test_agrees_with_one_hot_averages(weights):
    maps = moving_blocks()
    samples = LabelSamples(LABELS)
    for label_map, weight in zip(maps, weights, strict=True):
        samples.add(label_map, weight)
    expected = dense(maps, weights)
    for label, p in zip(LABELS, expected[1:], strict=True):
        torch.testing.assert_close(samples.probability(label), p, rtol=0, atol=1e-12)
    summary = samples.summary()
    torch.testing.assert_close(summary.probability, expected.max(0).values, rtol=0, atol=1e-12)
    torch.testing.assert_close(summary.entropy, torch.special.entr(expected.clamp(min=0)).sum(0), rtol=0, atol=1e-10)
    chosen = torch.tensor([0, *LABELS], dtype=torch.int32)[expected.round(decimals=12).max(0).indices]
    assert torch.equal(summary.label, chosen)  # max() takes the first of equals, as summary() does


def test_hand_counted_votes():
    samples = LabelSamples([1, 2])
    for votes in ([0, 1, 2, 1], [0, 1, 1, 2], [0, 1, 1, 0], [1, 1, 1, 0]):
        samples.add(torch.tensor(votes).view(1, 1, 4))
    assert samples.probability(1).flatten().tolist() == [0.25, 1.0, 0.75, 0.25]
    assert samples.probability(2).flatten().tolist() == [0.0, 0.0, 0.25, 0.25]
    summary = samples.summary()
    assert summary.label.flatten().tolist() == [0, 1, 1, 0]
    assert summary.probability.flatten().tolist() == [0.75, 1.0, 0.75, 0.5]
    quarter = np.log(4) / 4 + 0.75 * np.log(4 / 3)  # H(1/4)
    half = np.log(2) / 2 + 2 * np.log(4) / 4  # H(1/2, 1/4, 1/4)
    assert summary.entropy.flatten().tolist() == pytest.approx([quarter, 0, quarter, half], abs=1e-14)


def test_labels_of_three_bytes():
    samples = LabelSamples([9_182_740, 70_000], truth=torch.tensor([[[70_000, 0]]]))
    samples.add(torch.tensor([[[70_000, 9_182_740]]]), weight=3)
    samples.add(torch.tensor([[[9_182_740, 0]]]))
    assert samples.summary().label.flatten().tolist() == [70_000, 9_182_740]
    assert samples.probability(70_000).flatten().tolist() == [0.75, 0.0]
    assert samples.dice[0].tolist() == [0.0, 1.0]


def test_ties_go_to_none_and_then_to_the_first_label():
    samples = LabelSamples([5, 2])
    samples.add(torch.tensor([0, 2]).view(1, 1, 2))
    samples.add(torch.tensor([2, 5]).view(1, 1, 2))
    assert samples.summary().label.flatten().tolist() == [0, 5]


def test_unanimous_samples_are_certain_to_the_bit_under_any_weights():
    label_map = moving_blocks(1)[0]
    samples = LabelSamples(LABELS)
    for weight in (0.1, 0.7, 1e-9, 1 / 3, 0.2):  # a sum that depends on the order of its terms
        samples.add(label_map, weight)
    assert samples.summary().entropy.abs().max() == 0
    assert samples.probability(4).unique().tolist() == [0.0, 1.0]


def test_equal_weights_of_any_scale_give_the_same_probabilities():
    maps = moving_blocks(5)
    once, scaled = LabelSamples.from_maps(maps, LABELS), LabelSamples(LABELS)
    for label_map in maps:
        scaled.add(label_map, 1 / 80)
    for label in LABELS:
        torch.testing.assert_close(once.probability(label), scaled.probability(label), rtol=1e-15, atol=0)


def test_a_single_sample_is_certain():
    label_map = moving_blocks(1)[0]
    samples = LabelSamples.from_maps([label_map], LABELS)
    summary = samples.summary()
    assert torch.equal(summary.label, torch.where(label_map == 33, 0, label_map).int())
    assert (summary.probability == 1).all()
    interval = samples.volume_interval()
    assert torch.equal(interval.lower, interval.upper)


def test_a_part_of_the_volume_is_the_part_of_the_whole():
    samples = LabelSamples.from_maps(moving_blocks(), LABELS)
    for box in ((slice(0, 5), slice(3, 20), slice(7, 9)), (slice(20, 24), slice(0, 20), slice(0, 22))):
        for label in LABELS:
            assert torch.equal(samples.probability(label, box), samples.probability(label)[box])


def test_memory_is_that_of_the_boxes():
    # A block of 5×4×3 voxels in the middle that never moves takes (5 + 8)(4 + 8)(3 + 8) sums with its margin of 4.
    label_map = torch.zeros(40, 40, 40, dtype=torch.int16)
    label_map[20:25, 20:24, 20:23] = 4
    samples = LabelSamples.from_maps([label_map] * 3, LABELS)
    assert [box_shape(box) for box in samples._boxes] == [(13, 12, 11), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    assert [total.numel() for total in samples._sums] == [13 * 12 * 11, 0, 0, 0]


def test_volumes_in_cubic_millimeters():
    samples = LabelSamples([1, 2], voxel_volume=8.0)
    samples.add(torch.tensor([1, 1, 2, 0]).view(1, 2, 2), weight=3)
    samples.add(torch.tensor([1, 0, 0, 0]).view(1, 2, 2), weight=1)
    assert samples.volumes.tolist() == [[16.0, 8.0], [8.0, 0.0]]
    assert samples.weights.tolist() == [0.75, 0.25]
    interval = samples.volume_interval()
    assert interval.mean.tolist() == [14.0, 6.0]  # (3·16 + 8)/4 and 3·8/4
    assert interval.lower.tolist() == [8.0, 0.0]
    assert interval.upper.tolist() == [16.0, 8.0]
    # A third of the mass in the middle, 1/3 … 2/3 of the distribution: the light sample (0 … 1/4) is outside.
    assert samples.volume_interval(level=1 / 3).lower.tolist() == [16.0, 8.0]


def test_interval_of_80_samples_leaves_out_what_is_beyond_2_of_them():
    # Volumes 1 … 80: 2/80 = 0.025 is reached by the second, 0.975 by the 78th.
    values = torch.randperm(80, generator=torch.Generator().manual_seed(0)).double()[:, None] + 1
    quantiles = weighted_quantile(values, torch.ones(80).double(), torch.tensor([0.025, 0.975], dtype=torch.float64))
    assert quantiles.flatten().tolist() == [2.0, 78.0]


def test_weighted_quantiles_agree_with_numpy():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 9, (30, 3), generator=generator).double()
    weights = torch.rand(30, generator=generator, dtype=torch.float64)
    weights[4] = 0
    levels = torch.tensor([0.01, 0.11, 0.5, 0.93, 1.0], dtype=torch.float64)
    expected = np.quantile(values.numpy(), levels.numpy(), axis=0, weights=weights.numpy(), method="inverted_cdf")
    assert torch.equal(weighted_quantile(values, weights, levels), torch.from_numpy(expected))


def test_samples_are_scored_as_they_come():
    maps = moving_blocks()
    truth = maps[3]
    samples = LabelSamples.from_maps(maps, LABELS, truth=truth)
    expected = torch.stack([dice_per_structure(one, truth, LABELS) for one in maps])
    torch.testing.assert_close(samples.dice, expected, equal_nan=True, rtol=0, atol=0)
    assert samples.oracle == 3
    assert len(samples) == 7


def test_scores_need_a_truth():
    samples = LabelSamples.from_maps(moving_blocks(1), LABELS)
    with pytest.raises(ValueError, match="made with a truth"):
        _ = samples.dice


def test_without_samples_or_weight_there_is_no_summary():
    samples = LabelSamples(LABELS)
    for question in (samples.summary, lambda: samples.probability(4), samples.volume_interval, lambda: samples.weights):
        with pytest.raises(ValueError, match="positive total weight, got 0"):
            question()
    samples.add(torch.zeros(2, 2, 2), weight=0)
    with pytest.raises(ValueError, match="got 1 with a total of 0"):
        samples.summary()


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_impossible_weights_are_refused(weight):
    with pytest.raises(ValueError, match="finite weight of 0 or more"):
        LabelSamples(LABELS).add(torch.zeros(2, 2, 2), weight)


def test_a_refused_sample_leaves_no_trace():
    samples = LabelSamples([1])
    samples.add(torch.ones(2, 2, 2))
    for bad in (torch.full((2, 2, 2), 0.5), torch.ones(2, 2, 3), torch.ones(1, 2, 2, 2)):
        with pytest.raises(ValueError, match="expected"):
            samples.add(bad)
    assert len(samples) == 1
    assert (samples.probability(1) == 1).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="positive voxel volume in mm³, got 0"):
        LabelSamples([1], voxel_volume=0)
    with pytest.raises(ValueError, match=r"true label map of shape \[X, Y, Z\], got \(1, 2, 2, 2\)"):
        LabelSamples([1], truth=torch.zeros(1, 2, 2, 2))
    samples = LabelSamples.from_maps([torch.ones(2, 2, 2)], [1])
    with pytest.raises(ValueError, match=r"one of the labels \[1\], got 2"):
        samples.probability(2)
    with pytest.raises(ValueError, match="credible level between 0 and 1, got 95"):
        samples.volume_interval(95)


def test_the_example_in_the_documentation_runs():
    assert doctest.testmod(label_samples).failed == 0
