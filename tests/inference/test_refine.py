import pytest
import torch
from torch import nn

from scripts.inference.objectives import MeanObjective, SIRObjective, VariationalObjective
from scripts.inference.observations import Observations
from scripts.inference.refine import Refinement, evidence_weight, refine, with_price_on_folds
from scripts.networks import ProposalLayout
from scripts.posterior.folds import fold_percentage
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
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
    return torch.zeros(1, layout.out_channels, 8, 8, 8), objective, moving, fixed, truth


def test_it_finds_the_field_and_says_by_how_much(case):
    raw, objective, moving, fixed, truth = case
    refined = refine(raw, objective, moving, fixed, 40)
    error = (refined.raw[:, :3] - truth).square().mean()
    assert error < 0.5 * truth.square().mean()
    pair = objective.target.prepare(moving, fixed)[0]
    assert refined.before == pytest.approx(float(objective.target(pair, raw[:, :3])))
    assert refined.after == pytest.approx(float(objective.target(pair, refined.raw[:, :3])))
    assert refined.after > refined.before
    assert torch.equal(refined.raw[:, 3:], raw[:, 3:])  # L and R were not asked for


def test_all_parts_move_if_asked_for(case):
    raw, objective, moving, fixed, _ = case
    refined = refine(raw, objective, moving, fixed, 3, parts="all")
    assert (refined.raw[:, 3:] != raw[:, 3:]).any()


@pytest.mark.parametrize("parts", ["mean", "all"])
def test_same_seed_same_result_and_the_objective_is_left_alone(case, parts):
    raw, objective, moving, fixed, _ = case
    steps = []
    first = refine(raw, objective, moving, fixed, 3, parts=parts, seed=5, progress=steps.append)
    again = refine(raw, objective, moving, fixed, 3, parts=parts, seed=5)
    assert torch.equal(first.raw, again.raw)
    other = refine(raw, objective, moving, fixed, 3, parts=parts, seed=6)
    assert torch.equal(first.raw, other.raw) == (parts == "mean")  # the mean alone needs no noise
    assert steps == [1, 2, 3]
    assert bool(objective.scale.value.isnan())  # no σ_α was taken in


def test_steps_that_make_it_worse_are_taken_back(case):
    raw, objective, moving, fixed, truth = case
    good = raw.clone()
    good[:, :3] = truth
    refined = refine(good, objective, moving, fixed, 2, learning_rate=50.0)
    assert torch.equal(refined.raw, good)
    assert refined.after == refined.before


def test_works_where_gradients_are_off_and_refuses_unknown_parts(case):
    raw, objective, moving, fixed, _ = case
    with torch.no_grad():
        assert refine(raw, objective, moving, fixed, 1).raw.shape == raw.shape
    with pytest.raises(ValueError, match="parts"):
        refine(raw, objective, moving, fixed, 1, parts="R")


def test_a_mask_leaves_the_rest_to_the_prior(case):
    raw, objective, moving, fixed, _ = case
    mask = torch.zeros_like(fixed)
    assert isinstance(objective, nn.Module)
    refined = refine(raw, objective, moving, fixed, 5, mask=mask)
    assert torch.equal(refined.raw, raw)  # nothing to gain


def test_the_mean_alone_climbs_its_own_log_posterior_whatever_the_objective(case):
    raw, objective, moving, fixed, _ = case
    target, layout = objective.target, objective.layout
    refined = [
        refine(raw, kind, moving, fixed, 5).raw
        for kind in (objective, VariationalObjective(target, layout), MeanObjective(target, layout))
    ]
    assert torch.equal(refined[0], refined[1])
    assert torch.equal(refined[0], refined[2])
    # One step by hand: Adam's first goes the whole rate in every coordinate, along the sign of the gradient.
    mean = raw[:, :3].clone().requires_grad_()
    pair, priced = target.prepare(moving, fixed)[0], with_price_on_folds(target)
    (priced(pair, mean) + priced.log_mean_prior(mean)).sum().backward()
    step = refine(raw, objective, moving, fixed, 1, learning_rate=0.01).raw[:, :3]
    clear = mean.grad.abs() > 1e-3
    torch.testing.assert_close(step[clear], 0.01 * mean.grad.sign()[clear], rtol=1e-2, atol=0)


def test_folds_have_a_price_and_nothing_else_has(case):
    raw, objective, moving, fixed, _ = case
    target = objective.target
    priced = with_price_on_folds(target)
    pair = target.prepare(moving, fixed)[0]
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
    start = raw.clone()
    start[:, 0, 3] = 5.0
    refined = refine(start, objective, moving, fixed, 40).raw[:, :3]
    folded = [float(fold_percentage(upsample(field, 2))) for field in (start[:, :3], refined)]
    assert folded[0] > 1
    assert folded[1] < 0.1 * folded[0]


@pytest.mark.parametrize("parts", ["mean", "all"])
def test_a_deterministic_field_can_be_refined(case, parts):
    raw, objective, moving, fixed, _ = case
    alone = MeanObjective(objective.target, ProposalLayout(rank=0, deterministic=True))
    refined = refine(raw[:, :3], alone, moving, fixed, 5, parts=parts)
    assert refined.after > refined.before
    torch.testing.assert_close(refined.raw, refine(raw, objective, moving, fixed, 5).raw[:, :3])


def test_refinement_of_a_whole_evaluation(case):
    raw, objective, moving, fixed, _ = case
    refinement = Refinement(objective, 3, "all")
    expected = refine(raw, objective, moving, fixed, 3, parts="all", seed=7).raw
    assert torch.equal(refinement(raw, moving, fixed, 7), expected)
    assert refinement.settings | {"objective": "SIRObjective", "objective.num_proposals": 4} == refinement.settings
    assert Refinement(objective, 3).settings == {"refine_steps": 3, "refine_parts": "mean"}
    assert Refinement()(raw, moving, fixed) is raw


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "refine_steps must be a whole number of at least 0, got -1"),
        ({"steps": 2.5}, "whole number"),
        ({"steps": True}, "whole number"),
        ({"parts": "L"}, "refine_parts must be mean or all, got 'L'"),
        ({"steps": 1}, "needs the objective"),
    ],
)
def test_a_refinement_that_is_none(options, message):
    with pytest.raises(ValueError, match=message):
        Refinement(**options)


def test_what_is_known_is_climbed_together_with_the_images(case):
    """The field is known at one place to be elsewhere than the images say: there it goes, and little else does."""
    raw, objective, moving, fixed, _ = case
    one = torch.full((1,), 3.0, dtype=torch.float64)
    known = Observations(one[:, None].repeat(1, 3), torch.tensor([[1.0, 0, 0]]).double(), one - 1.0, one / 30)

    def evidence(z):
        return -0.5 * ((known.values - known.apply(z)[0]) / known.std).square().sum()

    alone, both = (refine(raw, objective, moving, fixed, 40, evidence=e).raw[:, :3] for e in (None, evidence))
    assert float(known.apply(both)) == pytest.approx(2.0, abs=0.15)
    assert abs(float(known.apply(alone)) - 2.0) > 0.5
    far = (both - alone)[..., 6:].abs().mean()
    assert far < 0.2 * (both - alone)[..., 2:5, 2:5, 2:5].abs().mean()
    assert evidence_weight(objective.target) == 125
    assert evidence_weight(Target(NCCLikelihood(9, 0.25))) == 4 * 729
