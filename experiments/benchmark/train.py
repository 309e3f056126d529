"""What a training step costs beside the bare network, and where the time goes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from experiments.benchmark.inference_table import ONE_PASS
from experiments.benchmark.measure import (
    best_times,
    clock,
    peak_memory,
    peak_of,
    print_table,
    print_verdicts,
    save,
    verdict,
)
from scripts.engines.optimizer import soap
from scripts.inference import objectives
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target

SHAPE, WINDOW = (80, 96, 112), 5
PAPER_SHAPE, PAPER_WINDOW = (144, 160, 192), 9
RANK, PROPOSALS, RESAMPLED = 10, 16, 2
SIR = "S, 16 proposals, 2 resampled"


class Step:
    """Training on one pair of smooth random images (time does not depend on what they show)."""

    def __init__(self, shape: tuple[int, ...] = SHAPE, rank: int = RANK, window: int = WINDOW) -> None:
        torch.manual_seed(0)
        coarse = torch.rand(2, 1, *(size // 8 for size in shape))
        images = torch.nn.functional.interpolate(coarse, shape, mode="trilinear")
        self.moving, self.fixed = images[:1], images[1:]
        self.pair = torch.cat([self.moving, self.fixed], dim=1)
        self.layout = ProposalLayout(rank=rank)
        self.network = ProposalNetwork(self.layout)
        self.target = Target(NCCLikelihood(window), DiffusionPrior(1.0), DiffusionPrior(2.5))
        self.optimizer = soap(self.network.parameters())
        common: dict[str, Any] = {"target": self.target, "layout": self.layout}
        self.objectives: dict[str, objectives.Objective] = {
            "mean only": objectives.MeanObjective(**common),
            "V, 2 samples": objectives.VariationalObjective(**common, num_samples=2),
            "I, 4 samples": objectives.ImportanceObjective(**common, num_samples=4),
            SIR: objectives.SIRObjective(
                **common, num_proposals=PROPOSALS, num_resampled=RESAMPLED, scale=self.network.weight_scale
            ),
        }

    def bare(self) -> None:
        """The network alone, forward and backward."""
        self.optimizer.zero_grad()
        self.network(self.pair).square().mean().backward()

    def step(self, name: str, optimize: bool = True) -> dict[str, float]:
        """One step; seconds of its parts."""
        self.optimizer.zero_grad()
        times = [clock()]
        raw = self.network(self.pair)
        times.append(clock())
        outcome = self.objectives[name](raw, self.moving, self.fixed, 0)
        times.append(clock())
        outcome.loss.backward()
        times.append(clock())
        if optimize:
            self.optimizer.step()
        times.append(clock())
        parts = ("network", "objective", "backward", "optimizer")
        return {part: stop - start for part, start, stop in zip(parts, times, times[1:], strict=False)}


def split_of_proposals(step: Step, repeats: int = 3) -> dict[str, float]:
    """Seconds that weighing 16 proposals spends in each kind of work, best of a few."""
    best: dict[str, float] = {}

    def clocked(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        start = clock()
        result = function(*arguments, **options)
        seconds = clock() - start
        best[name] = min(best.get(name, seconds), seconds)
        return result

    target, pair = step.target, step.target.prepare(step.moving, step.fixed)[0]
    with torch.no_grad():
        gaussian = step.layout.gaussian(step.network(step.pair))
        for _ in range(repeats + 1):
            noise = clocked("noise", gaussian.noise, PROPOSALS)
            clocked("log q", gaussian.log_prob_from_noise, noise)
            z = clocked("solve, low rank", gaussian.rsample, noise=noise, overwrite=True)[:, 0]
            clocked(ONE_PASS, target.log_likelihood, pair, z)
            clocked("prior", target.log_prior, z)
    return best


def memory() -> float:
    """Peak memory of SIR steps beyond the interpreter with its packages, MiB."""
    program = textwrap.dedent(
        """
        import torch
        from experiments.benchmark.train import SIR, Step
        tiny = Step((16, 16, 16))
        for name in tiny.objectives:
            tiny.step(name)
        mark()
        step = Step()
        for _ in range(2):
            step.step(SIR)
        """
    )
    before, peak = peak_memory(program)
    return (peak - before) / 2**20


def at_paper_size() -> dict[str, Any]:
    """One SIR step at the paper's size, with everything that it needs: seconds of its parts, and peak memory."""
    Step((16, 16, 16), window=PAPER_WINDOW).step(SIR)  # compiles
    parts: dict[str, float] = {}
    peak = peak_of(lambda: parts.update(Step(PAPER_SHAPE, window=PAPER_WINDOW).step(SIR)))
    total = sum(parts.values())
    print_table(
        f"One SIR step ({PROPOSALS} proposals, {RESAMPLED} resampled) at {'x'.join(map(str, PAPER_SHAPE))}, rank "
        f"{RANK}, {torch.get_num_threads()} thread(s): {total:.1f} s",
        ["part", "s", "share"],
        [[name, f"{seconds:.2f}", f"{seconds / total:.0%}"] for name, seconds in parts.items()],
    )
    bars = [] if peak is None else [verdict("peak memory, GiB", peak / 2**30, 8, at_least=False)]
    print_verdicts(bars)
    return {"parts": parts, "seconds": total, "peak_bytes": peak, "bars": bars}


def run(paper: bool = False) -> dict[str, Any]:
    """Measure, print, write output/benchmark/train.json, or train_paper.json for the paper's size."""
    if paper:
        result = at_paper_size()
        print(f"\nWritten to {save('train_paper', result)}")
        return result
    step = Step()
    names = list(step.objectives)
    seconds = best_times([step.bare, *[partial(step.step, name, optimize=False) for name in names]], repeats=4)
    bare, costs = seconds[0], dict(zip(names, seconds[1:], strict=True))
    parts = {name: step.step(name) for name in names}
    proposals = split_of_proposals(step)
    used = memory()
    print_table(
        f"One step at {'x'.join(map(str, SHAPE))}, rank {RANK} (bare network, forward and backward: {bare:.2f} s)",
        ["objective", "s", "times bare", "network", "objective", "backward", "optimizer"],
        [
            [name, f"{costs[name]:.2f}", f"{costs[name] / bare:.2f}", *(f"{s:.2f}" for s in parts[name].values())]
            for name in names
        ],
    )
    total = sum(proposals.values())
    print_table(
        f"Weighing {PROPOSALS} proposals ({1e3 * total / PROPOSALS:.1f} ms each)",
        ["part", "ms", "share"],
        [[name, f"{1e3 * s:.1f}", f"{s / total:.0%}"] for name, s in proposals.items()],
    )
    print(f"\nPeak memory of SIR steps: {used:.0f} MiB beyond the interpreter")
    verdicts = [verdict("SIR step: times the bare network", costs[names[-1]] / bare, 3, at_least=False)]
    print_verdicts(verdicts)
    result = {"bare": bare, "steps": costs, "parts": parts, "proposals": proposals, "peak_mib": used, "bars": verdicts}
    print(f"\nWritten to {save('train', result)}")
    return result
