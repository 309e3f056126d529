"""Instance optimization: gradient steps on one pair before its fields are drawn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from scripts.gaussian.noise import fold
from scripts.gaussian.stencil import CHANNELS
from scripts.inference.objectives import Objective

Parts = Literal["mean", "all"]


class Refined(NamedTuple):
    """The improved parameters, and by how much."""

    raw: Tensor  # [1, C, x, y, z]
    before: float  # log-posterior of the mean field
    after: float


def refine(
    raw: Tensor,
    objective: Objective,
    moving: Tensor,
    fixed: Tensor,
    steps: int,
    *,
    parts: Parts = "mean",
    learning_rate: float = 0.1,
    mask: Tensor | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Refined:
    """Improve a pair's proposal by gradient steps (Adam) on the training objective, starting at the network's output.

    The step size is in work voxels for the mean. L and R, where asked for, move at a tenth of it: they are numbers of
    the order of one that the network has learned from many pairs.

    Args:
        raw: the network's output, shape [1, C, x, y, z].
        objective: of the training; its σ_α is not changed.
        moving: shape [1, 1, X, Y, Z].
        fixed: the same shape.
        steps: gradient steps.
        parts: `mean`, or `all` for L and R as well.
        learning_rate: step size of the mean, falling to a tenth of it.
        mask: optional weights of the fixed image's voxels, the same shape.
        seed: of the noise.
        progress: called with the number of steps done.

    Returns:
        The parameters with the highest log-posterior of the mean seen at the start or the end; the start if the steps
        made it worse.

    Raises:
        ValueError: for other parts.
    """
    if parts not in ("mean", "all"):
        raise ValueError(f"parts to refine must be 'mean' or 'all', got {parts!r}")
    objective = copy.deepcopy(objective)
    pair = objective.target.prepare(moving, fixed, mask)[0]

    @torch.no_grad()
    def score(values: Tensor) -> float:
        return float(objective.target(pair, objective.layout.mean(values))[0])

    start = raw.detach()
    mean, rest = start[:, :CHANNELS].clone(), start[:, CHANNELS:].clone()
    groups = [{"params": [mean.requires_grad_()], "lr": learning_rate}]
    if parts == "all":
        groups.append({"params": [rest.requires_grad_()], "lr": learning_rate / 10})
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.9 * min(step / max(steps, 1), 1))
    with torch.enable_grad():
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            outcome = objective(torch.cat([mean, rest], dim=1), moving, fixed, fold(seed, 1 + step), mask)
            outcome.loss.backward()
            optimizer.step()
            schedule.step()
            if progress is not None:
                progress(step + 1)
    refined = torch.cat([mean, rest], dim=1).detach()
    before, after = score(start), score(refined)
    return Refined(refined, before, after) if after > before else Refined(start, before, before)
