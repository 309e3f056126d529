"""Triangular solves on the CPU: numba, right-hand sides in vector lanes, threads over blocks of them.

A block of right-hand sides sweeps the grid voxel by voxel. Only two planes of it are kept, samples innermost, small
enough for the cache; rows are transposed into and out of them on the way, so that the tensors outside keep their
usual layout and each number crosses the memory bus once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run
from scripts.gaussian.backends.numba_simd import TILE, prefetch, transpose_tile, update_voxel
from scripts.gaussian.stencil import PRECEDING, Stencil

LANES = (32, 16, 8)
"""Block sizes, widest first. 32 keeps a voxel's three sums in six AVX-512 or twelve AVX2 registers."""

OFFSETS = np.array(PRECEDING, dtype=np.int64)


def pack(stencil: Stencil, entries: Tensor, transpose: bool) -> Tensor:
    """Reorder L for the sweep: all numbers of a voxel side by side, ready to multiply.

    Args:
        entries: of an L with neighbors, shape (B, C, X, Y, Z).
        transpose: for L⁻ᵀ, gather the entries of a voxel's column (its followers); for L⁻¹ those of its row.

    Returns:
        shape (B, X, Y, Z, C): inverse diagonal, then negated couplings, zero where the neighbor is outside.
    """
    batch, channels, *grid = entries.shape
    packed = torch.empty((batch, *grid, channels), dtype=entries.dtype)
    run(_pack, entries, packed, OFFSETS, stencil.couplings, transpose)
    return packed


def solve(stencil: Stencil, packed: Tensor, x: Tensor, transpose: bool, overwrite: bool = False) -> Tensor:
    """L⁻ᵀx or L⁻¹x.

    Args:
        packed: what `pack` returned for the same `transpose`, shape (B, X, Y, Z, C).
        x: right-hand sides, shape (N, B, 3, X, Y, Z).
        overwrite: put the result into x's memory if x is contiguous; saves the cost of fresh pages.

    Returns:
        shape (N, B, 3, X, Y, Z).
    """
    x = x.detach().contiguous()
    out = x if overwrite else torch.empty_like(x)
    if out.numel() == 0:
        return out
    sides, threads = x.shape[0] * x.shape[1], torch.get_num_threads()
    lanes = next((lanes for lanes in LANES if sides >= lanes * threads), LANES[-1])
    if x.dtype == torch.float64:
        lanes = min(lanes, 16)  # twice as wide: 32 lanes would not fit the registers
    kernel = _kernel(lanes, stencil.couplings)
    run(kernel, packed.view(-1), x.view(-1), out.view(-1), tuple(x.shape), OFFSETS, transpose)
    return out


@njit(parallel=True, cache=True, nogil=True)
def _pack(entries, packed, offsets, couplings, transpose):  # type: ignore[no-untyped-def]
    batch, _, nx, ny, nz = entries.shape
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        sign = -1 if transpose else 1
        for j in range(ny):
            # Channel order of the sweep: back-substitution ends with channel 0, forward substitution with channel 2.
            # Own couplings (row, col): channels 3, 4, 5 hold (1, 0), (2, 0), (2, 1).
            for k in range(nz):
                for c in range(3):
                    channel = c if transpose else 2 - c
                    packed[b, i, j, k, c] = 1.0 / entries[b, channel, i, j, k]
                    packed[b, i, j, k, 3 + c] = -entries[b, 3 + channel, i, j, k]
            for o in range(13):
                # L[v, v + offset]: for a column gather from the follower v = u - offset, for a row from v itself.
                ii, jj, dk = i + sign * offsets[o, 0], j + sign * offsets[o, 1], sign * offsets[o, 2]
                inside = 0 <= ii < nx and 0 <= jj < ny
                k_low, k_high = max(0, -dk), min(nz, nz - dk)
                for d in range(3):
                    for c in range(3):
                        if couplings == 3 and c != d:
                            continue
                        # (other channel d, own channel c) in sweep order -> the parameter channel of L's entry.
                        if couplings == 3:
                            slot = 6 + 3 * o + d
                            channel = 6 + 3 * o + (d if transpose else 2 - d)
                        else:
                            slot = 6 + 9 * o + 3 * d + c
                            row, col = (d, c) if transpose else (2 - c, 2 - d)
                            channel = 6 + 9 * o + 3 * row + col
                        for k in range(nz):
                            packed[b, i, j, k, slot] = 0.0
                        if inside and transpose:
                            for k in range(k_low, k_high):
                                packed[b, i, j, k, slot] = -entries[b, channel, ii, jj, k + dk]
                        elif inside:
                            for k in range(k_low, k_high):
                                packed[b, i, j, k, slot] = -entries[b, channel, i, j, k]


@njit(inline="always")
def _move_row(inward, x, start, sample_stride, samples, nz, scratch, to, step):  # type: ignore[no-untyped-def]
    """Row of one channel from (samples, nz) in x to (nz, lanes) in scratch, or back; tiles, and what is left over."""
    tiled_samples = samples - samples % TILE
    for s in range(0, samples, TILE):
        tiled_k = nz - nz % TILE if s < tiled_samples else 0
        for k in range(0, tiled_k, TILE):
            outside, inside = start + s * sample_stride + k, to + k * step + s
            if inward:
                transpose_tile(x, outside, sample_stride, scratch, inside, step)
            else:
                transpose_tile(scratch, inside, step, x, outside, sample_stride)
        for lane in range(s, min(s + TILE, samples)):
            for k in range(tiled_k, nz):
                if inward:
                    scratch[to + k * step + lane] = x[start + lane * sample_stride + k]
                else:
                    x[start + lane * sample_stride + k] = scratch[to + k * step + lane]


@functools.cache
def _kernel(lanes: int, couplings: int) -> Callable[..., None]:
    """The sweep for one block size and pattern; numba freezes both into the code and caches it on disk."""

    @njit(parallel=True, cache=True, nogil=True)
    def kernel(packed, x, out, shape, offsets, transpose):  # type: ignore[no-untyped-def]
        count, batch, _, nx, ny, nz = shape
        numbers = 6 + 13 * couplings
        voxels = nx * ny * nz
        blocks = (count + lanes - 1) // lanes
        voxel = 3 * lanes  # scratch: rows of nz voxels between two of zeros
        row = (nz + 2) * voxel
        ring = ny + 2  # rows from the one before the same row of the previous plane to this one
        direction = -1 if transpose else 1  # the sweep for Lᵀ starts at the last voxel
        sample_stride = batch * 3 * voxels
        for job in prange(batch * blocks):
            b, block = job // blocks, job % blocks
            samples = min(lanes, count - block * lanes)
            # Start on a cache line: a vector that straddles two costs two loads.
            unaligned = np.zeros((ring + 1) * row + 16, dtype=x.dtype)
            scratch = unaligned[(-unaligned.ctypes.data % 64) // x.itemsize :]
            # Where the neighbors are relative to a voxel, and its channels in the order of the sweep.
            table = np.empty(16, dtype=np.int64)
            for c in range(3):
                table[13 + c] = (c if transpose else 2 - c) * lanes
            base = (block * lanes * batch + b) * 3 * voxels
            for plane_step in range(nx):
                i = nx - 1 - plane_step if transpose else plane_step
                for row_step in range(ny):
                    j = ny - 1 - row_step if transpose else row_step
                    turn = plane_step * ny + row_step
                    at = (turn % ring) * row + voxel
                    for o in range(13):
                        # Solved before: plane_step + di, row_step + dj; outside the grid stands the row of zeros.
                        di, dj, dk = offsets[o, 0], offsets[o, 1], offsets[o, 2]
                        inside = plane_step + di >= 0 and 0 <= row_step + dj < ny
                        place = (turn + di * ny + dj) % ring if inside else ring
                        table[o] = (place * row + voxel - at) + direction * dk * voxel
                    line = (i * ny + j) * nz
                    for c in range(3):
                        start = base + c * voxels + line
                        _move_row(True, x, start, sample_stride, samples, nz, scratch, at + c * lanes, voxel)
                    first = nz - 1 if transpose else 0
                    at_voxel = at + first * voxel
                    at_packed = (b * voxels + line + first) * numbers
                    # The next row lies in 3 * samples places, more than hardware prefetches by itself: ask for them
                    # one by one, spread over the voxels of this row.
                    next_line = base + line + direction * nz
                    due, channel = 0, 0
                    for _ in range(nz):
                        update_voxel(scratch, packed, table, at_voxel, at_packed, lanes, couplings)
                        due += 3 * samples
                        while due >= nz:
                            due -= nz
                            for k in range(0, nz, 16):
                                prefetch(x, next_line + k)
                            next_line += voxels
                            channel += 1
                            if channel == 3:
                                channel = 0
                                next_line += sample_stride - 3 * voxels
                        at_voxel += direction * voxel
                        at_packed += direction * numbers
                    for c in range(3):
                        start = base + c * voxels + line
                        _move_row(False, out, start, sample_stride, samples, nz, scratch, at + c * lanes, voxel)

    return kernel
