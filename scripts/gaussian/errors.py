"""Named errors and warnings of the structured Gaussian, each with the figures a person needs to act on them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class GaussianError(ValueError):
    """Base of all errors raised by `scripts.gaussian`."""


class ShapeError(GaussianError):
    """A tensor has another shape than the one that fits its neighbors."""

    def __init__(self, name: str, expected: str, got: Sequence[int]) -> None:
        super().__init__(f"{name} must have shape {expected}, got {tuple(got)} instead")


class NonPositiveDiagonalError(GaussianError):
    """L needs a positive diagonal; a zero or negative entry has no Gaussian."""

    def __init__(self, count: int, total: int, smallest: float) -> None:
        super().__init__(
            f"the diagonal of L must be positive, but {count} of {total} entries are not (smallest {smallest:.3g}); "
            "pass raw network output through Stencil.entries first"
        )


class NonFiniteError(GaussianError):
    """NaN or infinite numbers, counted."""

    def __init__(self, name: str, nans: int, infs: int, total: int) -> None:
        super().__init__(f"{name} has {nans} NaN and {infs} infinite values among {total}")


class NearlySingularError(GaussianError):
    """A triangular solve overflowed: L's diagonal is too small beside its other entries."""

    def __init__(self, samples: int, total: int, voxel: tuple[int, ...], smallest: float) -> None:
        super().__init__(
            f"L is nearly singular: {samples} of {total} right-hand sides overflowed in the triangular solve, "
            f"first at voxel {voxel}; the smallest diagonal entry is {smallest:.3g}"
        )


class NotPositiveDefiniteError(GaussianError):
    """A precision has no Cholesky factor of this pattern."""

    def __init__(self, count: int, total: int, voxel: tuple[int, ...]) -> None:
        super().__init__(
            f"the precision is not positive definite at {count} of {total} voxels, first at {voxel}; "
            "a larger ridge makes it so"
        )


class FactorizationError(GaussianError):
    """cholespy cannot factorize L Lᵀ: its condition is the square of L's, too much for float64."""

    def __init__(self, element: int, total: int, smallest: float, largest: float) -> None:
        super().__init__(
            f"cholespy cannot factorize L Lᵀ of batch element {element} (of {total}): L is nearly singular, "
            f"its diagonal goes from {smallest:.3g} to {largest:.3g}; numba and torch need no factorization"
        )


class OutOfMemoryError(GaussianError, MemoryError):
    """What was asked for does not fit into memory; says how much it would need."""

    def __init__(self, what: str, needed: int, available: int) -> None:
        super().__init__(
            f"{what} needs {needed / 2**30:.2f} GiB, but only {available / 2**30:.2f} GiB are free; "
            "draw fewer samples at a time or use a smaller grid"
        )


class BackendError(GaussianError):
    """A solver backend was named that does not exist, is not installed, or cannot run on this device."""


class BackendWarning(UserWarning):
    """The preferred solver backend is missing and the next one is used."""


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse NaN and infinite numbers by a NonFiniteError with their counts."""
    if not torch.isfinite(tensor.sum()):
        # The sum can overflow although every number is finite: count before judging.
        nans, infs = int(tensor.isnan().sum()), int(tensor.isinf().sum())
        if nans or infs:
            raise NonFiniteError(name, nans, infs, tensor.numel())
