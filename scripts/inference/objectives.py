"""What training minimizes: SIR (S), the variational bound (V), the importance weighted bound (I), or a mean only.

Each takes the network's raw output for a batch and gives a loss per field voxel and a few figures to watch. All share
the prior on the mean and the penalty on L's off-diagonal entries (decisions 9 and 11).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scripts.core.described import Described
from scripts.core.processes import ALONE, Processes
from scripts.core.truth import truth
from scripts.gaussian import StructuredGaussian
from scripts.gaussian.distribution import Noise
from scripts.gaussian.errors import ShapeError
from scripts.gaussian.noise import fold
from scripts.inference.chunks import CHUNK
from scripts.inference.proposals import Weighted, weigh_proposals
from scripts.inference.weights import effective_sample_size, normalize, resample
from scripts.networks.layout import ProposalLayout
from scripts.networks.weight_scale import WeightScale
from scripts.registration.target import Pair, Target


class Outcome(NamedTuple):
    """A loss to differentiate, and figures to watch."""

    loss: Tensor  # scalar, float64
    figures: dict[str, float]


class Objective(Described, nn.Module, abc.ABC):
    """Base: regularization and the loop over the batch, whose elements have samples and weights of their own.

    Args:
        target: the posterior.
        layout: how the network's output is read.
        off_diagonal_penalty: weight of the squared off-diagonal entries of L.
        backend: solver of the Gaussian, None for the fastest.

    Class attributes:
        temperature: T at which samples are weighed after such a training (decision 10), unless another was fitted or
            is asked for. 0 where the posterior is q itself.
    """

    aside = ("target", "layout", "scale", "chunk", "backend")
    temperature: float = 0.0

    def __init__(
        self,
        target: Target,
        layout: ProposalLayout,
        off_diagonal_penalty: float = 0.05,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.target = target
        self.layout = layout
        self.off_diagonal_penalty = off_diagonal_penalty
        self.backend = backend

    def forward(
        self,
        raw: Tensor,
        moving: Tensor,
        fixed: Tensor,
        seed: int,
        mask: Tensor | None = None,
        labels: tuple[Tensor, Tensor] | None = None,
        processes: Processes = ALONE,
    ) -> Outcome:
        """Loss per field voxel, mean over the batch.

        Args:
            raw: the network's output, shape [B, C, x, y, z].
            moving: shape [B, 1, X, Y, Z].
            mask: optional weights of the fixed image's voxels, the same shape.
            labels: label maps of the moving and the fixed image, the same shape; used if the target has an overlap.
            processes: those that share the step's batch; each pair draws the noise of its place in the whole batch, so
                that w processes with B pairs do what one does with w · B.

        Raises:
            ShapeError: for shapes that do not fit each other.
        """
        if raw.shape[0] != moving.shape[0]:
            expected = f"({moving.shape[0]}, {self.layout.out_channels}, x, y, z)"
            raise ShapeError("the network's output for these pairs", expected, raw.shape)
        seeds = [fold(seed, processes.place(b)) for b in range(raw.shape[0])]
        return self.outcome(raw, self.target.prepare(moving, fixed, mask, labels, seeds), seeds, processes)

    def outcome(
        self, raw: Tensor, pairs: Sequence[Pair], seeds: Sequence[int], processes: Processes = ALONE
    ) -> Outcome:
        """The same for pairs that are prepared already, each with a seed of its own."""
        mean = self.layout.mean(raw)
        voxels = mean.shape[2:].numel()
        total = -self.target.log_mean_prior(mean).mean() / voxels
        off_diagonals = self.layout.off_diagonals(raw)
        if off_diagonals.shape[1]:
            per_voxel = off_diagonals.square().sum(dim=1).mean(dtype=torch.float64)
            total = total + self.off_diagonal_penalty * per_voxel
        figures: dict[str, float] = {}
        for objective, watched in self.per_batch(raw, pairs, seeds, processes):
            total = total - objective / (voxels * len(pairs))
            for name, value in watched.items():
                figures[name] = figures.get(name, 0.0) + float(value) / len(pairs)
        return Outcome(total, figures)

    def per_batch(
        self, raw: Tensor, pairs: Sequence[Pair], seeds: Sequence[int], processes: Processes
    ) -> Iterator[tuple[Tensor, dict[str, Tensor | float]]]:
        """`per_pair` of each pair; raw has shape [B, C, x, y, z]. Nothing is shared but by objectives that say so."""
        for b, (pair, seed) in enumerate(zip(pairs, seeds, strict=True)):
            yield self.per_pair(raw[b : b + 1], pair, seed)

    @abc.abstractmethod
    def per_pair(self, raw: Tensor, pair: Pair, seed: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        """What to maximize for one pair (a scalar), and figures to watch; raw has shape [1, C, x, y, z]."""

    def gaussian(self, raw: Tensor) -> StructuredGaussian:
        """The proposal; values are checked by the training's own guard, once a step."""
        return self.layout.gaussian(raw, self.backend, validate=False)


class MeanObjective(Objective):
    """log p(I_f | I_m ∘ μ) + log p(μ): the mean alone, as VoxelMorph; also the common start of the variants."""

    kind = "mean"

    def per_pair(self, raw: Tensor, pair: Pair, seed: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See `Objective.per_pair`; nothing is drawn."""
        mean = self.layout.mean(raw)
        likelihood, prior = self.target.log_likelihood(pair, mean)[0], self.target.log_prior(mean)[0]
        return likelihood + prior, {"log_likelihood": likelihood.detach(), "log_prior": prior.detach()}


class VariationalObjective(Objective):
    """The evidence lower bound E[log p(I_f | Z) + log p(Z)] + H(q), entropy in closed form (decision 12).

    Samples come in pairs μ ± δ. The gradient of R is E[∇log p(Z) ε_Rᵀ]; a pair cancels the part ∇log p(μ) ε_Rᵀ, which
    is noise alone.

    Args:
        num_samples: fields drawn a step, an even number.
    """

    kind = "variational"

    def __init__(
        self,
        target: Target,
        layout: ProposalLayout,
        num_samples: int = 2,
        off_diagonal_penalty: float = 0.05,
        backend: str | None = None,
    ) -> None:
        super().__init__(target, layout, off_diagonal_penalty, backend)
        self.num_samples = _positive("num_samples", num_samples)
        if num_samples % 2:
            raise ValueError(f"num_samples must be even, since samples come in pairs, got {num_samples}")

    def per_pair(self, raw: Tensor, pair: Pair, seed: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See `Objective.per_pair`."""
        gaussian = self.gaussian(raw)
        half = gaussian.noise(self.num_samples // 2, seed=seed)
        z = gaussian.rsample(noise=Noise(*(torch.cat([part, -part]) for part in half)))[:, 0]
        likelihood, prior = self.target.log_likelihood(pair, z).mean(), self.target.log_prior(z).mean()
        entropy = gaussian.entropy()[0]
        variance = (z - gaussian.mean).detach().square().mean()
        figures = {"log_likelihood": likelihood, "log_prior": prior, "entropy": entropy, "variance": variance}
        return likelihood + prior + entropy, _detached(figures)


class ImportanceObjective(Objective):
    """The importance weighted bound log (1/K) Σ α, with gradients through all K samples (decision 12)."""

    kind = "importance"
    temperature = 1.0  # of the pair's own spread; the bound has none

    def __init__(
        self,
        target: Target,
        layout: ProposalLayout,
        num_samples: int = 4,
        off_diagonal_penalty: float = 0.05,
        backend: str | None = None,
    ) -> None:
        super().__init__(target, layout, off_diagonal_penalty, backend)
        self.num_samples = _positive("num_samples", num_samples)

    def per_pair(self, raw: Tensor, pair: Pair, seed: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See `Objective.per_pair`."""
        gaussian = self.gaussian(raw)
        # As a function of the parameters this is log q(Z(θ); θ): the sample's own dependence is in it.
        noise = gaussian.noise(self.num_samples, seed=seed)
        z = gaussian.rsample(noise=noise)[:, 0]
        likelihood, prior = self.target.log_likelihood(pair, z), self.target.log_prior(z)
        log_weights = likelihood + prior - gaussian.log_prob_from_noise(noise)[:, 0]
        bound = torch.logsumexp(log_weights, dim=0) - math.log(self.num_samples)
        figures = {"log_likelihood": likelihood.mean(), "log_prior": prior.mean(), **_spread(z)}
        figures["ess"] = effective_sample_size(normalize(log_weights.detach().cpu())) / self.num_samples
        return bound, _detached(figures)


class SIRObjective(Objective):
    """Sampled importance resampling (decision 11), the paper's own.

    Many proposals are drawn and weighted without gradients; a few are chosen by their tempered weights and redrawn
    from their noise with gradients. Their log α is what is maximized: log p(I_f | Z) + log p(Z) − log q(Z).

    Args:
        num_proposals: N_s, drawn a step.
        num_resampled: N_k, redrawn with gradients.
        temperature: T.
        scale: the running σ_α.
        proposal_density: whether − log q(Z) counts. Without it, as the paper prints its loss, nothing holds L up: noise
            only lowers the posterior, so its variance falls towards zero, and with it the uncertainty.
        chunk: proposals in memory at a time.
    """

    kind = "sir"

    def __init__(
        self,
        target: Target,
        layout: ProposalLayout,
        num_proposals: int = 16,
        num_resampled: int = 2,
        temperature: float = 3.0,
        scale: WeightScale | None = None,
        proposal_density: bool = True,
        chunk: int = CHUNK,
        off_diagonal_penalty: float = 0.05,
        backend: str | None = None,
    ) -> None:
        super().__init__(target, layout, off_diagonal_penalty, backend)
        if not 1 <= num_resampled <= num_proposals or num_proposals < 2:
            raise ValueError(
                f"num_resampled must be from 1 to num_proposals, and num_proposals at least 2; "
                f"got {num_resampled} of {num_proposals}"
            )
        self.num_proposals, self.num_resampled = num_proposals, num_resampled
        self.temperature = temperature
        self.scale = scale if scale is not None else WeightScale()
        self.proposal_density = truth("proposal_density", proposal_density)
        self.chunk = chunk

    def per_batch(
        self, raw: Tensor, pairs: Sequence[Pair], seeds: Sequence[int], processes: Processes
    ) -> Iterator[tuple[Tensor, dict[str, Tensor | float]]]:
        """Weigh the proposals of all pairs, let σ_α take them in, then choose and redraw for each pair."""
        with torch.no_grad():
            weighted = [
                weigh_proposals(
                    self.gaussian(raw[b : b + 1].detach()), self.target, pair, self.num_proposals, seeds[b], self.chunk
                )
                for b, pair in enumerate(pairs)
            ]
            scale = self.scale.update(torch.stack([w.log_weights for w in weighted], dim=1), processes)
        for b, pair in enumerate(pairs):
            yield self._resampled(raw[b : b + 1], pair, weighted[b], scale)

    def per_pair(self, raw: Tensor, pair: Pair, seed: int) -> tuple[Tensor, dict[str, Tensor | float]]:
        """See `Objective.per_pair`."""
        return next(self.per_batch(raw, [pair], [seed], ALONE))

    def _resampled(
        self, raw: Tensor, pair: Pair, weighted: Weighted, scale: Tensor
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """What the resampled proposals give, redrawn with gradients."""
        seed = weighted.seed
        with torch.no_grad():
            weights = normalize(weighted.log_weights, self.temperature, scale)
            generator = torch.Generator(device=weights.device).manual_seed(seed)
            chosen = resample(weights, self.num_resampled, generator).tolist()
        gaussian = self.gaussian(raw)
        noise = gaussian.noise(indices=chosen, seed=seed)
        z = gaussian.rsample(noise=noise)[:, 0]
        likelihood, prior = self.target.log_likelihood(pair, z).mean(), self.target.log_prior(z).mean()
        objective = likelihood + prior
        figures = {"log_likelihood": likelihood, "log_prior": prior, **_spread(z)}
        if self.proposal_density:
            log_proposal = gaussian.log_prob_from_noise(noise)[:, 0].mean()
            objective = objective - log_proposal
            figures["log_proposal"] = log_proposal
        figures["ess"] = effective_sample_size(weights) / self.num_proposals
        figures["weight_scale"] = self.scale.value
        return objective, _detached(figures)


def _positive(name: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{name} must be positive, got {value}")
    return value


def _spread(z: Tensor) -> dict[str, Tensor]:
    """Variance of the sampled displacements, in squared image voxels, mean over dimensions; z is [N, 3, x, y, z]."""
    return {"variance": z.detach().var(0).mean()} if z.shape[0] > 1 else {}


def _detached(figures: dict[str, Tensor]) -> dict[str, Tensor | float]:
    return {name: value.detach() for name, value in figures.items()}
