"""How fast a pair is registered: 1,200 proposals drawn, weighed, 80 kept and summarized, against plain torch."""

from __future__ import annotations

import functools
import statistics
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from experiments.benchmark import plain_torch, roofline
from experiments.benchmark.inference_table import ONE_PASS, PLAIN_PASS, show
from experiments.benchmark.measure import clock, peak_memory, save
from scripts.gaussian import StructuredGaussian
from scripts.inference.chunks import CHUNK
from scripts.inference.proposals import Draws, redraw, sample_posterior, spread_of
from scripts.inference.weights import normalize
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.posterior.field_moments import FieldMoments
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from scripts.synthetic.subjects import synthesize_subject

RANK, PROPOSALS, SAMPLES = 10, 1200, 80
TEMPERATURE, SEED = 3.0, 0


class Setting(NamedTuple):
    """A size to measure, and its bars."""

    name: str
    shape: tuple[int, int, int]
    window: int
    reference: int  # proposals that plain torch is measured with; its time for all of them is extrapolated
    times_faster: float
    gibibytes: float


TWO_MM = Setting("inference", (80, 96, 112), 5, 16, 5, 3)
PAPER = Setting("inference_paper", (144, 160, 192), 9, 2, 8, 4)


class Steps(NamedTuple):
    """What makes a weighted field out of noise, by us or by plain torch."""

    gaussian: StructuredGaussian
    likelihood: dict[str, Callable[[Tensor], Tensor]]  # one after the other: fields [N, 3, x, y, z] to [N]
    prior: Callable[[Tensor], Tensor]  # fields to log-priors [N]
    batch: int  # fields on the image grid at a time


class Case:
    """A pair of images and the proposal that a fresh network has for it.

    Args:
        moving: shape [1, 1, X, Y, Z], intensities in [0, 1].
        fixed: the same shape.
        rank: columns of R.
        window: of the local correlation.
    """

    def __init__(self, moving: Tensor, fixed: Tensor, rank: int = RANK, window: int = TWO_MM.window) -> None:
        torch.manual_seed(0)
        layout = ProposalLayout(rank=rank)
        with torch.no_grad():
            raw = ProposalNetwork(layout)(torch.cat([moving, fixed], dim=1))
        likelihood, prior = NCCLikelihood(window), DiffusionPrior(1.0)
        target = Target(likelihood, prior)
        (pair,) = target.prepare(moving, fixed)
        self.target, self.pair = target, pair
        one_pass = {ONE_PASS: lambda z: target.log_likelihood(pair, z)}
        self.ours = Steps(layout.gaussian(raw), one_pass, target.log_prior, CHUNK)
        correlation = plain_torch.LocalCorrelation.with_fixed(fixed, window, likelihood.eps)
        steps: tuple[Callable[[Tensor], Tensor], ...] = (
            plain_torch.upsample,
            lambda ddf: plain_torch.warp(moving, ddf),
            lambda warped: correlation(warped) / likelihood.sigma**2,
        )
        self.plain = Steps(
            layout.gaussian(raw, backend="torch"),
            dict(zip(PLAIN_PASS, steps, strict=True)),
            lambda z: -prior.weight * plain_torch.diffusion_energy(z),
            1,  # more are slower: they do not fit into the cache, and large memory comes anew from the system
        )


def brains(shape: Sequence[int] = TWO_MM.shape) -> tuple[Tensor, Tensor]:
    """Two synthetic people, [1, 1, X, Y, Z] each: 2 mm at 80x96x112, coarser in smaller volumes."""
    people = (synthesize_subject(seed, shape, spacing=160 / shape[0]) for seed in (0, 1))
    moving, fixed = (torch.from_numpy(person.image)[None, None] for person in people)
    return moving, fixed


class Registered(NamedTuple):
    """What there is after a registration, and how long it took."""

    posterior: Draws
    moments: FieldMoments  # of the displacement on the image grid, [1, 3, X, Y, Z]
    indices: list[int]  # the different proposals that were kept
    counts: list[int]  # how often each
    weighing: float  # seconds
    summary: float


def register(case: Case, num_proposals: int = PROPOSALS, num_samples: int = SAMPLES) -> Registered:
    """The pipeline itself: draw, weigh, resample, redraw what was kept, mean and variance of the displacement."""
    gaussian, target, pair = case.ours.gaussian, case.target, case.pair
    start = clock()
    posterior = sample_posterior(
        gaussian,
        target,
        pair,
        num_proposals=num_proposals,
        num_samples=num_samples,
        temperature=TEMPERATURE,
        seed=SEED,
    )
    weighed = clock()
    indices, counts = (values.tolist() for values in posterior.resampled.unique(return_counts=True))
    moments = FieldMoments()
    for part, fields in redraw(gaussian, indices, SEED):
        for field, count in zip(fields.split(1), counts[part.start : part.stop], strict=True):
            moments.add(target.transform(field, pair.shape), count)
    done = clock()
    return Registered(posterior, moments, indices, counts, weighed - start, done - weighed)


def weigh(steps: Steps, indices: Sequence[int]) -> tuple[Tensor, dict[str, float]]:
    """Log-weights of some proposals, shape [N], one step after the other, and the seconds of each."""
    seconds: dict[str, float] = {}

    def clocked(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        start = clock()
        result = function(*arguments, **options)
        seconds[name] = seconds.get(name, 0.0) + clock() - start
        return result

    gaussian = steps.gaussian
    # Both draw with our generator, or they would not have the same proposals; torch.randn takes as long.
    noise = clocked("noise", gaussian.noise, indices=indices, seed=SEED)
    log_q = clocked("log q", gaussian.log_prob_from_noise, noise)[:, 0]
    # The solve is clocked within the sample; what remains is R ε_R and the mean. A solve by itself, before or after,
    # would find other memory in the cache.
    solve = functools.partial(clocked, "solve", gaussian.cholesky.solve)
    with mock.patch.object(gaussian.cholesky, "solve", solve):
        fields = clocked("low rank", gaussian.rsample, noise=noise, overwrite=True)[:, 0]
    seconds["low rank"] -= seconds["solve"]

    def log_p(z: Tensor) -> Tensor:
        value = z
        for name, step in steps.likelihood.items():
            value = clocked(name, step, value)
        return value + clocked("prior", steps.prior, z)

    return torch.cat([log_p(z) for z in fields.split(steps.batch)]) - log_q, seconds


def split(steps: Steps, indices: Sequence[int], repeats: int) -> tuple[Tensor, dict[str, list[float]]]:
    """`weigh` a few times: log-weights, and seconds a proposal of each part in each repeat."""
    runs = [weigh(steps, indices) for _ in range(repeats)]
    return runs[-1][0], {name: [seconds[name] / len(indices) for _, seconds in runs] for name in runs[-1][1]}


def summary_of_plain(case: Case, indices: Sequence[int], counts: Sequence[int]) -> tuple[float, Tensor, Tensor]:
    """Seconds a kept field in plain torch, and mean and variance of the displacement, [1, 3, X, Y, Z]."""
    start = clock()
    fields = case.plain.gaussian.sample(indices=indices, seed=SEED)[:, 0]
    mean, variance = plain_torch.moments(fields.split(1), counts)
    return (clock() - start) / len(indices), mean, variance


def memory(setting: Setting) -> float:
    """Peak memory of a registration beyond the interpreter with its packages, the network included, GiB.

    Three chunks of proposals: more take their turns in the same memory.
    """
    # What the images show does not matter here; making brains takes memory that registering them does not.
    program = textwrap.dedent(
        f"""
        import torch
        from experiments.benchmark.inference import Case, register
        register(Case(*torch.rand(2, 1, 1, 16, 16, 16), window={setting.window}), 8, 4)  # compiles
        mark()
        register(Case(*torch.rand(2, 1, 1, *{setting.shape}), window={setting.window}), {3 * CHUNK}, {SAMPLES})
        """
    )
    before, peak = peak_memory(program)
    return (peak - before) / 2**30


def compare(
    case: Case,
    num_proposals: int = PROPOSALS,
    num_samples: int = SAMPLES,
    num_reference: int = TWO_MM.reference,
    repeats: int = 2,
) -> dict[str, Any]:
    """Ours in full, the reference with a few of the same proposals, and how far their log-weights are apart."""
    few, chunk = range(num_reference), range(min(CHUNK, num_proposals))
    for steps in (case.ours, case.plain):
        weigh(steps, range(2))  # compiles, packs L, finds the wavefronts
    # Both before and after our run. Ours is the mean of all, as the run is; the reference's is its fastest, so that a
    # busy spell of the machine does not count for us.
    plain_log_weights, plain = split(case.plain, few, 1)
    ours = split(case.ours, chunk, repeats)[1]
    done = register(case, num_proposals, num_samples)
    for times, steps, indices, again in ((ours, case.ours, chunk, repeats), (plain, case.plain, few, 1)):
        for name, seconds in split(steps, indices, again)[1].items():
            times[name] += seconds
    split_of_ours = {name: statistics.mean(seconds) for name, seconds in ours.items()}
    split_of_plain = {name: min(seconds) for name, seconds in plain.items()}
    kept = slice(num_reference)
    plain_summary = summary_of_plain(case, done.indices[kept], done.counts[kept])[0]

    log_weights = done.posterior.proposals.log_weights
    spread, compared = spread_of(log_weights), log_weights[:num_reference]
    weights = [normalize(values, TEMPERATURE, spread) for values in (compared, plain_log_weights)]
    whole = done.weighing + done.summary
    reference = num_proposals * sum(split_of_plain.values()) + len(done.indices) * plain_summary
    parts = num_proposals * sum(split_of_ours.values()) + done.summary
    return {
        "proposals": num_proposals,
        "samples": num_samples,
        "different_samples": len(done.indices),
        "seconds": whole,
        "proposals_a_second": num_proposals / whole,
        "split": {**split_of_ours, "summary": done.summary / len(done.indices)},
        "share_of_parts": parts / whole,
        "reference_proposals": num_reference,
        "reference_seconds": reference,
        "reference_split": {**split_of_plain, "summary": plain_summary},
        "times_faster": reference / whole,
        "spread": spread,
        "largest_difference": float((plain_log_weights - compared).abs().max()),
        "largest_difference_of_weights": float((weights[0] - weights[1]).abs().max()),
        "ess": done.posterior.ess,
        "khat": done.posterior.khat,
    }


def run(paper: bool = False, num_proposals: int = PROPOSALS) -> dict[str, Any]:
    """Measure, print, write output/benchmark/inference.json, or inference_paper.json for the paper's size."""
    setting = PAPER if paper else TWO_MM
    case = Case(*brains(setting.shape), window=setting.window)
    result = compare(case, num_proposals, SAMPLES, setting.reference, repeats=1 if paper else 2)
    result["shape"] = setting.shape
    result["roofline"] = roofline.measure(setting.shape, setting.window, RANK, CHUNK, result)
    result["peak_gib"] = memory(setting)
    result["bars"] = show(result, setting.times_faster, setting.gibibytes)
    roofline.show(result["roofline"])
    print(f"\nWritten to {save(setting.name, result)}")
    return result
