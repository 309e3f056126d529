"""Mean displacements of several weighted sets of the same samples, each sample seen once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from scripts.registration.spline import upsample


class MeanFields:
    """Means of T weighted sets of U samples, on the grid where displacements are linear.

    A displacement is the spline of its control points, so the mean is the spline of the mean control points: an eighth
    of the numbers. Only velocities that are integrated on the image grid have none; their displacements are averaged.

    Args:
        transform: what a sampled field means.
        shape: the image grid (X, Y, Z).
        counts: weight of each sample in each set, shape [T, U].

    Example:
        >>> from scripts.registration.transform import DisplacementTransform
        >>> means = MeanFields(DisplacementTransform(), (2, 2, 2), torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
        >>> for position, value in enumerate((1.0, 3.0)):
        ...     ddf = means.add(position, torch.full((1, 3, 1, 1, 1), value))
        >>> [float(mean.max()) for mean in means]
        [2.0, 3.0]
    """

    def __init__(self, transform: nn.Module, shape: Sequence[int], counts: Tensor) -> None:
        self.transform, self.shape = transform, shape
        self._splines = hasattr(transform, "control_points") and getattr(transform, "grid", "field") == "field"
        self._shares = counts.double() / counts.double().sum(1, keepdim=True)  # [T, U]
        self._sums: Tensor | None = None  # [T, D]
        self._grid: torch.Size = torch.Size()  # [1, 3, x, y, z] or [1, 3, X, Y, Z], of D numbers

    def add(self, position: int, field: Tensor) -> Tensor:
        """Take one sample in.

        Args:
            position: which of the U samples.
            field: shape [1, 3, x, y, z].

        Returns:
            Its displacement on the image grid, shape [1, 3, X, Y, Z].
        """
        values = self._linear(field)
        if self._sums is None:
            self._grid, self._sums = values.shape, values.new_zeros(len(self._shares), values.numel())
        self._sums.addr_(self._shares[:, position].to(values), values.flatten())
        return self._displacement(values)

    def __iter__(self) -> Iterator[Tensor]:
        """The T means on the image grid, shape [1, 3, X, Y, Z] each."""
        if self._sums is None:
            raise ValueError("expected at least one sample, got none")
        for mean in self._sums:
            yield self._displacement(mean.view(self._grid))

    def _linear(self, field: Tensor) -> Tensor:
        """What is averaged: control points, or else displacements."""
        if self._splines:
            return self.transform.control_points(field)  # type: ignore[operator]
        return self.transform(field, self.shape)

    def _displacement(self, values: Tensor) -> Tensor:
        """On the image grid, of what is averaged."""
        return upsample(values, int(self.transform.factor), self.shape) if self._splines else values  # type: ignore[arg-type]
