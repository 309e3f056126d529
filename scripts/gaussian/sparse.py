"""L as an ordinary sparse matrix, for other solvers and for people who want to look at it."""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.gaussian.stencil import CHANNELS, Stencil, shift_slices


def coordinates(stencil: Stencil, entries: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns (int64) and values of all entries (C, X, Y, Z) of one L that lie inside the grid, [N] each.

    Dimension 3v + c is channel c of voxel v in raster order.
    """
    grid = entries.shape[1:]
    # int64: in float32, numbers above 2**24 would collide, and the paper's grid has 24.9 million entries.
    voxel = torch.arange(grid.numel(), dtype=torch.int64, device=entries.device).reshape(grid)
    rows, columns, values = [], [], []
    for channel, (offset, row, col) in enumerate(stencil.table):
        here, there = shift_slices(offset)
        rows.append((CHANNELS * voxel[here] + row).reshape(-1))
        columns.append((CHANNELS * voxel[there] + col).reshape(-1))
        values.append(entries[channel][here].reshape(-1))
    return torch.cat(rows), torch.cat(columns), torch.cat(values)


def to_columns(x: Tensor) -> Tensor:
    """Fields (N, 3, X, Y, Z) as columns of a matrix (3V, N), in the order of L's dimensions."""
    return x.permute(2, 3, 4, 1, 0).reshape(-1, x.shape[0])


def from_columns(columns: Tensor, grid: tuple[int, ...]) -> Tensor:
    """The inverse of `to_columns`: (3V, N) to (N, 3, X, Y, Z)."""
    return columns.reshape(*grid, CHANNELS, -1).permute(4, 3, 0, 1, 2)
