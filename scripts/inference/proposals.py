"""Drawing and weighting proposals, in chunks that fit into memory; the result does not depend on the chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.gaussian import StructuredGaussian
from scripts.gaussian.errors import ShapeError
from scripts.inference.chunks import CHUNK, run_in_chunks
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.weights import effective_sample_size, normalize, pareto_khat, resample
from scripts.registration.target import Pair, Target

Evidence = Callable[[Tensor], Tensor]
"""Log-likelihood of something beside the images, of fields [N, 3, x, y, z]; shape (N,)."""


class Weighted(NamedTuple):
    """Log-densities of N proposals of one pair, float64 on the CPU, (N,) each; sample i of the seed is proposal i.

    For a proposal that was conditioned on observations y, `log_proposal` is log q(Z | y) − log p(y | Z): the
    observations' own likelihood stands in the target too and is left out of both.
    """

    log_likelihood: Tensor
    log_prior: Tensor
    log_proposal: Tensor
    seed: int
    log_evidence: Tensor | None = None  # of what neither the images nor the proposal know

    @property
    def log_weights(self) -> Tensor:
        """log α = log p(I_f | Z) + log p(Z) − log q(Z) (decision 10)."""
        return self.log_likelihood + self.log_prior - self.log_proposal

    def tempered(self, temperature: float, scale: float) -> Tensor:
        """T · log α / σ_α + log-evidence: logarithms of the weights. Only what the images say is tempered."""
        logs = temperature * self.log_weights / scale
        return logs if self.log_evidence is None else logs + self.log_evidence


def weigh_proposals(
    gaussian: StructuredGaussian,
    target: Target,
    pair: Pair,
    count: int,
    seed: int,
    chunk: int = CHUNK,
    progress: Callable[[int], None] | None = None,
    evidence: Evidence | None = None,
) -> Weighted:
    """Draw `count` proposals of one pair and weigh them, without gradients.

    Args:
        gaussian: the proposal, batch shape (1,).
        target: the posterior.
        pair: the images.
        count: N.
        seed: of the proposals.
        chunk: proposals in memory at a time; fewer if memory runs out.
        progress: called with the number of proposals done after each chunk.
        evidence: see `Weighted.log_evidence`; None for none.

    Raises:
        ShapeError: for a proposal of another batch shape.
        ValueError: without any proposals, or for chunks without any.
    """
    _check_single(gaussian)
    if count < 1:
        raise ValueError(f"the number of proposals must be positive, got {count}")

    @torch.no_grad()
    def weigh(indices: range) -> Tensor:
        noise = gaussian.noise(indices=indices, seed=seed)
        log_q = gaussian.log_prob_from_noise(noise)[:, 0]
        if isinstance(gaussian, ConditionedGaussian):
            log_q = log_q - gaussian.log_observations(noise)[:, 0]
        z = gaussian.rsample(noise=noise, overwrite=True)[:, 0]
        prior = target.log_prior(z)
        given = torch.zeros_like(prior) if evidence is None else evidence(z).to(prior)
        return torch.stack([target.log_likelihood(pair, z), prior, log_q.double(), given])

    parts = []
    for indices, part in run_in_chunks(count, chunk, weigh):
        parts.append(part)
        if progress is not None:
            progress(indices.stop)
    # The one thing that a GPU hands over: from here on, everything is about a few hundred numbers.
    likelihood, prior, proposal, given = torch.cat(parts, dim=1).cpu()
    return Weighted(likelihood, prior, proposal, seed, None if evidence is None else given)


class Posterior(NamedTuple):
    """Weighted and resampled proposals of one pair."""

    proposals: Weighted
    weights: Tensor  # (N,), normalized
    resampled: Tensor  # (K,) int64, indices of proposals, with repetitions
    ess: float
    khat: float

    def unique(self) -> tuple[list[int], list[float]]:
        """The different proposals among the resampled ones, and the share of each; shares add up to one."""
        indices, counts = self.resampled.unique(return_counts=True)
        return indices.tolist(), (counts.double() / counts.sum()).tolist()


def sample_posterior(
    gaussian: StructuredGaussian,
    target: Target,
    pair: Pair,
    *,
    num_proposals: int = 1200,
    num_samples: int = 80,
    temperature: float = 3.0,
    scale: float | None = None,
    seed: int = 0,
    chunk: int = CHUNK,
    progress: Callable[[int], None] | None = None,
    evidence: Evidence | None = None,
) -> Posterior:
    """SIR at inference (decision 13): draw proposals, weigh them, resample.

    Args:
        scale: σ_α from training; None to take the spread of this pair's own log-weights.
        evidence: see `Weighted.log_evidence`; None for none.
    """
    weighted = weigh_proposals(gaussian, target, pair, num_proposals, seed, chunk, progress, evidence)
    log_weights = weighted.log_weights
    spread = scale if scale is not None else spread_of(log_weights)
    weights = normalize(log_weights, temperature, spread, weighted.log_evidence)
    generator = torch.Generator(device=weights.device).manual_seed(seed)
    resampled = resample(weights, num_samples, generator)
    khat = pareto_khat(weighted.tempered(temperature, spread))
    return Posterior(weighted, weights, resampled, float(effective_sample_size(weights)), khat)


def spread_of(log_weights: Tensor) -> float:
    """Standard deviation of the log-weights; 1 where it cannot be known or nothing varies."""
    if log_weights.numel() < 2:
        return 1.0
    spread = float(log_weights.double().std())
    return spread if spread > 0 else 1.0


def redraw(
    gaussian: StructuredGaussian, indices: list[int], seed: int, chunk: int = CHUNK
) -> Iterator[tuple[range, Tensor]]:
    """The named samples of a seed again, in chunks: (positions in `indices`, fields [n, 3, x, y, z])."""
    _check_single(gaussian)
    yield from run_in_chunks(
        len(indices), chunk, lambda part: gaussian.sample(indices=[indices[i] for i in part], seed=seed)[:, 0]
    )


def _check_single(gaussian: StructuredGaussian) -> None:
    if tuple(gaussian.batch_shape) != (1,):
        raise ShapeError("the mean of one pair's proposal", "(1, 3, x, y, z)", gaussian.mean.shape)
