import pytest
import torch

from scripts.inference import refine
from scripts.inference.objectives import MeanObjective, SIRObjective
from scripts.inference.observations import Observations
from scripts.inference.refine import refine_all, refine_mean, with_price_on_folds
from scripts.networks import ProposalLayout
from scripts.posterior.folds import fold_percentage
from scripts.registration.local_correlation import MSELikelihood, NCCLikelihood
from scripts.registration.mutual_information import MutualInformationLikelihood
from scripts.registration.prior import DiffusionPrior, FoldPrior
from scripts.registration.self_similarity import MINDLikelihood
from scripts.registration.spline import upsample
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from scripts.registration.warp import warp
from tests.registration.conftest import brain_like


@pytest.fixture
def case():
    """A brain, and the same brain under a smooth field of about a voxel; a proposal that knows nothing of it."""
    torch.manual_seed(0)
    moving = brain_like(16, 16, 16, dtype=torch.float32)
    truth = 0.8 * upsample(torch.randn(1, 3, 4, 4, 4), 2)
    fixed = warp(moving, upsample(truth, 2))
    layout = ProposalLayout("voxel", 2, initial_std=0.05)
    target = Target(NCCLikelihood(5, 0.5), DiffusionPrior(0.1), DiffusionPrior(0.1), DisplacementTransform())
    objective = SIRObjective(target, layout, num_proposals=4, num_resampled=2)
    return torch.zeros(1, layout.out_channels, 8, 8, 8), objective, target.prepare(moving, fixed)[0], truth


def test_it_finds_the_field_and_says_by_how_much(case):
    raw, objective, pair, truth = case
    start, target = raw[:, :3], objective.target
    refined = refine_mean(start, target, pair, 40)
    assert (refined.mean - truth).square().mean() < 0.5 * truth.square().mean()
    torch.testing.assert_close(refined.before, target(pair, start))
    torch.testing.assert_close(refined.after, target(pair, refined.mean))
    assert refined.after > refined.before


def test_fields_climb_each_for_itself(case):
    raw, objective, pair, truth = case
    starts = torch.cat([raw[:, :3], 0.5 * truth])
    together = refine_mean(starts, objective.target, pair, 5)
    alone = [refine_mean(start, objective.target, pair, 5) for start in starts.split(1)]
    torch.testing.assert_close(together.mean, torch.cat([one.mean for one in alone]), rtol=0, atol=1e-4)
    torch.testing.assert_close(together.after, torch.cat([one.after for one in alone]), rtol=1e-5, atol=0)


def test_all_parts_move_if_asked_for(case):
    raw, objective, pair, _ = case
    steps = []
    refined = refine_all(raw, objective, pair, 3, seed=5, progress=steps.append)
    assert (refined.raw[:, 3:] != raw[:, 3:]).any()
    assert refined.after > refined.before
    assert steps == [1, 2, 3]
    assert torch.equal(refine_all(raw, objective, pair, 3, seed=5).raw, refined.raw)
    assert not torch.equal(refine_all(raw, objective, pair, 3, seed=6).raw, refined.raw)
    assert bool(objective.scale.value.isnan())  # no σ_α was taken in


def test_steps_that_make_it_worse_are_taken_back(case, monkeypatch):
    _, objective, pair, truth = case
    monkeypatch.setattr(refine, "LEARNING_RATE", 50.0)
    refined = refine_mean(truth, objective.target, pair, 2)
    assert torch.equal(refined.mean, truth)
    assert refined.after == refined.before


def test_works_where_gradients_are_off(case):
    raw, objective, pair, _ = case
    with torch.no_grad():
        assert refine_all(raw, objective, pair, 1).raw.shape == raw.shape
        assert refine_mean(raw[:, :3], objective.target, pair, 1).after > 0


def test_a_mask_leaves_the_rest_to_the_prior(case):
    raw, objective, pair, _ = case
    masked = pair._replace(mask=torch.zeros_like(pair.moving), arranged=[])
    refined = refine_mean(raw[:, :3], objective.target, masked, 5)
    assert torch.equal(refined.mean, raw[:, :3])  # nothing to gain


def test_one_step_by_hand(case, monkeypatch):
    """Adam's first goes the whole rate in every coordinate, along the sign of the gradient."""
    raw, objective, pair, _ = case
    mean, priced = raw[:, :3].clone().requires_grad_(), with_price_on_folds(objective.target)
    (priced(pair, mean) + priced.log_mean_prior(mean)).sum().backward()
    monkeypatch.setattr(refine, "LEARNING_RATE", 0.01)
    step = refine_mean(raw[:, :3], objective.target, pair, 1).mean
    clear = mean.grad.abs() > 1e-3
    torch.testing.assert_close(step[clear], 0.01 * mean.grad.sign()[clear], rtol=1e-2, atol=0)


def test_what_the_pair_shares_is_computed_once(case, monkeypatch):
    raw, objective, pair, _ = case
    monkeypatch.setattr(NCCLikelihood, "precompute", lambda *_: pytest.fail("the fixed image's statistics are known"))
    refine_mean(raw[:, :3], objective.target, pair, 2)
    refine_all(raw, objective, pair, 2)


def test_folds_have_a_price_and_nothing_else_has(case):
    raw, objective, pair, _ = case
    target = objective.target
    priced = with_price_on_folds(target)
    ramp = torch.zeros(1, 3, 8, 8, 8)
    ramp[0, 0] = torch.arange(8.0)[:, None, None]
    for slope, folds in ((1.5, False), (-1.8, False), (-2.5, True)):  # φ stretches x by 1 + slope / 2
        mean = slope * ramp
        assert float(priced(pair, mean)) == pytest.approx(float(target(pair, mean)))  # the samples' own
        price = float(priced.log_mean_prior(mean))
        assert price == pytest.approx(-100 * 7**3 * 0.3**2 if folds else 0, rel=1e-4)  # 1000 times a weight of 0.1
    velocity = with_price_on_folds(
        Target(NCCLikelihood(5), DiffusionPrior(0.1), DiffusionPrior(0.1), VelocityTransform())
    )
    assert velocity.mean_prior is None
    # A start that is folded comes out unfolded, without the field being held back elsewhere.
    start = raw[:, :3].clone()
    start[:, 0, 3] = 5.0
    refined = refine_mean(start, target, pair, 40).mean
    folded = [float(fold_percentage(upsample(field, 2))) for field in (start, refined)]
    assert folded[0] > 1
    assert folded[1] < 0.1 * folded[0]


@pytest.mark.parametrize(("prior", "stiffness"), [(DiffusionPrior(3.0), 3.0), (FoldPrior(8.0), 0.0)])
def test_the_price_goes_with_the_stiffness_of_the_prior(prior, stiffness):
    assert with_price_on_folds(Target(NCCLikelihood(5), prior)).mean_prior.weight == 1000 * stiffness


def test_a_deterministic_field_can_be_refined(case):
    raw, objective, pair, _ = case
    alone = MeanObjective(objective.target, ProposalLayout(rank=0, deterministic=True))
    refined = refine_all(raw[:, :3], alone, pair, 5)
    assert refined.after > refined.before
    torch.testing.assert_close(refined.raw, refine_mean(raw[:, :3], objective.target, pair, 5).mean)


@pytest.mark.parametrize(
    ("likelihood", "weight"),
    [
        (NCCLikelihood(5), 125.0),
        (NCCLikelihood(9, 0.25), 4 * 729.0),
        (MSELikelihood(0.05), 1.0),  # each voxel is an observation; its σ is no scale of a correlation
        (MINDLikelihood(), 125.0),
        (MutualInformationLikelihood(weight=2.0), 2.0),
    ],
)
def test_how_often_a_number_of_the_expert_counts(likelihood, weight):
    assert likelihood.evidence_weight == weight


def test_what_is_known_is_climbed_together_with_the_images(case):
    """The field is known at one place to be elsewhere than the images say: there it goes, and little else does."""
    raw, objective, pair, _ = case
    one = torch.full((1,), 3.0, dtype=torch.float64)
    known = Observations(one[:, None].repeat(1, 3), torch.tensor([[1.0, 0, 0]]).double(), one - 1.0, one / 30)

    def evidence(z):
        return -0.5 * ((known.values - known.apply(z)[0]) / known.std).square().sum()

    alone, both = (refine_mean(raw[:, :3], objective.target, pair, 40, evidence=e).mean for e in (None, evidence))
    assert float(known.apply(both)) == pytest.approx(2.0, abs=0.15)
    assert abs(float(known.apply(alone)) - 2.0) > 0.5
    far = (both - alone)[..., 6:].abs().mean()
    assert far < 0.2 * (both - alone)[..., 2:5, 2:5, 2:5].abs().mean()
