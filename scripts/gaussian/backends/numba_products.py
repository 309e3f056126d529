"""Products with L and their gradients on the CPU: numba, vectorized along the rows of the grid.

All loops run over one row of voxels at a time, so that the 45 or 123 rows of entries are read once from memory and
stay in the cache for all right-hand sides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run
from scripts.gaussian.backends.numba_simd import TILE, sum_of_outer_products
from scripts.gaussian.stencil import Stencil


def multiply(stencil: Stencil, entries: Tensor, x: Tensor, transpose: bool) -> Tensor:
    """Lx or Lᵀx; entries of L have shape (B, C, X, Y, Z), x and the result (N, B, 3, X, Y, Z)."""
    x = x.detach().contiguous()
    out = torch.zeros_like(x)
    run(_multiply, entries.flatten(), x.view(-1), out.view(-1), tuple(x.shape), _table(stencil), transpose)
    return out


def outer(stencil: Stencil, rows: Tensor, columns: Tensor, sign: int = 1) -> Tensor:
    """The entries of sign · Σ_n rows_n columns_nᵀ that lie on the pattern of an L with neighbors: the gradient of L.

    Rows and columns have shape (N, B, 3, X, Y, Z), the result (B, C, X, Y, Z), zero where an entry points outside.
    """
    _, batch, _, *grid = rows.shape
    out = torch.zeros((batch, stencil.num_channels, *grid), dtype=rows.dtype)
    kernel, factor = _outer_kernel(stencil.couplings), out.numpy().dtype.type(sign)
    run(kernel, rows.flatten(), columns.flatten(), out.view(-1), tuple(rows.shape), _table(stencil), factor)
    return out


@functools.cache
def _table(stencil: Stencil) -> np.ndarray:
    """(C, 5): offset (3), row channel and column channel of each entry."""
    return np.array([(*entry.offset, entry.row_channel, entry.col_channel) for entry in stencil.table], dtype=np.int64)


@njit
def _add_product(out, a, b):  # type: ignore[no-untyped-def]
    """out += a · b, elementwise."""
    for k in range(len(out)):
        out[k] += a[k] * b[k]


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _multiply(entries, x, out, shape, table, transpose):  # type: ignore[no-untyped-def]
    count, batch, _, nx, ny, nz = shape
    voxels = nx * ny * nz
    channels = len(table)
    stride = batch * 3 * voxels
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        for j in range(ny):
            for channel in range(channels):
                di, dj, dk, to, source = table[channel]
                # (Lx)[v] += L[v, v+o] x[v+o];  (Lᵀx)[u] += L[u-o, u] x[u-o]: the entry belongs to the follower.
                if transpose:
                    di, dj, dk, to, source = -di, -dj, -dk, source, to
                ii, jj = i + di, j + dj
                if ii < 0 or ii >= nx or jj < 0 or jj >= ny:
                    continue
                low, high = max(0, -dk), min(nz, nz - dk)
                here, there = (i * ny + j) * nz + low, (ii * ny + jj) * nz + low + dk
                at = (b * channels + channel) * voxels + (there if transpose else here)
                entry = entries[at : at + high - low]
                for n in range(count):
                    start = n * stride + b * 3 * voxels
                    t, f = start + to * voxels + here, start + source * voxels + there
                    _add_product(out[t : t + high - low], entry, x[f : f + high - low])


@functools.cache
def _outer_kernel(couplings: int) -> Callable[..., None]:
    """`outer` for one pattern; numba freezes it into the code and caches it on disk."""
    full = 1 if couplings == 9 else 0

    @njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
    def kernel(rows, columns, out, shape, table, sign):  # type: ignore[no-untyped-def]
        count, batch, _, nx, ny, nz = shape
        voxels, channels = nx * ny * nz, len(table)
        stride = batch * 3 * voxels
        for job in prange(batch * nx):
            b, i = job // nx, job % nx
            for j in range(ny):
                here = (i * ny + j) * nz
                row, own = b * 3 * voxels + here, b * channels * voxels + here
                for channel in range(6):
                    r, c = row + table[channel, 3] * voxels, row + table[channel, 4] * voxels
                    at = own + channel * voxels
                    _sums(out[at : at + nz], rows, r, columns, c, stride, count, sign)
                for first in range(6, channels, couplings):
                    ii, jj, dk = i + table[first, 0], j + table[first, 1], table[first, 2]
                    if ii < 0 or ii >= nx or jj < 0 or jj >= ny:
                        continue
                    # Voxel k of this row pairs with k + dk of the other: low <= k < high.
                    low, high = max(0, -dk), min(nz, nz - dk)
                    to = own + first * voxels
                    column = b * 3 * voxels + (ii * ny + jj) * nz + dk
                    if high - low >= TILE:
                        for start in range(low, high, TILE):
                            # The last tile overlaps the one before; the same sums are stored twice.
                            k = min(start, high - TILE)
                            sum_of_outer_products(
                                rows, row + k, columns, column + k, voxels, stride, count, out, to + k, sign, full
                            )
                        continue
                    for channel in range(first, first + couplings):
                        r, c = row + table[channel, 3] * voxels + low, column + table[channel, 4] * voxels + low
                        at = own + channel * voxels
                        _sums(out[at + low : at + high], rows, r, columns, c, stride, count, sign)

    return kernel


@njit
def _sums(out, rows, row, columns, column, stride, count, sign):  # type: ignore[no-untyped-def]
    """out[k] = sign · Σ_n rows[row + n·stride + k] · columns[column + n·stride + k]; rows and columns are flat."""
    length = len(out)
    out[:] = 0.0
    for n in range(count):
        r, c = row + n * stride, column + n * stride
        _add_product(out, rows[r : r + length], columns[c : c + length])
    for k in range(length):
        out[k] *= sign
