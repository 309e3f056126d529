"""One pair: known answers, agreement with all samples at once, no dependence on chunks."""

import math

import pytest
import torch

from scripts.core.errors import DataError
from scripts.evaluation.ignite_metrics import AUSE, ECE
from scripts.evaluation.pair_report import LabeledPair, evaluate_pair, pair_seed, score
from scripts.evaluation.pair_result import CURVES, PAIR_SCORES, STRUCTURE_SCORES
from scripts.evaluation.ribbon import label_ribbons
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.folds import fold_percentage
from scripts.posterior.posterior_file import load, save
from scripts.registration.local_correlation import local_ncc
from scripts.registration.warp import warp, warp_labels
from tests.evaluation.brains import (
    LABELS,
    SHAPE,
    SHIFT,
    ensemble_of,
    label_entropies,
    sampler_of,
    shifted_item,
    shifted_pair,
)

SECONDS = {"seconds_network", "seconds_proposals", "seconds_evaluation"}


def scores(result, name):
    return torch.tensor(result.structures[name], dtype=torch.float64)


def close(a, b, tolerance, without=SECONDS):
    """Compare two results but for the time that they took."""
    assert (a.fixed, a.moving, a.labels) == (b.fixed, b.moving, b.labels)
    for name in STRUCTURE_SCORES:
        torch.testing.assert_close(scores(a, name), scores(b, name), rtol=0, atol=tolerance, equal_nan=True)
    for name in set(PAIR_SCORES) - without:
        assert a.pair[name] == pytest.approx(b.pair[name], abs=tolerance, rel=1e-5, nan_ok=True), name
    for name in CURVES:
        assert a.curves[name] == pytest.approx(b.curves[name], abs=10 * tolerance, rel=1e-5), name


class TestKnownAnswer:
    def test_sure_and_right(self):
        result = evaluate_pair(sampler_of(SHIFT, std=0.02), shifted_pair(), LABELS)
        assert set(result.pair) == set(PAIR_SCORES)
        for name in ("dice_mu", "dice_mean", "dice_oracle"):
            assert result.structures[name] == [1.0, 1.0]
            assert result.pair[name] == 1.0
        for name in ("ece", "ause_label", "label_entropy", "ause_displacement"):
            assert result.structures[name] == [0.0, 0.0]
        assert result.pair["fold_mu"] == result.pair["fold_mean"] == result.pair["fold_oracle"] == 0
        assert result.pair["ncc_after"] > 0.98
        assert result.pair["ncc_before"] < 0.3
        assert 0 < result.pair["displacement_variance"] < 0.02**2
        assert result.curves["reliability_voxels"][1:-1] == [0.0] * 8
        assert result.curves["reliability_claimed"] == result.curves["reliability_true"]

    def test_sure_and_wrong(self):
        result = evaluate_pair(sampler_of(0, std=0.02), shifted_pair(), LABELS)
        # Boxes of 6 voxels along the axis, 2 of them missed: Dice = 2 * 4 / 12.
        assert result.structures["dice_mean"] == pytest.approx([2 / 3, 2 / 3])
        assert result.pair["dice_before"] == pytest.approx(2 / 3)
        assert result.structures["label_entropy"] == [0.0, 0.0]
        # Each voxel claims certainty: the calibration error is the share of wrong voxels, and no voxel leaves first.
        assert result.structures["ece"] == pytest.approx([result.curves["sparsification_label"][0]] * 2, abs=0.02)
        assert min(result.structures["ause_label"]) > 0.05

    def test_weights_find_the_right_shift(self):
        result = evaluate_pair(sampler_of(0, 0.05, wide=2.0, temperature=3.0), shifted_pair(), LABELS)
        assert result.pair["dice_oracle"] > 0.95
        assert result.pair["dice_mean"] > result.pair["dice_mu"] + 0.1
        assert result.pair["ess"] < 20
        assert result.pair["unique"] < result.pair["samples"] == 24
        assert 1 / 40 < result.pair["max_weight"] <= 1


def test_agrees_with_all_samples_at_once():
    pair = shifted_pair(edges=(1.0, 2.0, 3.0))
    sampler = sampler_of(1.0, 1.5, wide=1.0, temperature=1.0, seed=5)
    result = evaluate_pair(sampler, pair, LABELS)
    posterior = sampler.posterior(pair.images)
    # In voxels of the grid that both scans have; none of this is about files.
    fields = list(posterior.control_points(posterior.draws.resampled.tolist()))
    ddf = sampler.model.target.transform(torch.stack(fields), SHAPE)  # [24, ...]
    moving_label, truth = pair.moving_label[None, None], pair.fixed_label[None]
    maps = warp_labels(moving_label, ddf)[:, 0]
    for name, metric in (("ece", ECE), ("ause_label", AUSE)):
        expected = metric(LABELS, reduction="mean_batch")
        expected([maps], [truth])
        torch.testing.assert_close(scores(result, name), expected.aggregate(), rtol=0, atol=1e-9)
    ribbons = label_ribbons(truth[0], LABELS)
    entropies = label_entropies(maps, truth[0], LABELS)
    torch.testing.assert_close(scores(result, "label_entropy"), entropies, rtol=0, atol=1e-9)
    dice = torch.stack([dice_per_structure(one, truth[0], LABELS) for one in maps])  # [24, S]
    best = int(dice.mean(1).argmax())
    torch.testing.assert_close(scores(result, "dice_oracle"), dice[best])
    assert result.pair["fold_oracle"] == float(fold_percentage(ddf[best : best + 1])) > 0
    mean = ddf.mean(0, keepdim=True)
    expected_dice = dice_per_structure(warp_labels(moving_label, mean)[0, 0], truth[0], LABELS)
    torch.testing.assert_close(scores(result, "dice_mean"), expected_dice)
    variance = ddf.double().var(0) * torch.tensor([1.0, 4.0, 9.0]).view(3, 1, 1, 1)
    assert result.pair["displacement_variance_total"] == pytest.approx(float(variance.sum(0)[truth[0] > 0].mean()))
    assert result.pair["displacement_variance"] == pytest.approx(result.pair["displacement_variance_total"] / 3)
    for i, ribbon in enumerate(ribbons):
        expected_spread = float(ribbon.select(variance.mean(0)).mean())
        assert result.structures["displacement_variance"][i] == pytest.approx(expected_spread)
    draws, images = posterior.draws, pair.images
    assert (result.pair["ess"], result.pair["khat"]) == pytest.approx((draws.ess, draws.khat))
    ncc = local_ncc(images.fixed, warp(images.moving, mean), 5)[images.fixed > 0]
    assert result.pair["ncc_after"] == pytest.approx(float(ncc.mean()), rel=1e-4)


def test_sparsification_curves_are_those_of_the_area():
    result = evaluate_pair(sampler_of(1.0, 0.6, wide=1.0), shifted_pair(), LABELS)
    curves = {name: torch.tensor(result.curves[f"sparsification_{name}"]) for name in ("label", "oracle")}
    area = float((curves["label"] - curves["oracle"]).mean())
    assert area == pytest.approx(float(scores(result, "ause_label").mean()), abs=3e-3)


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_do_not_matter(chunk):
    pair = shifted_pair()
    whole, parts = (
        evaluate_pair(sampler_of(1.0, 0.3, wide=1.0, chunk=size), pair, LABELS) for size in (64, chunk)
    )  # fmt: skip
    close(parts, whole, 1e-6)


def test_absent_structures_have_no_scores():
    results = [evaluate_pair(sampler_of(SHIFT, 0.02), shifted_pair(), (*LABELS, 7)) for _ in range(2)]
    assert all(math.isnan(results[0].structures[name][2]) for name in STRUCTURE_SCORES)
    close(*results, 0)
    assert results[0].pair["dice_mean"] == 1.0


def test_a_posterior_from_a_file_has_the_same_scores(tmp_path):
    pair, sampler = shifted_pair(), sampler_of(1.0, 0.3, wide=1.0)
    posterior = sampler.posterior(pair.images)
    save(posterior, tmp_path / "posterior.pt")
    results = [score(one, pair, LABELS) for one in (posterior, load(tmp_path / "posterior.pt"))]
    close(*results, 0)


class TestEnsemble:
    def test_three_members(self):
        result = evaluate_pair(ensemble_of(0, SHIFT, SHIFT, num_samples=3), shifted_pair(edges=(2, 2, 2)), LABELS)
        assert result.structures["dice_oracle"] == [1.0, 1.0]
        assert result.structures["dice_mu"] == result.structures["dice_mean"]
        # 0, 2, 2 voxels of 2 mm: variance 4/3 voxels² along one axis of three.
        assert result.pair["displacement_variance_total"] == pytest.approx(4 / 3 * 4)
        assert result.structures["displacement_variance"] == pytest.approx([16 / 9] * 2)
        # Everywhere the majority is right, and where one member is wrong the entropy says so.
        assert result.structures["ause_label"] == [0.0, 0.0]
        assert min(result.structures["label_entropy"]) > 0
        pair = result.pair
        assert (pair["ess"], pair["unique"], pair["samples"]) == (pytest.approx(3), 3, 3)
        assert pair["max_weight"] == pytest.approx(1 / 3)
        assert math.isnan(pair["khat"])

    def test_each_member_counts_as_often(self):
        pair, members = shifted_pair(), (0, SHIFT, SHIFT)
        once, often = (evaluate_pair(ensemble_of(*members, num_samples=n), pair, LABELS) for n in (3, 24))
        assert (often.pair["samples"], often.pair["unique"]) == (24, 3)
        assert often.structures["ece"] == pytest.approx(once.structures["ece"])
        assert often.structures["dice_mean"] == once.structures["dice_mean"]
        # The variance of 24 fields, of which 8 are alike each: 24/23 of the one over the members, not 3/2.
        expected = once.pair["displacement_variance"] * 2 / 3 * 24 / 23
        assert often.pair["displacement_variance"] == pytest.approx(expected)

    def test_weighed_members(self):
        result = evaluate_pair(ensemble_of(0, SHIFT, temperature=9.0), shifted_pair(), LABELS)
        assert result.pair["max_weight"] > 0.99
        assert result.structures["dice_mean"] == [1.0, 1.0]

    def test_one_field(self):
        result = evaluate_pair(ensemble_of(SHIFT), shifted_pair(), LABELS)
        assert (result.pair["ess"], result.pair["unique"], result.pair["displacement_variance"]) == (1, 1, 0)
        assert result.structures["dice_mu"] == result.structures["dice_oracle"] == [1.0, 1.0]


class TestItem:
    def test_names_and_voxel_sizes(self):
        pair = LabeledPair.of_item(shifted_item(edges=(2.0, 3.0, 4.0)))
        assert pair.names == ("a", "b")
        assert pair.images.space.fixed.spacing.tolist() == [2.0, 3.0, 4.0]
        assert type(pair.images.fixed) is type(pair.fixed_label) is torch.Tensor

    def test_a_missing_label_map(self):
        item = shifted_item()
        del item["moving_label"]
        with pytest.raises(DataError, match=r"'a', 'b'.* has no moving_label"):
            LabeledPair.of_item(item)

    def test_each_pair_has_a_seed_of_its_own(self):
        seeds = {pair_seed(names, seed) for names in (("a", "b"), ("b", "a"), ("ab", "")) for seed in (0, 1)}
        assert len(seeds) == 6
        assert all(0 <= seed < 2**63 for seed in seeds)
