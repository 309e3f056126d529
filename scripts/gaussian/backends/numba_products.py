"""Products with L and their gradients on the CPU: numba, vectorized along the rows of the grid.

All loops run over one row of voxels at a time, so that the 45 or 123 rows of entries are read once from memory and
stay in the cache for all right-hand sides.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.numba_solve import LOCK, OFFSETS, use_torch_threads
from scripts.gaussian.stencil import Stencil


def multiply(stencil: Stencil, entries: Tensor, x: Tensor, transpose: bool) -> Tensor:
    """Lx or Lᵀx.

    Args:
        stencil: the pattern of L.
        entries: shape (B, C, X, Y, Z).
        x: shape (N, B, 3, X, Y, Z).
        transpose: multiply with Lᵀ.

    Returns:
        shape (N, B, 3, X, Y, Z).
    """
    x = x.detach().contiguous()
    out = torch.zeros_like(x)
    with LOCK:
        use_torch_threads()
        _multiply(entries.detach().contiguous().numpy(), x.numpy(), out.numpy(), OFFSETS, stencil.couplings, transpose)
    return out


def outer(stencil: Stencil, rows: Tensor, columns: Tensor) -> Tensor:
    """The entries of Σ_n rows_n columns_nᵀ that lie on the pattern of L: the gradient of L.

    Args:
        stencil: the pattern of L.
        rows: shape (N, B, 3, X, Y, Z).
        columns: the same shape.

    Returns:
        shape (B, C, X, Y, Z), zero where an entry points outside the grid.
    """
    _, batch, _, *grid = rows.shape
    out = torch.zeros((batch, stencil.num_channels, *grid), dtype=rows.dtype)
    with LOCK:
        use_torch_threads()
        _outer(
            rows.detach().contiguous().numpy(),
            columns.detach().contiguous().numpy(),
            out.numpy(),
            OFFSETS,
            stencil.couplings,
        )
    return out


@njit(inline="always")
def _add_product(out, a, b, low, high, shift):  # type: ignore[no-untyped-def]
    """out[k] += a[k] * b[k + shift] for low <= k < high."""
    for k in range(low, high):
        out[k] += a[k] * b[k + shift]


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _multiply(entries, x, out, offsets, couplings, transpose):  # type: ignore[no-untyped-def]
    count, batch, _, nx, ny, nz = x.shape
    neighbors = 0 if couplings == 0 else 13
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        shifted = np.empty(nz, dtype=x.dtype)
        for j in range(ny):
            for n in range(count):
                for c in range(3):
                    _add_product(out[n, b, c, i, j], entries[b, c, i, j], x[n, b, c, i, j], 0, nz, 0)
                if couplings > 0:
                    for within in range(3):  # channels 3, 4, 5 hold (1, 0), (2, 0), (2, 1)
                        row, col = (1, 0) if within == 0 else ((2, 0) if within == 1 else (2, 1))
                        to, source = (col, row) if transpose else (row, col)
                        _add_product(out[n, b, to, i, j], entries[b, 3 + within, i, j], x[n, b, source, i, j], 0, nz, 0)
            for o in range(neighbors):
                # (Lx)[v] += L[v, v+o] x[v+o];  (Lᵀx)[u] += L[u-o, u] x[u-o]
                sign = -1 if transpose else 1
                ii, jj, dk = i + sign * offsets[o, 0], j + sign * offsets[o, 1], sign * offsets[o, 2]
                if ii < 0 or ii >= nx or jj < 0 or jj >= ny:
                    continue
                low, high = max(0, -dk), min(nz, nz - dk)
                for row in range(3):
                    for col in range(3):
                        if couplings == 3 and row != col:
                            continue
                        channel = 6 + 3 * o + row if couplings == 3 else 6 + 9 * o + 3 * row + col
                        if transpose:
                            # The entry belongs to the follower: bring its row into step with u once for all n.
                            for k in range(low, high):
                                shifted[k] = entries[b, channel, ii, jj, k + dk]
                            for n in range(count):
                                _add_product(out[n, b, col, i, j], shifted, x[n, b, row, ii, jj], low, high, dk)
                        else:
                            for n in range(count):
                                _add_product(
                                    out[n, b, row, i, j], entries[b, channel, i, j], x[n, b, col, ii, jj], low, high, dk
                                )


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _outer(rows, columns, out, offsets, couplings):  # type: ignore[no-untyped-def]
    count, batch, _, nx, ny, nz = rows.shape
    neighbors = 0 if couplings == 0 else 13
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        for j in range(ny):
            for n in range(count):
                for c in range(3):
                    _add_product(out[b, c, i, j], rows[n, b, c, i, j], columns[n, b, c, i, j], 0, nz, 0)
                if couplings > 0:
                    _add_product(out[b, 3, i, j], rows[n, b, 1, i, j], columns[n, b, 0, i, j], 0, nz, 0)
                    _add_product(out[b, 4, i, j], rows[n, b, 2, i, j], columns[n, b, 0, i, j], 0, nz, 0)
                    _add_product(out[b, 5, i, j], rows[n, b, 2, i, j], columns[n, b, 1, i, j], 0, nz, 0)
                for o in range(neighbors):
                    ii, jj, dk = i + offsets[o, 0], j + offsets[o, 1], offsets[o, 2]
                    if ii < 0 or ii >= nx or jj < 0 or jj >= ny:
                        continue
                    low, high = max(0, -dk), min(nz, nz - dk)
                    for row in range(3):
                        if couplings == 3:
                            _add_product(
                                out[b, 6 + 3 * o + row, i, j],
                                rows[n, b, row, i, j],
                                columns[n, b, row, ii, jj],
                                low,
                                high,
                                dk,
                            )
                        else:
                            for col in range(3):
                                _add_product(
                                    out[b, 6 + 9 * o + 3 * row + col, i, j],
                                    rows[n, b, row, i, j],
                                    columns[n, b, col, ii, jj],
                                    low,
                                    high,
                                    dk,
                                )
