"""What the sampled fields say on the work grid: mean, spread, volume change, folds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scripts.posterior.field_moments import FieldMoments
from scripts.posterior.folds import jacobian_determinant
from scripts.registration.space import PairSpace

SMALLEST_DETERMINANT = 1e-3
"""Logarithms are taken of at least this: a folded voxel has none."""


class FieldSummary(NamedTuple):
    """Moments of the posterior of the displacement."""

    mean: Tensor  # of the control points, [3, x, y, z], work voxels
    std_axes: Tensor  # along R, A, S, [3, X, Y, Z] on the work grid, mm
    std: Tensor  # of the length, [X, Y, Z], mm
    log_jacobian: Tensor  # posterior mean of log det, [X, Y, Z]
    fold_probability: Tensor  # [X, Y, Z]
    fold_percent: float  # of voxels, mean over the samples


class FieldAccumulator:
    """Takes sampled fields one at a time; a handful of volumes in memory, whatever their number."""

    def __init__(self, space: PairSpace) -> None:
        self.space = space
        self._control, self._displacement = FieldMoments(), FieldMoments()
        self._log_jacobian: Tensor | None = None
        self._folds: Tensor | None = None
        self._weight = 0.0

    def add(self, control_points: Tensor, weight: float) -> None:
        """Take one field into account: control points [3, x, y, z] in work voxels, and how often it was drawn."""
        ddf = self.space.on_work(control_points[None])
        determinant = jacobian_determinant(ddf)[0]
        if self._log_jacobian is None or self._folds is None:
            self._log_jacobian, self._folds = torch.zeros_like(determinant), torch.zeros_like(determinant)
        self._folds.add_(determinant <= 0, alpha=weight)
        self._log_jacobian.add_(determinant.clamp_min_(SMALLEST_DETERMINANT).log_(), alpha=weight)
        self._weight += weight
        self._displacement.add(self.space.to_mm(ddf)[0], weight)
        self._control.add(control_points.clone(), weight)  # the moments overwrite what they are given

    def summary(self) -> FieldSummary:
        """The moments so far."""
        if self._log_jacobian is None or self._folds is None:
            raise ValueError("expected at least one field, got none")
        variance = self._displacement.variance
        folds = self._folds / self._weight
        return FieldSummary(
            self._control.mean,
            variance.sqrt(),
            variance.sum(0).sqrt(),
            self._log_jacobian / self._weight,
            folds,
            100 * float(folds.double().mean()),
        )
