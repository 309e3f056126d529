"""Mean and variance of many displacement fields that are seen one at a time."""

from __future__ import annotations

import torch
from torch import Tensor


class FieldMoments:
    """Running mean and variance of weighted fields; two fields in memory, whatever the number of samples.

    Welford's update: differences from the mean so far are squared, not the displacements themselves. A field of 10
    voxels with a spread of 0.1 would lose half of float32's digits in a sum of squares.

    Example:
        >>> moments = FieldMoments()
        >>> for value in (1.0, 3.0):
        ...     moments.add(torch.full((3, 2, 2, 2), value))
        >>> float(moments.mean.max()), float(moments.variance.max())
        (2.0, 2.0)
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._mean: Tensor | None = None
        self._squares: Tensor | None = None

    def add(self, field: Tensor, weight: float = 1.0) -> None:
        """Take one field of any shape, the same for all, into account, and overwrite it: no other copy is needed."""
        if not weight > 0:
            raise ValueError(f"expected a positive weight, got {weight}")
        if self._mean is None or self._squares is None:
            self._mean, self._squares = torch.zeros_like(field), torch.zeros_like(field)
        if field.shape != self._mean.shape:
            raise ValueError(f"expected a field of shape {tuple(self._mean.shape)}, got {tuple(field.shape)}")
        self.weight += weight
        share = weight / self.weight
        delta = field.sub_(self._mean)
        self._mean.add_(delta, alpha=share)
        # w (x − old mean)(x − new mean), and x − new mean = (1 − share) delta
        self._squares.addcmul_(delta, delta, value=weight * (1 - share))

    @property
    def mean(self) -> Tensor:
        """Weighted mean, of the fields' shape."""
        return self._checked()[0]

    @property
    def variance(self) -> Tensor:
        """Unbiased variance of K = Σ weights fields, as ``torch.var`` of all of them; 0 for a single one."""
        _, squares = self._checked()
        return squares / max(self.weight - 1, 1.0)

    def _checked(self) -> tuple[Tensor, Tensor]:
        if self._mean is None or self._squares is None:
            raise ValueError("expected at least one field, got none")
        return self._mean, self._squares
