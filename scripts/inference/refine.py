"""Instance optimization: gradient steps on one pair before its fields are drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from scripts.gaussian.noise import fold
from scripts.inference.objectives import Objective
from scripts.registration.prior import FoldPrior
from scripts.registration.target import Pair, Target

Parts = Literal["mean", "all"]

LEARNING_RATE = 0.3
"""Of the mean, in work voxels, falling to a tenth: 25 such steps come farther than 50 of a third of their length."""
FOLD_PRICE = 1000.0
"""Relative to the stiffness of the samples' prior."""

Progress = Callable[[int], None]
"""Called with the number of steps done."""


class RefinedMean(NamedTuple):
    """Improved fields, and by how much."""

    mean: Tensor  # [K, 3, x, y, z]
    before: Tensor  # log-posterior of each field, with the evidence if there is any, (K,)
    after: Tensor


class Refined(NamedTuple):
    """The improved parameters, and by how much."""

    raw: Tensor  # [1, C, x, y, z]
    before: float  # log-posterior of the mean field
    after: float


def refine_mean(
    start: Tensor,
    target: Target,
    pair: Pair,
    steps: int,
    *,
    progress: Progress | None = None,
    evidence: Callable[[Tensor], Tensor] | None = None,
) -> RefinedMean:
    """Let fields climb their own log-posterior (Adam), with a price on folds, see :func:`with_price_on_folds`.

    The training objective of samples is what L and R need; for the mean it is slower and noisier: in as many steps it
    came less than half as far.

    Args:
        start: K fields, [K, 3, x, y, z]; each climbs for itself.
        evidence: log-likelihood of what else is known, of one field [1, 3, x, y, z]; counts as often as the
            likelihood's `evidence_weight` says.

    Returns:
        For each field the better one of start and end.
    """
    climbed = with_price_on_folds(target)
    weight, voxels = target.likelihood.evidence_weight, start.shape[2:].numel()

    def log_posterior(z: Tensor, of: Target) -> Tensor:
        value = of(pair, z)
        if evidence is not None:
            value = value + weight * torch.stack([evidence(field) for field in z.split(1)])
        return value

    def loss(z: Tensor) -> Tensor:
        return -(log_posterior(z, climbed) + climbed.log_mean_prior(z)).sum() / voxels

    with torch.no_grad():
        before = log_posterior(start, target)
    mean = start.detach().clone()
    _climb([(mean, LEARNING_RATE)], lambda _: loss(mean), steps, progress)
    with torch.no_grad():
        after = log_posterior(mean, target)
    better = after > before
    mean = torch.where(better.reshape(-1, 1, 1, 1, 1), mean, start)
    return RefinedMean(mean.detach(), before, torch.where(better, after, before))


def refine_all(
    raw: Tensor, objective: Objective, pair: Pair, steps: int, *, seed: int = 0, progress: Progress | None = None
) -> Refined:
    """Improve all of a pair's parameters, L and R as well, by steps on the training's objective.

    L and R move at a thirtieth of the mean's rate: they are numbers of the order of one that the network has learned
    from many pairs.

    Args:
        raw: the network's output, [1, C, x, y, z].
        objective: of the training; its σ_α is not changed.
        pair: the images, prepared by its posterior.

    Returns:
        The parameters at the start or the end, whichever has the higher log-posterior of the mean.
    """
    climbed = copy.deepcopy(objective)
    climbed.target = with_price_on_folds(objective.target)
    split = objective.layout.mean_channels

    @torch.no_grad()
    def score(values: Tensor) -> float:
        return float(objective.target(pair, objective.layout.means(values)).mean())

    start = raw.detach()
    mean, rest = start[:, :split].clone(), start[:, split:].clone()

    def loss(step: int) -> Tensor:
        return climbed.outcome(torch.cat([mean, rest], dim=1), [pair], [fold(fold(seed, 1 + step), 0)]).loss

    _climb([(mean, LEARNING_RATE), (rest, LEARNING_RATE / 30)], loss, steps, progress)
    refined, before = torch.cat([mean, rest], dim=1).detach(), score(start)
    after = score(refined)
    return Refined(refined, before, after) if after > before else Refined(start, before, before)


def _climb(
    moved: Sequence[tuple[Tensor, float]], loss: Callable[[int], Tensor], steps: int, progress: Progress | None
) -> None:
    """Adam on tensors with their learning rates, in place; the rates fall linearly to a tenth."""
    groups: list[dict[str, Any]] = [{"params": [values.requires_grad_()], "lr": rate} for values, rate in moved]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.9 * min(step / max(steps, 1), 1))
    with torch.enable_grad():
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            loss(step).backward()
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress(step + 1)


def with_price_on_folds(target: Target) -> Target:
    """The posterior of a mean field that is refined: folds have a price, where training has its prior on the mean.

    That prior keeps a network's mean smooth for all pairs at once. A mean that climbs on its own pair is held back by
    it: with the price instead, validation pairs gained about 0.01 in Dice and had a tenth of the folds. With neither,
    they fold. Velocities do not, and have neither.
    """
    price = None
    if target.transform.folds:
        price = FoldPrior(FOLD_PRICE * target.prior.stiffness, factor=target.transform.factor)
    return Target(target.likelihood, target.prior, price, target.transform)
