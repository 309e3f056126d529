"""Drawing and weighting proposals, in chunks that fit into memory; the result does not depend on the chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.gaussian.errors import ShapeError
from scripts.inference.chunks import CHUNK, run_in_chunks
from scripts.inference.weights import effective_sample_size, normalize, pareto_khat, resample, systematic, tempered
from scripts.networks.layout import Proposal
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
        logs = tempered(self.log_weights, temperature, scale)
        return logs if self.log_evidence is None else logs + self.log_evidence


def weigh_proposals(
    proposal: Proposal,
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
        proposal: of the pair, see :class:`~scripts.networks.layout.Proposal`.
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
    _check_single(proposal)
    if count < 1:
        raise ValueError(f"the number of proposals must be positive, got {count}")

    @torch.no_grad()
    def weigh(indices: range) -> Tensor:
        z, log_q = (values[:, 0] for values in proposal.draw(indices, seed))
        prior = target.log_prior(z)
        given = torch.zeros_like(prior) if evidence is None else evidence(z).to(prior)
        return torch.stack([target.log_likelihood(pair, z), prior, log_q.double(), given])

    parts = []
    for indices, part in run_in_chunks(count, chunk, weigh):
        parts.append(part)
        if progress is not None:
            progress(indices.stop)
    # The one thing that a GPU hands over: from here on, everything is about a few hundred numbers.
    likelihood, prior, log_q, given = torch.cat(parts, dim=1).cpu()
    return Weighted(likelihood, prior, log_q, seed, None if evidence is None else given)


class Draws(NamedTuple):
    """Weighted and resampled proposals of one pair."""

    proposals: Weighted
    weights: Tensor  # (N,), normalized
    resampled: Tensor  # (K,) int64, indices of proposals, with repetitions
    ess: float
    khat: float
    temperature: float  # T of the weights
    scale: float  # σ_α of the weights

    @classmethod
    def of(
        cls,
        weighted: Weighted,
        num_samples: int,
        temperature: float,
        scale: float | None = None,
        evenly: bool = False,
    ) -> Draws:
        """Weigh and resample proposals whose densities are known (decision 10).

        Args:
            weighted: log-densities of N proposals.
            num_samples: K.
            temperature: T.
            scale: σ_α; None for the spread of these log-weights.
            evenly: resample without chance: of a few fields, each as often as its weight says.
        """
        spread = scale if scale is not None else spread_of(weighted.log_weights)
        weights = normalize(weighted.log_weights, temperature, spread, weighted.log_evidence)
        generator = torch.Generator(device=weights.device).manual_seed(weighted.seed)
        khat = pareto_khat(weighted.tempered(temperature, spread))
        ess = float(effective_sample_size(weights))
        chosen = systematic(weights, num_samples) if evenly else resample(weights, num_samples, generator)
        return cls(weighted, weights, chosen, ess, khat, temperature, spread)

    def counts(self) -> dict[int, int]:
        """The different proposals among the resampled ones, in order, and how often each was taken."""
        indices, counts = self.resampled.unique(return_counts=True)
        return dict(zip(indices.tolist(), counts.tolist(), strict=True))


def sample_posterior(
    proposal: Proposal,
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
) -> Draws:
    """SIR at inference (decision 13): draw proposals, weigh them, resample.

    Args:
        scale: σ_α from training; None to take the spread of this pair's own log-weights.
        evidence: see `Weighted.log_evidence`; None for none.
    """
    count = min(num_proposals, proposal.limit or num_proposals)
    weighted = weigh_proposals(proposal, target, pair, count, seed, chunk, progress, evidence)
    evenly = proposal.limit is not None or count == num_samples
    return Draws.of(weighted, num_samples, temperature, scale, evenly=evenly)


def spread_of(log_weights: Tensor) -> float:
    """Standard deviation of the log-weights; 1 where it cannot be known or nothing varies."""
    if log_weights.numel() < 2:
        return 1.0
    spread = float(log_weights.double().std())
    return spread if spread > 0 else 1.0


def redraw(proposal: Proposal, indices: list[int], seed: int, chunk: int = CHUNK) -> Iterator[tuple[range, Tensor]]:
    """The named samples of a seed again, in chunks: (positions in `indices`, fields [n, 3, x, y, z])."""
    _check_single(proposal)
    yield from run_in_chunks(
        len(indices), chunk, lambda part: proposal.sample(indices=[indices[i] for i in part], seed=seed)[:, 0]
    )


def _check_single(proposal: Proposal) -> None:
    if proposal.mean.ndim != 5 or len(proposal.mean) != 1:
        raise ShapeError("the mean of one pair's proposal", "(1, 3, x, y, z)", proposal.mean.shape)
