"""One pair: known answers, agreement with all samples at once, no dependence on chunks."""

import math

import pytest
import torch
from monai.data import MetaTensor

from scripts.evaluation.ignite_metrics import AUSE, ECE, LabelEntropy, OracleDice
from scripts.evaluation.pair_report import LabeledPair, evaluate_fields, evaluate_pair
from scripts.evaluation.pair_result import CURVES, PAIR_SCORES, STRUCTURE_SCORES
from scripts.evaluation.ribbon import label_ribbons
from scripts.inference.proposals import sample_posterior
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.folds import fold_percentage
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target
from scripts.registration.warp import warp_labels
from tests.evaluation.brains import LABELS, SHAPE, SHIFT, constant_field, proposal, shifted_pair

FEW = {"num_proposals": 40, "num_samples": 24}
SECONDS = {"seconds_network", "seconds_proposals", "seconds_evaluation"}


@pytest.fixture(scope="module")
def target():
    return Target(NCCLikelihood(window=5))


def scores(result, name):
    return torch.tensor(result.structures[name], dtype=torch.float64)


def close(a, b, tolerance):
    """Compare two results but for the time that they took."""
    assert (a.fixed, a.moving, a.labels) == (b.fixed, b.moving, b.labels)
    for name in STRUCTURE_SCORES:
        torch.testing.assert_close(scores(a, name), scores(b, name), rtol=0, atol=tolerance, equal_nan=True)
    for name in set(PAIR_SCORES) - SECONDS:
        assert a.pair[name] == pytest.approx(b.pair[name], abs=tolerance, rel=1e-5, nan_ok=True), name
    for name in CURVES:
        assert a.curves[name] == pytest.approx(b.curves[name], abs=10 * tolerance, rel=1e-5), name


class TestKnownAnswer:
    def test_sure_and_right(self, target):
        result = evaluate_pair(proposal(SHIFT, std=0.02), target, shifted_pair(), LABELS, **FEW)
        for name in ("dice_mu", "dice_mean", "dice_oracle"):
            assert result.structures[name] == [1.0, 1.0]
            assert result.pair[name] == 1.0
        for name in ("ece", "ause_label", "label_entropy", "ause_displacement"):
            assert result.structures[name] == [0.0, 0.0]
        assert result.pair["fold_mu"] == result.pair["fold_mean"] == result.pair["fold_oracle"] == 0
        assert result.pair["ncc_after"] > 0.98
        assert result.pair["ncc_before"] < 0.2
        assert 0 < result.pair["displacement_variance"] < 0.02**2
        assert result.curves["reliability_voxels"][1:-1] == [0.0] * 8
        assert result.curves["reliability_claimed"] == result.curves["reliability_true"]

    def test_sure_and_wrong(self, target):
        result = evaluate_pair(proposal(0, std=0.02), target, shifted_pair(), LABELS, **FEW)
        # Boxes of 6 voxels along the axis, 2 of them missed: Dice = 2 * 4 / 12.
        assert result.structures["dice_mean"] == pytest.approx([2 / 3, 2 / 3])
        assert result.structures["label_entropy"] == [0.0, 0.0]
        # Each voxel claims certainty: the calibration error is the share of wrong voxels, and no voxel leaves first.
        assert result.structures["ece"] == pytest.approx([result.curves["sparsification_label"][0]] * 2, abs=0.02)
        assert min(result.structures["ause_label"]) > 0.05

    def test_weights_find_the_right_shift(self, target):
        result = evaluate_pair(proposal(0, 0.05, wide=2.0), target, shifted_pair(), LABELS, temperature=3.0, **FEW)
        assert result.pair["dice_oracle"] > 0.95
        assert result.pair["dice_mean"] > result.pair["dice_mu"] + 0.1
        assert result.pair["ess"] < 20
        assert result.pair["unique"] < result.pair["samples"] == 24
        assert 1 / 40 < result.pair["max_weight"] <= 1


def test_agrees_with_all_samples_at_once(target):
    pair, gaussian = shifted_pair(voxel_mm=(1.0, 2.0, 3.0)), proposal(1.0, 1.5, wide=1.0)
    result = evaluate_pair(gaussian, target, pair, LABELS, temperature=1.0, seed=5, **FEW)
    (images,) = target.prepare(pair.moving, pair.fixed)
    posterior = sample_posterior(gaussian, target, images, temperature=1.0, seed=5, **FEW)
    ddf = target.displacement(gaussian.sample(indices=posterior.resampled.tolist(), seed=5)[:, 0], SHAPE)  # [24, ...]
    maps = warp_labels(pair.moving_label, ddf)[:, 0]
    truth = pair.fixed_label[0]
    for name, metric in (("ece", ECE), ("ause_label", AUSE), ("label_entropy", LabelEntropy)):
        expected = metric(LABELS, reduction="mean_batch")
        expected([maps], [truth])
        torch.testing.assert_close(scores(result, name), expected.aggregate(), rtol=0, atol=1e-9)
    oracle = OracleDice(LABELS, reduction="mean_batch")
    oracle([maps], [truth])
    torch.testing.assert_close(scores(result, "dice_oracle"), oracle.aggregate())
    best = int(dice_per_structure(maps, truth[0], LABELS).mean(1).argmax())
    assert result.pair["fold_oracle"] == float(fold_percentage(ddf[best : best + 1])) > 0
    mean = ddf.mean(0, keepdim=True)
    expected_dice = dice_per_structure(warp_labels(pair.moving_label, mean)[0, 0], truth[0], LABELS)
    torch.testing.assert_close(scores(result, "dice_mean"), expected_dice)
    variance = ddf.double().var(0) * torch.tensor([1.0, 4.0, 9.0]).view(3, 1, 1, 1)
    assert result.pair["displacement_variance_total"] == pytest.approx(float(variance.sum(0)[truth[0] > 0].mean()))
    assert result.pair["displacement_variance"] == pytest.approx(result.pair["displacement_variance_total"] / 3)
    for i, ribbon in enumerate(label_ribbons(truth[0], LABELS)):
        expected_spread = float(ribbon.select(variance.mean(0)).mean())
        assert result.structures["displacement_variance"][i] == pytest.approx(expected_spread)
    assert (result.pair["ess"], result.pair["khat"]) == pytest.approx((posterior.ess, posterior.khat))


def test_sparsification_curves_are_those_of_the_area(target):
    result = evaluate_pair(proposal(1.0, 0.6, wide=1.0), target, shifted_pair(), LABELS, **FEW)
    curves = {name: torch.tensor(result.curves[f"sparsification_{name}"]) for name in ("label", "oracle")}
    area = float((curves["label"] - curves["oracle"]).mean())
    assert area == pytest.approx(float(scores(result, "ause_label").mean()), abs=3e-3)


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks_do_not_matter(target, chunk):
    pair, gaussian = shifted_pair(), proposal(1.0, 0.3, wide=1.0)
    whole = evaluate_pair(gaussian, target, pair, LABELS, chunk=64, **FEW)
    close(evaluate_pair(gaussian, target, pair, LABELS, chunk=chunk, **FEW), whole, 1e-6)


def test_absent_structures_have_no_scores(target):
    result = evaluate_pair(proposal(SHIFT, 0.02), target, shifted_pair(), (*LABELS, 7), **FEW)
    assert all(math.isnan(result.structures[name][2]) for name in STRUCTURE_SCORES)
    close(result, evaluate_pair(proposal(SHIFT, 0.02), target, shifted_pair(), (*LABELS, 7), **FEW), 0)
    assert result.pair["dice_mean"] == 1.0


class TestEnsemble:
    def test_three_members(self, target):
        shifts = (0, SHIFT, SHIFT)
        result = evaluate_fields([constant_field(s) for s in shifts], target, shifted_pair(voxel_mm=(2, 2, 2)), LABELS)
        assert result.structures["dice_oracle"] == [1.0, 1.0]
        assert result.structures["dice_mu"] == result.structures["dice_mean"]
        # 0, 2, 2 voxels of 2 mm: variance 4/3 voxels² along one axis of three.
        assert result.pair["displacement_variance_total"] == pytest.approx(4 / 3 * 4)
        assert result.structures["displacement_variance"] == pytest.approx([16 / 9] * 2)
        # Everywhere the majority is right, and where one member is wrong the entropy says so.
        assert result.structures["ause_label"] == [0.0, 0.0]
        assert min(result.structures["label_entropy"]) > 0
        pair = result.pair
        assert (pair["ess"], pair["unique"], pair["samples"]) == (3, 3, 3)
        assert pair["max_weight"] == 1 / 3
        assert math.isnan(pair["khat"])

    def test_is_the_posterior_without_weights(self, target):
        gaussian, pair = proposal(1.0, 0.3, wide=1.0), shifted_pair()
        sampled = evaluate_pair(gaussian, target, pair, LABELS, num_proposals=1, num_samples=1)
        fields = evaluate_fields([gaussian.sample(1)[:, 0][0][None]], target, pair, LABELS)
        for name in set(STRUCTURE_SCORES) - {"dice_mu"}:
            torch.testing.assert_close(scores(sampled, name), scores(fields, name))
        assert fields.pair["displacement_variance"] == 0


class TestBatch:
    def batch(self):
        pair = shifted_pair()
        affine = torch.diag(torch.tensor([-2.0, 3.0, 4.0, 1.0]))
        return {
            "fixed": MetaTensor(pair.fixed, affine=affine),
            "moving": pair.moving,
            "fixed_label": pair.fixed_label,
            "moving_label": pair.moving_label,
            "fixed_name": ["a"],
            "moving_name": ["b"],
        }

    def test_names_and_voxel_sizes(self):
        pair = LabeledPair.from_batch(self.batch())
        assert pair.names == ("a", "b")
        assert pair.voxel_mm == (2.0, 3.0, 4.0)
        assert type(pair.fixed) is torch.Tensor

    def test_errors(self):
        batch = self.batch()
        with pytest.raises(ValueError, match="one pair at a time"):
            LabeledPair.from_batch({**batch, "fixed": torch.zeros(2, 1, *SHAPE)})
        del batch["moving_label"]
        with pytest.raises(ValueError, match=r"'a', 'b'.* has no moving_label"):
            LabeledPair.from_batch(batch)
