"""The sparsity pattern of L: which entries exist, and in which parameter channel each one lives.

The dimensions of a displacement field are ordered by voxel (raster order, last axis fastest) with the three channels
innermost. L is lower triangular in that order. Its row for a voxel holds the voxel itself and those neighbors of the
3x3x3 kernel that come before it: its *causal* neighborhood.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.core.fusion import fused
from scripts.gaussian.errors import GaussianError, ShapeError

CrossChannel = Literal["none", "voxel", "full"]
Offset = tuple[int, int, int]

CHANNELS = 3
"""A displacement has three components."""

PRECEDING: tuple[Offset, ...] = tuple(
    (i, j, k) for i, j, k in itertools.product((-1, 0, 1), repeat=3) if (i, j, k) < (0, 0, 0)
)
"""The 13 neighbors of a voxel that come before it in raster order."""

WITHIN: tuple[tuple[int, int], ...] = ((1, 0), (2, 0), (2, 1))
"""(row channel, column channel) of the entries below the diagonal of a voxel's own 3x3 block."""


class Entry(NamedTuple):
    """One parameter channel: L[(v, row_channel), (v + offset, col_channel)] for every voxel v."""

    offset: Offset
    row_channel: int
    col_channel: int


@dataclass(frozen=True)
class Stencil:
    """The pattern of L and its table of parameter channels (decision 3).

    Args:
        cross_channel: `none` leaves L diagonal (3 numbers a voxel, the paper's D); `voxel` couples the three
            components within a voxel and each component with itself in the 13 preceding neighbors (45 numbers);
            `full` couples all components of all neighbors (123 numbers).
        initial_std: standard deviation, in image voxels, that the network's zero output stands for.
        dominance: largest sum of the absolute off-diagonal entries of a row of L, relative to its diagonal; rows beyond
            it are scaled back. Below 1 the inverse of L is bounded: ‖L⁻¹‖∞ ≤ 1 / ((1 − dominance) · smallest diagonal).
            Samples use L⁻ᵀ, so for them this bounds the 1-norm, ‖L⁻ᵀ‖₁ = ‖L⁻¹‖∞: all that one number of noise does.
            None leaves L as it is, and back-substitution may then grow from voxel to voxel without limit.

    Raises:
        GaussianError: for an unknown `cross_channel`, a non-positive `initial_std` or a `dominance` outside (0, 1).

    Examples:
        >>> Stencil("voxel").num_channels, Stencil("full").num_channels
        (45, 123)
    """

    cross_channel: CrossChannel = "voxel"
    initial_std: float = 0.25
    dominance: float | None = None

    def __post_init__(self) -> None:
        if self.cross_channel not in get_args(CrossChannel):
            raise GaussianError(f"cross_channel must be one of {get_args(CrossChannel)}, got {self.cross_channel!r}")
        if not (math.isfinite(self.initial_std) and self.initial_std > 0):
            raise GaussianError(f"initial_std must be positive, got {self.initial_std}")
        if self.dominance is not None and not 0 < self.dominance < 1:
            raise GaussianError(f"dominance must be between 0 and 1, got {self.dominance}")

    @classmethod
    def from_num_channels(cls, num_channels: int) -> Stencil:
        """The pattern that has this many numbers a voxel (3, 45 or 123)."""
        for cross_channel in get_args(CrossChannel):
            if cls(cross_channel).num_channels == num_channels:
                return cls(cross_channel)
        raise ShapeError("stencil_parameters", "(*batch, 3 | 45 | 123, X, Y, Z)", (num_channels,))

    @property
    def is_diagonal(self) -> bool:
        """Whether nothing is coupled."""
        return self.cross_channel == "none"

    @property
    def couplings(self) -> int:
        """Numbers stored for one neighbor: 0, 3 or 9."""
        return {"none": 0, "voxel": CHANNELS, "full": CHANNELS**2}[self.cross_channel]

    @property
    def table(self) -> tuple[Entry, ...]:
        """The entry of L that each parameter channel holds, in channel order."""
        entries = [Entry((0, 0, 0), c, c) for c in range(CHANNELS)]
        if self.is_diagonal:
            return tuple(entries)
        entries += [Entry((0, 0, 0), row, col) for row, col in WITHIN]
        for offset in PRECEDING:
            for row, col in itertools.product(range(CHANNELS), repeat=2):
                if self.cross_channel == "full" or row == col:
                    entries.append(Entry(offset, row, col))
        return tuple(entries)

    @property
    def num_channels(self) -> int:
        """Numbers a voxel: 3, 45 or 123."""
        return CHANNELS if self.is_diagonal else CHANNELS + len(WITHIN) + len(PRECEDING) * self.couplings

    def entries(self, raw: Tensor) -> Tensor:
        """Turn unbounded numbers (network output) into entries of L.

        Args:
            raw: shape (*batch, num_channels, X, Y, Z).

        Returns:
            The same shape; the diagonal is softplus(raw), scaled so that zero stands for `initial_std`; the other
            entries are unchanged, but for rows that exceed `dominance`.
        """
        if raw.ndim < 4 or raw.shape[-4] != self.num_channels:
            raise ShapeError("raw stencil parameters", f"(*batch, {self.num_channels}, X, Y, Z)", raw.shape)
        rows = None if self.is_diagonal else _rows(self.cross_channel, raw.device)
        scale = 1.0 / (self.initial_std * math.log(2.0))  # softplus(0) = log 2
        return _entries(raw, rows, scale, self.dominance)


@fused
def _entries(raw: Tensor, rows: Tensor | None, diagonal_scale: float, dominance: float | None) -> Tensor:
    """See `Stencil.entries`; rows is the row channel of each entry below the diagonal, None for a diagonal L."""
    diagonal, rest = raw[..., :CHANNELS, :, :, :], raw[..., CHANNELS:, :, :, :]
    # A saturated softplus underflows to zero in float32 below -103: keep the smallest normal number.
    diagonal = F.softplus(diagonal).clamp_min(torch.finfo(raw.dtype).tiny) * diagonal_scale
    if rows is None:
        return diagonal
    if dominance is not None:
        # A factor of at most 1 for each entry, the same along a row of L.
        sums = torch.zeros_like(diagonal).index_add(-4, rows, rest.abs())
        factors = (dominance * diagonal / sums.clamp_min(torch.finfo(sums.dtype).tiny)).clamp_max(1.0)
        rest = rest * factors.index_select(-4, rows)
    return torch.cat([diagonal, rest], dim=-4)


@functools.lru_cache(maxsize=32)
def _rows(cross_channel: CrossChannel, device: torch.device) -> Tensor:
    """Row channel of each off-diagonal entry; kept, since a list becomes a tensor on the host and is copied over.

    Made outside of inference mode, or a training that comes later could not use it.
    """
    with torch.inference_mode(False):
        table = Stencil(cross_channel).table[CHANNELS:]
        return torch.tensor([entry.row_channel for entry in table], device=device)


def shift_slices(offset: Offset) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Indices (…, i, j, k) that pair each voxel v (first) with v + offset (second), where both are inside the grid."""

    def first(d: int) -> slice:
        return slice(max(0, -d), -d if d > 0 else None)

    return (..., *(first(d) for d in offset)), (..., *(first(-d) for d in offset))
