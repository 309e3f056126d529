"""Detail beyond the model's resolution: gradient steps on the files' own images, after the model has done its part.

The model works at 2 mm, and its fields have control points every 4 mm. Files usually have 1 mm. There, the mean goes on
climbing the same posterior (decisions 8 and 9, summed over 1 mm voxels) with control points every 2 mm, on the work
grid's voxels, and folds have a price. What is found is the same for all samples of the pair; their spread stays that of
the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from scripts.inference.objectives import MeanObjective
from scripts.inference.refine import refine, with_price_on_folds
from scripts.networks.layout import ProposalLayout
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.spline import on_work_grid
from scripts.registration.target import Target

FACTOR = 2
"""Voxels of the images along the edge of a work voxel."""
WINDOW = 9
PRIOR_WEIGHT = 1.0
LEARNING_RATE = 0.3


class Detail(NamedTuple):
    """What is added to every field of a pair."""

    control_points: Tensor  # on the work grid, in work voxels, [3, X, Y, Z]
    gain: float  # in the log-posterior of the images at this resolution


def detail_target() -> Target:
    """The posterior of a field at the images' resolution, as the paper states it at 1 mm, with a price on folds."""
    return with_price_on_folds(Target(NCCLikelihood(WINDOW), DiffusionPrior(PRIOR_WEIGHT)))


def find_detail(
    control_points: Tensor,
    fixed: Tensor,
    moving: Tensor,
    steps: int,
    *,
    factor: int = 2,
    mask: Tensor | None = None,
    progress: Callable[[int], None] | None = None,
    evidence: Callable[[Tensor], Tensor] | None = None,
) -> Detail:
    """Improve a mean field on images of twice the work grid's resolution.

    Args:
        control_points: of the mean field, in work voxels, shape [3, x, y, z].
        fixed: shape [1, 1, 2X, 2Y, 2Z] where the work grid has (X, Y, Z) voxels.
        moving: the same shape.
        steps: gradient steps.
        factor: work voxels along the edge of a field voxel.
        mask: optional weights of the fixed image's voxels, the same shape.
        progress: called with the number of steps done.
        evidence: log-likelihood of what else is known, of control points [1, 3, X, Y, Z] on the work grid in work
            voxels, coarse part and detail together.
    """
    x, y, z = (size // FACTOR for size in fixed.shape[2:])
    coarse = on_work_grid(control_points, factor, (x, y, z))
    objective = MeanObjective(detail_target().to(fixed.device), ProposalLayout(rank=0, deterministic=True))
    refined = refine(
        FACTOR * coarse[None], objective, moving, fixed, steps,
        learning_rate=LEARNING_RATE, mask=mask, progress=progress,
        evidence=None if evidence is None else lambda fine: evidence(fine / FACTOR),
    )  # fmt: skip
    return Detail(refined.raw[0] / FACTOR - coarse, refined.after - refined.before)
