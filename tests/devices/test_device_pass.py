"""The whole of a training step and of inference, as a GPU would see it: nothing hidden crosses to the host."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scripts.core.grid import Grid
from scripts.engines.updates import TrainingUpdate, prepare_pair
from scripts.gaussian import Stencil, StencilCholesky
from scripts.gaussian import stencil as pattern
from scripts.gaussian.backends import torch_wavefront
from scripts.inference.objectives import ImportanceObjective, MeanObjective, SIRObjective, VariationalObjective
from scripts.inference.proposals import redraw, weigh_proposals
from scripts.inference.weights import normalize, resample
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.posterior.field_summary import FieldAccumulator
from scripts.registration import space, spline, warp
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.space import PairSpace
from scripts.registration.target import Target
from tests.devices.watch import MixedDevicesError, Watch

GPU = torch.device("meta")
SHAPE = (8, 16, 16)
# A step of training asks for these numbers and no others: is it finite, what to write down, which proposals to redraw.
ASKED_BY_A_STEP = {"engines/updates.py:__call__", "inference/objectives.py:outcome"}
HANDED_OVER = {
    "inference/proposals.py:weigh_proposals",  # the log-weights
    "networks/weight_scale.py:update",  # their spread, to where σ_α is
    "inference/weights.py:normalize",  # σ_α
    "inference/objectives.py:per_pair",  # the log-weights of the importance weighted bound
    "engines/updates.py:<genexpr>",  # the images, when they are loaded
}


@pytest.fixture(autouse=True)
def meta(monkeypatch):
    """Autocast knows no meta device; and no meta tensor is left in caches afterwards."""
    autocast = torch.autocast
    monkeypatch.setattr(
        torch, "autocast", lambda device, *a, **k: autocast("cpu" if device == "meta" else device, *a, **k)
    )
    caches = (
        spline._interpolation, warp._normalized_grid, torch_wavefront.schedule, space._matrix, pattern._rows,
    )  # fmt: skip
    yield
    for cache in caches:
        cache.cache_clear()


def make_target(**options) -> Target:
    return Target(NCCLikelihood(window=3), DiffusionPrior(1.0), DiffusionPrior(2.5), **options).to(GPU)


def make_network(layout: ProposalLayout, **options) -> ProposalNetwork:
    return ProposalNetwork(layout, **{"factor_level": "half", **options}).to(GPU)


def warmed(layout: ProposalLayout, num_proposals: int = 4) -> None:
    """Fill what is made once for a grid and then kept: tables of the solver, the spline and the warp."""
    weigh(layout, num_proposals)


def weigh(layout: ProposalLayout, count: int, chunk: int = 64):
    target = make_target()
    raw = torch.zeros(1, layout.out_channels, *(n // 2 for n in SHAPE), device=GPU)
    (pair,) = target.prepare(*(torch.rand(1, 1, *SHAPE, device=GPU) for _ in range(2)))
    with Watch() as watch:
        weighted = weigh_proposals(layout.gaussian(raw, validate=False), target, pair, count, 0, chunk)
    return watch, weighted


def step(objective, network) -> Watch:
    """One call of the training's update function on a batch of two pairs from the CPU."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    engine = SimpleNamespace(
        prepare_batch=prepare_pair,
        state=SimpleNamespace(device=GPU, iteration=1, output=None),
        non_blocking=False,
        network=network,
        optimizer=optimizer,
        loss_function=objective,
        fire_event=lambda event: None,
    )
    batch = {key: torch.rand(2, 1, *SHAPE) for key in ("moving", "fixed")}
    with Watch() as watch:
        TrainingUpdate()(engine, batch)
    return watch


@pytest.mark.parametrize("kind", ["S", "V", "I", "mean"])
def test_a_training_step_hands_over_only_what_it_must(kind):
    layout = ProposalLayout(rank=0, deterministic=True) if kind == "mean" else ProposalLayout(rank=3, dominance=0.95)
    network = make_network(layout)
    make = {"S": SIRObjective, "V": VariationalObjective, "I": ImportanceObjective, "mean": MeanObjective}[kind]
    options = {"scale": network.weight_scale} if kind == "S" else {}
    objective = make(make_target(), layout, **options)
    step(objective, network)  # tables that are kept
    watch = step(objective, network)
    assert watch.asked.keys() <= ASKED_BY_A_STEP | {"inference/weights.py:_check"}, watch.asked
    assert watch.moved.keys() <= HANDED_OVER, watch.moved


def test_the_number_of_questions_does_not_grow_with_the_samples():
    layout = ProposalLayout(rank=3, dominance=0.95)
    counts = []
    for proposals, resampled in ((8, 2), (64, 8)):
        network = make_network(layout)
        objective = SIRObjective(make_target(), layout, proposals, resampled, scale=network.weight_scale)
        step(objective, network)
        watch = step(objective, network)
        counts.append((watch.asked.total(), watch.moved.total()))
    assert counts[0] == counts[1]
    assert sum(counts[0]) < 40


def test_weighing_proposals_asks_nothing_until_the_end():
    layout = ProposalLayout(rank=3, dominance=0.95)
    warmed(layout)
    watch, weighted = weigh(layout, 24, chunk=8)
    assert not watch.asked
    assert watch.moved == {"inference/proposals.py:weigh_proposals": 1}
    assert weighted.log_weights.shape == (24,)
    assert weighted.log_weights.device.type == "cpu"
    assert weighted.log_weights.dtype == torch.float64


def test_launches_do_not_grow_with_the_samples_but_for_their_noise():
    layout = ProposalLayout(rank=3, dominance=0.95)
    warmed(layout)
    few, many = (weigh(layout, count)[0].launches for count in (4, 64))
    # A sample's seed is written to the device, one number for each of the two streams of noise.
    assert many - few == 2 * 60


@pytest.mark.parametrize("cross_channel", ["voxel", "full"])
def test_a_solve_launches_as_many_kernels_for_one_sample_as_for_a_thousand(cross_channel):
    stencil, grid = Stencil(cross_channel), (6, 7, 9)
    operator = StencilCholesky(stencil, torch.ones(1, stencil.num_channels, *grid, device=GPU), validate=False)
    launches = []
    for count in (1, 1, 1000):
        with Watch() as watch:
            operator.solve(torch.ones(count, 1, 3, *grid, device=GPU), transpose=True)
        assert not watch.asked
        launches.append(watch.launches)
    assert launches[1] == launches[2]
    fronts = 4 * (grid[0] - 1) + 2 * (grid[1] - 1) + grid[2]
    assert launches[2] <= 2 * fronts + 10


def test_resampling_and_summary_stay_on_the_device():
    layout, grid = ProposalLayout(rank=3, dominance=0.95), Grid(SHAPE, np.diag([2.0, 2.0, 2.0, 1.0]))
    raw = torch.zeros(1, layout.out_channels, *(n // 2 for n in SHAPE), device=GPU)
    gaussian, spaces = layout.gaussian(raw, validate=False), PairSpace(grid, grid, grid, np.eye(4), 2)

    def summarize(count: int) -> Watch:
        accumulator = FieldAccumulator(spaces)
        with torch.no_grad(), Watch() as watch:
            for _, fields in redraw(gaussian, list(range(count)), seed=0, chunk=8):
                for points in fields:
                    accumulator.add(points, 1.0)
            accumulator.summary()
        return watch

    summarize(2)
    few, many = summarize(8), summarize(16)
    assert few.asked == many.asked == {"posterior/field_summary.py:summary": 1}
    assert not few.moved + many.moved
    assert (many.launches - few.launches) / 8 < 200


def test_weights_live_on_the_host():
    log_weights = torch.zeros(8, dtype=torch.float64)
    with Watch() as watch:
        weights = normalize(log_weights, 3.0, torch.ones((), dtype=torch.float64))
        resample(weights, 4)
    assert watch.launches == 0


def test_mixing_devices_is_noticed():
    with Watch(), pytest.raises(MixedDevicesError, match=r"aten\.add"):
        torch.ones(3, device=GPU) + torch.ones(3)


def test_asking_for_a_number_is_noticed():
    x = torch.ones(3, device=GPU)
    with Watch() as watch:
        float(x.sum())
        bool((x > 0).all())
        x.tolist()
        x.cpu()
    assert watch.asked.total() == 2
    assert watch.moved.total() == 2
    assert watch.launches == 3
