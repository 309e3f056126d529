"""Detail beyond the model's resolution: gradient steps on the files' own images, after the model has done its part.

The model works at 2 mm, and its fields have control points every 4 mm. Files usually have 1 mm. There, the mean goes on
climbing the same posterior (its prior, and its likelihood for finer images, summed over 1 mm voxels) with control
points every 2 mm, on the work grid's voxels, and folds have a price. What is found is the same for all samples of the
pair; their spread stays that of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from scripts.inference.refine import Progress, refine_mean
from scripts.registration.spline import on_work_grid
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform

FACTOR = 2
"""Voxels of the images along the edge of a work voxel."""


class Detail(NamedTuple):
    """What is added to every field of a pair."""

    control_points: Tensor  # on the work grid, in work voxels, [3, X, Y, Z]
    gain: float  # in the log-posterior of the images at this resolution


def detail_target(target: Target) -> Target:
    """The same posterior for a displacement at the images' resolution."""
    return Target(target.likelihood.finer(), target.prior, None, DisplacementTransform(FACTOR))


def find_detail(
    control_points: Tensor,
    fixed: Tensor,
    moving: Tensor,
    steps: int,
    *,
    target: Target,
    factor: int = 2,
    mask: Tensor | None = None,
    progress: Progress | None = None,
    evidence: Callable[[Tensor], Tensor] | None = None,
) -> Detail:
    """Improve a mean field on images of twice the work grid's resolution.

    Args:
        control_points: of the mean field, in work voxels, shape [3, x, y, z].
        fixed: shape [1, 1, 2X, 2Y, 2Z] where the work grid has (X, Y, Z) voxels.
        factor: work voxels along the edge of a field voxel.
        evidence: log-likelihood of what else is known, of control points [1, 3, X, Y, Z] on the work grid in work
            voxels, coarse part and detail together.
    """
    x, y, z = (size // FACTOR for size in fixed.shape[2:])
    coarse, finer = on_work_grid(control_points, factor, (x, y, z)), detail_target(target)
    refined = refine_mean(
        FACTOR * coarse[None], finer, finer.prepare(moving, fixed, mask)[0], steps, progress=progress,
        evidence=None if evidence is None else lambda fine: evidence(fine / FACTOR),
    )  # fmt: skip
    return Detail(refined.mean[0] / FACTOR - coarse, float((refined.after - refined.before)[0]))
