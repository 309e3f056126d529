"""Named errors of the registration's building blocks, each with what was expected and what came."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class RegistrationError(ValueError):
    """Base of all errors raised by `scripts.registration`."""


class ShapeError(RegistrationError):
    """A tensor has another shape than the one that fits its neighbors."""

    def __init__(self, name: str, expected: str, got: Sequence[int]) -> None:
        super().__init__(f"expected {name} of shape {expected}, got {tuple(got)}")


class OptionError(RegistrationError):
    """A setting outside of what the function can do."""

    def __init__(self, name: str, expected: str, got: object) -> None:
        super().__init__(f"expected {name} to be {expected}, got {got!r}")


def check_volume(name: str, volume: Tensor, channels: int | None = None) -> None:
    """Raise a ShapeError unless the shape is [B, channels, X, Y, Z] with at least one voxel."""
    expected = f"[B, {channels or 'C'}, X, Y, Z]"
    if volume.ndim != 5 or (channels is not None and volume.shape[1] != channels):
        raise ShapeError(name, expected, volume.shape)
    if 0 in volume.shape[2:]:
        raise ShapeError(name, f"{expected} with X, Y, Z > 0", volume.shape)


def check_partner(name: str, volume: Tensor, partner: Tensor, channels: int | None = None) -> None:
    """Raise a ShapeError unless the shape is [1 or B, channels, X, Y, Z] with the partner's B, X, Y, Z."""
    batch, grid = partner.shape[0], partner.shape[2:]
    fits = volume.ndim == 5 and volume.shape[0] in (1, batch) and volume.shape[2:] == grid
    if not fits or (channels is not None and volume.shape[1] != channels):
        raise ShapeError(name, f"[1 or {batch}, {channels or 'C'}, {', '.join(map(str, grid))}]", volume.shape)
