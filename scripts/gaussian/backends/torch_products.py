"""Products with L and their gradients in plain torch, for any device: one shifted multiply-add per entry."""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.gaussian.stencil import Stencil, shift_slices


def multiply(stencil: Stencil, entries: Tensor, x: Tensor, transpose: bool) -> Tensor:
    """Lx or Lᵀx; shapes as in `numba_products.multiply`."""
    out = torch.zeros_like(x)
    for channel, (offset, row, col) in enumerate(stencil.table):
        here, there = shift_slices(offset)
        entry = entries[:, channel][here]
        # (Lx)[v] += L[v, v+o] x[v+o];  (Lᵀx)[v+o] += L[v, v+o] x[v]
        if transpose:
            out[:, :, col][there].addcmul_(entry, x[:, :, row][here])
        else:
            out[:, :, row][here].addcmul_(entry, x[:, :, col][there])
    return out


def outer(stencil: Stencil, rows: Tensor, columns: Tensor, sign: int = 1) -> Tensor:
    """The entries of sign · Σ_n rows_n columns_nᵀ on the pattern of L; shapes as in `numba_products.outer`."""
    _, batch, _, *grid = rows.shape
    out = rows.new_zeros((batch, stencil.num_channels, *grid))
    for channel, (offset, row, col) in enumerate(stencil.table):
        here, there = shift_slices(offset)
        out[:, channel][here] = (rows[:, :, row][here] * columns[:, :, col][there]).sum(0) * sign
    return out
