"""Calibration scores against hand-derived values, naive loops and SciPy."""

import itertools

import numpy as np
import pytest
import scipy.stats
import torch

from scripts.evaluation.calibration import (
    binary_entropy,
    reliability_curve,
    sparsification_curves,
    spearman_per_structure,
    voxel_error,
)


def expected_calibration_error(probability, truth, bins=10):
    return reliability_curve(probability, truth, bins).error


def area_under_sparsification_error(uncertainty, error):
    return sparsification_curves(uncertainty, error).area


def votes(voxels, samples, seed=0):
    """Random votes k of K and a truth that follows them loosely."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randint(0, samples + 1, (voxels,), generator=generator)
    truth = torch.rand(voxels, generator=generator) < (k / samples) ** 2
    return k, truth


def naive_ece(k, samples, truth, bins):
    """The paper's sum, with the bin of k / K found in integers: (m − 1)/M < k/K ≤ m/M, and 0 in the first."""
    members = [[] for _ in range(bins)]
    for count, y in zip(k.tolist(), truth.tolist(), strict=True):
        members[max(-(-count * bins // samples), 1) - 1].append((count / samples, float(y)))
    total = 0.0
    for group in members:
        if group:
            confidence, accuracy = np.mean(group, axis=0)
            total += len(group) / len(k) * abs(confidence - accuracy)
    return total


def naive_ause(order, error):
    """Decision 16 for one order of removal (most uncertain first), by loops."""
    n = len(error)
    by_error = sorted(error, reverse=True)
    gaps = []
    for i in range(1, n + 1):
        observed = sum(error[j] for j in order[n - i :]) / i
        oracle = sum(by_error[n - i :]) / i
        gaps.append(observed - oracle)
    return sum(gaps) / n


# --- expected calibration error ---


def test_hand_derived_ece():
    # Bin 1 holds 0, 0.1, 0.1: confidence 0.2/3, accuracy 1/3, gap 0.8/3, weight 3/5. Bin 3 holds 0.3: gap 0.7, weight
    # 1/5. Bin 10 holds 1.0: no gap. ECE = 0.16 + 0.14 = 0.30.
    p = torch.tensor([0.0, 0.1, 0.1, 0.3, 1.0], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 1])
    assert expected_calibration_error(p, y).item() == pytest.approx(0.30, abs=1e-15)
    curve = reliability_curve(p, y)
    assert curve.voxels.tolist() == [3, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert curve.confidence[2].item() == pytest.approx(0.3)
    assert curve.accuracy[0].item() == pytest.approx(1 / 3)
    assert curve.accuracy[1].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, 5, 80, 1200])
@pytest.mark.parametrize("bins", [10, 15])
def test_ece_agrees_with_loops_and_exact_bin_edges(samples, bins, dtype):
    k, truth = votes(500, samples)
    ece = expected_calibration_error(k.to(dtype) / samples, truth, bins)
    assert ece.item() == pytest.approx(
        naive_ece(k, samples, truth, bins), abs=1e-6 if dtype == torch.float32 else 1e-12
    )


def test_certain_and_correct_is_perfectly_calibrated():
    y = torch.tensor([0, 1, 1, 0])
    assert expected_calibration_error(y.double(), y).item() == 0


def test_certain_and_wrong_is_the_worst():
    y = torch.tensor([0, 1, 1, 0])
    assert expected_calibration_error(1 - y.double(), y).item() == 1


def test_no_voxels_have_no_score():
    nothing = torch.zeros(0, dtype=torch.float64)
    assert expected_calibration_error(nothing, nothing).isnan()
    assert area_under_sparsification_error(nothing, nothing).isnan()


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_what_is_no_probability_is_refused_with_counts(bad):
    p = torch.tensor([0.5, bad])
    with pytest.raises(ValueError, match="expected probabilities in 0 … 1, got 1 of 2 outside"):
        expected_calibration_error(p, torch.ones(2))
    with pytest.raises(ValueError, match="got 1 of 2 outside"):
        binary_entropy(p)


def test_wrong_arguments_of_ece_are_refused():
    with pytest.raises(ValueError, match=r"one shape \[N\], got \(2,\) and \(3,\)"):
        expected_calibration_error(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="at least one bin, got 0"):
        expected_calibration_error(torch.zeros(2), torch.zeros(2), bins=0)
    with pytest.raises(ValueError, match=r"float32 or float64 probabilities, got torch\.float16"):
        expected_calibration_error(torch.zeros(2, dtype=torch.float16), torch.zeros(2))


# --- area under the sparsification error ---


def test_majority_error_counts_exactly_half_as_no():
    p = torch.tensor([0.2, 0.5, 0.8, 0.5])
    assert voxel_error(p, torch.tensor([1, 1, 1, 0])).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_hand_derived_sparsification():
    # From the most certain on, the errors are 0, 1, 0, 1: means 0, 1/2, 1/3, 1/2. The oracle's are 0, 0, 1/3, 1/2.
    # The gaps 0, 1/2, 0, 0 have the mean 1/8.
    uncertainty, error = torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    curves = sparsification_curves(uncertainty, error)
    assert curves.observed.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2])
    assert curves.oracle.tolist() == pytest.approx([0, 0, 1 / 3, 1 / 2])
    assert area_under_sparsification_error(uncertainty, error).item() == pytest.approx(1 / 8)


def test_constant_uncertainty_is_as_good_as_chance():
    # Any voxel may leave first: the observed curve stays at the mean error 1/2. Oracle: 0, 0, 1/3, 1/2.
    # (4 · 1/2 − 5/6) / 4 = 7/24.
    error = torch.tensor([1.0, 0.0, 1.0, 0.0])
    assert sparsification_curves(torch.ones(4), error).observed.tolist() == [0.5] * 4
    assert area_under_sparsification_error(torch.ones(4), error).item() == pytest.approx(7 / 24)


def test_ties_are_the_mean_over_all_their_orders():
    uncertainty = torch.tensor([1.0, 0.2, 1.0, 0.2, 1.0, 0.2, 0.5])
    error = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    orders = (
        order
        for order in itertools.permutations(range(7))
        if all(uncertainty[a] >= uncertainty[b] for a, b in itertools.pairwise(order))
    )
    expected = np.mean([naive_ause(order, error.tolist()) for order in orders])
    assert area_under_sparsification_error(uncertainty, error).item() == pytest.approx(expected, abs=1e-14)


def test_ties_do_not_depend_on_voxel_order():
    k, truth = votes(300, 8)
    p = k.double() / 8
    shuffled = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    scores = [
        area_under_sparsification_error(binary_entropy(q), voxel_error(q, y)).item()
        for q, y in ((p, truth), (p.flip(0), truth.flip(0)), (p[shuffled], truth[shuffled]))
    ]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-14)


def test_distinct_uncertainties_agree_with_loops():
    generator = torch.Generator().manual_seed(0)
    uncertainty = torch.randperm(60, generator=generator).double()
    error = torch.rand(60, generator=generator, dtype=torch.float64)  # need not be binary
    order = uncertainty.argsort(descending=True).tolist()
    expected = naive_ause(order, error.tolist())
    assert area_under_sparsification_error(uncertainty, error).item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_all_correct_or_all_wrong_leaves_nothing_to_rank(error):
    uncertainty = torch.rand(20, generator=torch.Generator().manual_seed(0))
    assert area_under_sparsification_error(uncertainty, torch.full((20,), error)).item() == 0


def test_perfect_ranking_has_no_sparsification_error():
    error = (torch.rand(50, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    assert area_under_sparsification_error(error + 0.1, error).item() == 0


def test_a_single_sample_has_no_entropy_and_ranks_as_chance():
    y_sample, truth = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1])
    error = voxel_error(y_sample, truth)  # 1, 0, 0, 1: as in the constant case
    assert area_under_sparsification_error(binary_entropy(y_sample), error).item() == pytest.approx(7 / 24)


def test_wrong_arguments_of_ause_are_refused():
    with pytest.raises(ValueError, match=r"one shape \[N\], got \(2,\) and \(3,\)"):
        sparsification_curves(torch.zeros(2), torch.zeros(3))
    with pytest.raises(ValueError, match="expected finite uncertainty, got 1 values of 2"):
        sparsification_curves(torch.tensor([0.0, torch.nan]), torch.zeros(2))


# --- entropy ---


def test_entropy_of_a_fair_coin_is_ln_2_and_certainty_has_none():
    h = binary_entropy(torch.tensor([0.0, 0.5, 1.0, 0.25]))
    # H(1/4) = (1/4) ln 4 + (3/4) ln(4/3)
    expected = [0, np.log(2), 0, np.log(4) / 4 + 0.75 * np.log(4 / 3)]
    assert h.tolist() == pytest.approx(expected, abs=1e-14)


def test_binary_entropy_agrees_with_scipy():
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = scipy.stats.entropy(torch.stack([p, 1 - p]).numpy())
    torch.testing.assert_close(binary_entropy(p), torch.from_numpy(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_votes_for_and_against_tie_exactly(dtype):
    for samples in (3, 5, 7, 25, 64, 80, 100, 128, 1000, 1200):
        p = torch.arange(samples + 1, dtype=dtype) / samples
        h = binary_entropy(p)
        assert torch.equal(h, h.flip(0)), samples


# --- Spearman ---


def test_monotonic_relations_have_rank_correlation_one():
    entropy = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [9.0, 9.0]])
    dice = torch.stack([entropy[:, 0] ** 3, -(entropy[:, 0] ** 3)], dim=1)
    assert spearman_per_structure(entropy, dice).tolist() == pytest.approx([1.0, -1.0])


def test_hand_derived_spearman_with_ties():
    # Ranks 1, 2.5, 2.5, 4 and 1, 2, 3, 4, centered: −1.5, 0, 0, 1.5 and −1.5, −0.5, 0.5, 1.5.
    # r = 4.5 / √(4.5 · 5) = √0.9.
    entropy, dice = torch.tensor([[1.0], [2.0], [2.0], [3.0]]), torch.tensor([[0.1], [0.2], [0.3], [0.4]])
    assert spearman_per_structure(entropy, dice).item() == pytest.approx(0.9**0.5, abs=1e-14)


def test_spearman_agrees_with_scipy_with_ties_and_absent_structures():
    generator = torch.Generator().manual_seed(0)
    entropy = torch.randint(0, 6, (15, 4), generator=generator).double()
    dice = torch.rand(15, 4, generator=generator, dtype=torch.float64)
    entropy[3, 0] = dice[7, 0] = dice[2, 1] = torch.nan
    expected = [
        scipy.stats.spearmanr(entropy[:, s], dice[:, s], nan_policy="omit").statistic for s in range(entropy.shape[1])
    ]
    assert spearman_per_structure(entropy, dice).tolist() == pytest.approx(expected, abs=1e-12)


def test_constant_entropy_and_two_pairs_have_no_rank_correlation():
    dice = torch.tensor([[0.1], [0.5], [0.3]])
    assert spearman_per_structure(torch.ones(3, 1), dice).isnan().all()
    assert spearman_per_structure(torch.full((3, 1), torch.nan), dice).isnan().all()
    assert spearman_per_structure(torch.tensor([[1.0], [2.0]]), dice[:2]).isnan().all()


def test_mismatched_tables_are_refused():
    with pytest.raises(ValueError, match=r"one shape \[P, S\], got \(3, 2\) and \(3,\)"):
        spearman_per_structure(torch.zeros(3, 2), torch.zeros(3))
