"""Instance optimization: gradient steps on one pair before its fields are drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from scripts.gaussian.noise import fold
from scripts.gaussian.stencil import CHANNELS
from scripts.inference.objectives import MeanObjective, Objective
from scripts.networks.layout import ProposalLayout
from scripts.registration.prior import FoldPrior
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform

Parts = Literal["mean", "all"]


class Refined(NamedTuple):
    """The improved parameters, and by how much."""

    raw: Tensor  # [1, C, x, y, z]
    before: float  # log-posterior of the mean field, with the evidence if there is any
    after: float


def refine(
    raw: Tensor,
    objective: Objective,
    moving: Tensor,
    fixed: Tensor,
    steps: int,
    *,
    parts: Parts = "mean",
    learning_rate: float = 0.3,
    mask: Tensor | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    evidence: Callable[[Tensor], Tensor] | None = None,
) -> Refined:
    """Improve a pair's proposal by gradient steps (Adam), starting at the network's output.

    The mean alone climbs its own log-posterior, with a price on folds, see :func:`with_price_on_folds`. The training
    objective of samples is what L and R need; for the mean it is slower and noisier: in as many steps it came less than
    half as far.
    25 long steps come farther than 50 of a third of their length did, in half the time. The step size is in work voxels
    for the mean. L and R, where asked for, move at a thirtieth of it: they are numbers of the order of one that the
    network has learned from many pairs.

    Args:
        raw: the network's output, shape [1, C, x, y, z].
        objective: of the training; its σ_α is not changed. For the mean alone only its posterior and layout count.
        moving: shape [1, 1, X, Y, Z].
        fixed: the same shape.
        steps: gradient steps.
        parts: `mean`, or `all` for L and R as well.
        learning_rate: step size of the mean, falling to a tenth of it.
        mask: optional weights of the fixed image's voxels, the same shape.
        seed: of the noise, where the objective draws any.
        progress: called with the number of steps done.
        evidence: log-likelihood of what else is known, of a mean field [1, 3, x, y, z]; counts
            :func:`evidence_weight` times.

    Returns:
        The parameters with the highest log-posterior of the mean seen at the start or the end; the start if the steps
        made it worse.

    Raises:
        ValueError: for other parts.
    """
    climbed = _climbed(objective, parts)
    pair = objective.target.prepare(moving, fixed, mask)[0]
    weight = evidence_weight(objective.target)

    @torch.no_grad()
    def score(values: Tensor) -> float:
        mean = objective.layout.mean(values)
        value = objective.target(pair, mean)[0]
        return float(value if evidence is None else value + weight * evidence(mean))

    start = raw.detach()
    before = score(start)
    mean, rest = start[:, :CHANNELS].clone(), start[:, CHANNELS:].clone()
    moved = [mean] if parts == "mean" else [mean, rest]
    rates = (learning_rate, learning_rate / 30)
    groups = [{"params": [part.requires_grad_()], "lr": rate} for part, rate in zip(moved, rates, strict=False)]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.9 * min(step / max(steps, 1), 1))
    with torch.enable_grad():
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            outcome = climbed(torch.cat(moved, dim=1), moving, fixed, fold(seed, 1 + step), mask)
            loss = outcome.loss
            if evidence is not None:  # losses are per voxel of the field
                loss = loss - weight * evidence(mean) / mean.shape[2:].numel()
            loss.backward()
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress(step + 1)
    refined = torch.cat([mean, rest], dim=1).detach()
    after = score(refined)
    return Refined(refined, before, after) if after > before else Refined(start, before, before)


def _climbed(objective: Objective, parts: Parts) -> Objective:
    """What the steps climb: for the mean alone, of the mean's three channels; else a copy with a σ_α of its own."""
    if parts not in get_args(Parts):
        raise ValueError(f"parts to refine must be 'mean' or 'all', got {parts!r}")
    if parts == "all":
        climbed = copy.deepcopy(objective)
        climbed.target = with_price_on_folds(climbed.target)
        return climbed
    return MeanObjective(with_price_on_folds(objective.target), ProposalLayout(rank=0, deterministic=True))


def evidence_weight(target: Target) -> float:
    """How often a number that an expert gives counts beside the images.

    Their log-likelihood sums a correlation over all voxels, although those of a window share it: it counts each
    independent piece of the images window³ times, and more where σ is smaller than in decision 8.
    """
    likelihood = target.likelihood
    return float(getattr(likelihood, "window", 1)) ** 3 * (0.5 / float(getattr(likelihood, "sigma", 0.5))) ** 2


FOLD_PRICE = 1000.0
"""Relative to the weight of the samples' prior."""


def with_price_on_folds(target: Target) -> Target:
    """The posterior of a mean field that is refined: folds have a price, where training has its prior on the mean.

    That prior keeps a network's mean smooth for all pairs at once. A mean that climbs on its own pair is held back by
    it: with the price instead, validation pairs gained about 0.01 in Dice and had a tenth of the folds. With neither,
    they fold. Velocities do not, and have neither.
    """
    if not isinstance(target.transform, DisplacementTransform):
        return Target(target.likelihood, target.prior, None, target.transform)
    price = FoldPrior(FOLD_PRICE * float(getattr(target.prior, "weight", 1.0)), factor=target.transform.factor)
    return Target(target.likelihood, target.prior, price, target.transform)


@dataclass(frozen=True)
class Refinement:
    """How every pair of an evaluation is refined; not at all without steps.

    Attributes:
        objective: of the training, see :func:`refine`; None if nothing is refined.
        steps: gradient steps on each pair.
        parts: `mean`, or `all` for L and R as well.

    Raises:
        ValueError: for steps that are no whole number of at least 0, other parts, or steps without an objective.
    """

    objective: Objective | None = None
    steps: int = 0
    parts: Parts = "mean"

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 0:
            raise ValueError(f"refine_steps must be a whole number of at least 0, got {self.steps!r}")
        if self.parts not in get_args(Parts):
            raise ValueError(f"refine_parts must be {' or '.join(get_args(Parts))}, got {self.parts!r}")
        if self.steps and self.objective is None:
            raise ValueError("refinement needs the objective of the training, got none")

    def __call__(self, raw: Tensor, moving: Tensor, fixed: Tensor, seed: int = 0) -> Tensor:
        """The network's output of a pair, refined; arguments and result as of :func:`refine`."""
        if not self.steps or self.objective is None:
            return raw
        return refine(raw, self.objective, moving, fixed, self.steps, parts=self.parts, seed=seed).raw

    @property
    def settings(self) -> dict[str, int | float | str]:
        """All that a refined result depends on beside the pair, the weights and the posterior."""
        settings: dict[str, int | float | str] = {"refine_steps": self.steps, "refine_parts": self.parts}
        if self.steps and self.parts == "all":
            settings["objective"] = type(self.objective).__name__
            for name, value in vars(self.objective).items():
                # What does not change a result is no reason to refuse another one beside it.
                if isinstance(value, int | float | str) and name not in ("training", "chunk") and name[0] != "_":
                    settings[f"objective.{name}"] = value
        return settings
