"""How fast a pair is registered: 1,200 proposals drawn, weighed, 80 kept and summarized, against plain torch."""

from __future__ import annotations

import functools
import statistics
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from bundle.benchmark import plain_torch
from bundle.benchmark.measure import peak_memory, print_table, print_verdicts, save, verdict
from scripts.data.synthetic import synthesize_subject
from scripts.evaluation.field_moments import FieldMoments
from scripts.gaussian import StructuredGaussian
from scripts.inference.chunks import CHUNK
from scripts.inference.proposals import Posterior, redraw, sample_posterior, spread_of
from scripts.inference.weights import normalize
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.registration.prior import DiffusionPrior
from scripts.registration.similarity import NCCLikelihood
from scripts.registration.target import ON_IMAGE_GRID, Target
from scripts.registration.warp import warp

SHAPE = (80, 96, 112)
RANK, WINDOW, PROPOSALS, SAMPLES = 10, 5, 1200, 80
TEMPERATURE, SEED = 3.0, 0
REFERENCE_PROPOSALS = 16
"""What plain torch is measured with; its time for all proposals is extrapolated."""


def clock() -> float:
    """Seconds; with a single thread, those in which this process had the core: others on it do not count."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Steps(NamedTuple):
    """What makes a weighted field out of noise, by us or by plain torch."""

    gaussian: StructuredGaussian
    spline: Callable[[Tensor], Tensor]  # fields [N, 3, x, y, z] to displacements [N, 3, X, Y, Z]
    warp: Callable[[Tensor], Tensor]  # displacements to warped images [N, 1, X, Y, Z]
    likelihood: Callable[[Tensor], Tensor]  # warped images to log-likelihoods [N]
    prior: Callable[[Tensor], Tensor]  # fields to log-priors [N]
    batch: int  # fields on the image grid at a time


class Case:
    """A pair of images and the proposal that a fresh network has for it.

    Args:
        moving: shape [1, 1, X, Y, Z], intensities in [0, 1].
        fixed: the same shape.
        rank: columns of R.
    """

    def __init__(self, moving: Tensor, fixed: Tensor, rank: int = RANK) -> None:
        torch.manual_seed(0)
        layout = ProposalLayout(rank=rank)
        with torch.no_grad():
            raw = ProposalNetwork(layout)(torch.cat([moving, fixed], dim=1))
        likelihood, prior = NCCLikelihood(WINDOW), DiffusionPrior(1.0)
        target = Target(likelihood, prior)
        (pair,) = target.prepare(moving, fixed)
        self.target, self.pair = target, pair
        self.ours = Steps(
            layout.gaussian(raw),
            lambda z: target.displacement(z, pair.shape),
            lambda ddf: warp(pair.moving, ddf),
            lambda warped: likelihood(pair.fixed, warped),
            target.log_prior,
            ON_IMAGE_GRID,
        )
        correlation = plain_torch.LocalCorrelation.with_fixed(fixed, WINDOW, likelihood.eps)
        self.plain = Steps(
            layout.gaussian(raw, backend="torch"),
            plain_torch.upsample,
            lambda ddf: plain_torch.warp(moving, ddf),
            lambda warped: correlation(warped) / likelihood.sigma**2,
            lambda z: -prior.weight * plain_torch.diffusion_energy(z),
            1,  # more are slower: they do not fit into the cache, and large memory comes anew from the system
        )


def brains(shape: Sequence[int] = SHAPE) -> tuple[Tensor, Tensor]:
    """Two synthetic people, [1, 1, X, Y, Z] each: 2 mm at 80x96x112, coarser in smaller volumes."""
    people = (synthesize_subject(seed, shape, spacing=160 / shape[0]) for seed in (0, 1))
    moving, fixed = (torch.from_numpy(person.image)[None, None] for person in people)
    return moving, fixed


class Registered(NamedTuple):
    """What there is after a registration, and how long it took."""

    posterior: Posterior
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
            moments.add(target.displacement(field, pair.shape), count)
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
        ddf = clocked("spline", steps.spline, z)
        warped = clocked("warp", steps.warp, ddf)
        likelihood = clocked("NCC", steps.likelihood, warped)
        return likelihood + clocked("prior", steps.prior, z)

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


def memory() -> float:
    """Peak memory of a registration beyond the interpreter with its packages, the network included, GiB."""
    # What the images show does not matter here; making brains takes memory that registering them does not.
    program = textwrap.dedent(
        f"""
        import torch
        from bundle.benchmark.inference import Case, register
        register(Case(*torch.rand(2, 1, 1, 16, 16, 16)), 8, 4)  # compiles
        mark()
        register(Case(*torch.rand(2, 1, 1, *{SHAPE})))
        """
    )
    before, peak = peak_memory(program)
    return (peak - before) / 2**30


def compare(
    case: Case,
    num_proposals: int = PROPOSALS,
    num_samples: int = SAMPLES,
    num_reference: int = REFERENCE_PROPOSALS,
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


def show(result: dict[str, Any], gibibytes: float) -> list[dict[str, Any]]:
    """Print the tables; returns the bars."""
    threads = torch.get_num_threads()
    on = "one core, processor time" if threads == 1 else f"{threads} threads"
    ours, plain = result["split"], result["reference_split"]
    rows = []
    for name, seconds in ours.items():
        times = result["different_samples"] if name == "summary" else result["proposals"]
        label = f"summary ({times} different fields)" if name == "summary" else name
        share = seconds * times / (result["seconds"] * result["share_of_parts"])
        rows.append(
            [
                label,
                f"{1e3 * seconds:.2f}",
                f"{share:.0%}",
                f"{1e3 * plain[name]:.1f}",
                f"{plain[name] / max(seconds, 1e-9):.1f}",
            ]
        )
    print_table(
        f"{result['proposals']} proposals, {result['samples']} kept, {on}: {result['seconds']:.1f} s, "
        f"{result['proposals_a_second']:.1f} proposals a second",
        ["part", "ms a field", "share", "plain torch, ms", "times faster"],
        rows,
    )
    print(
        f"\nThe parts, measured one by one, add up to {result['share_of_parts']:.0%} of the whole."
        f"\nPlain torch: {result['reference_seconds']:.0f} s, extrapolated from {result['reference_proposals']} of the "
        f"same proposals.\nLog-weights have a spread of {result['spread']:.1f} and differ by at most "
        f"{result['largest_difference']:.2g}, weights by {result['largest_difference_of_weights']:.1g}."
        f"\nPeak memory: {gibibytes:.2f} GiB beyond the interpreter with its packages."
    )
    verdicts = [
        verdict("times faster than plain torch", result["times_faster"], 5),
        verdict(
            "log-weights: largest difference, thousandths of their spread",
            1e3 * result["largest_difference"] / result["spread"],
            1,
            at_least=False,
        ),
        verdict("peak memory, GiB", gibibytes, 3, at_least=False),
    ]
    print_verdicts(verdicts)
    return verdicts


def run() -> dict[str, Any]:
    """Measure, print, write output/benchmark/inference.json."""
    result, gibibytes = compare(Case(*brains())), memory()
    result.update(peak_gib=gibibytes, bars=show(result, gibibytes))
    print(f"\nWritten to {save('inference', result)}")
    return result
