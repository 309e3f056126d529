"""Triangular solves in plain torch, on the CPU and on CUDA: a wavefront of independent voxels at a time.

Voxels with equal 4i + 2j + k do not depend on each other: every offset of the causal neighborhood changes that number
by at least one. The solve is therefore (X-1)*4 + (Y-1)*2 + Z vectorized steps (about 540 at 72x80x96), whatever the
number of right-hand sides.
"""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.gaussian.stencil import CHANNELS, PRECEDING, WITHIN, Stencil


class _Schedule(NamedTuple):
    order: Tensor  # (V,) int64: voxels sorted by wavefront
    sizes: tuple[int, ...]  # voxels in each wavefront
    neighbors: Tensor  # (V, 13) int64: preceding neighbors of order[·]; V stands for "outside"
    followers: Tensor  # (V, 13) int64: the same for the neighbors that follow


@functools.lru_cache(maxsize=8)
def _schedule(grid: tuple[int, int, int], device: torch.device) -> _Schedule:
    nx, ny, nz = grid
    voxels = nx * ny * nz
    i, j, k = torch.meshgrid(*(torch.arange(n, dtype=torch.int64) for n in grid), indexing="ij")
    front = (4 * i + 2 * j + k).reshape(-1)
    order = torch.argsort(front, stable=True)
    sizes = tuple(size for size in torch.bincount(front).tolist() if size)

    def index(sign: int) -> Tensor:
        columns = []
        for di, dj, dk in PRECEDING:
            a, b, c = i + sign * di, j + sign * dj, k + sign * dk
            inside = (a >= 0) & (a < nx) & (b >= 0) & (b < ny) & (c >= 0) & (c < nz)
            columns.append(torch.where(inside, (a * ny + b) * nz + c, voxels).reshape(-1))
        return torch.stack(columns, dim=1)[order]

    return _Schedule(order.to(device), sizes, index(1).to(device), index(-1).to(device))


class Packed(NamedTuple):
    """Entries of L by voxel in wavefront order, M = 13 neighbors."""

    diagonal: Tensor  # (V, 3, B)
    within: Tensor  # (V, 3, B), in the order of WITHIN
    neighbors: Tensor  # (V, M, 3, B) or, all channels coupled, (V, M, 3 other, 3 own, B)


def pack(stencil: Stencil, entries: Tensor, transpose: bool) -> Packed:
    """Reorder L's entries by wavefront; `entries` has shape (B, C, X, Y, Z)."""
    batch, _, *grid = entries.shape
    schedule = _schedule((grid[0], grid[1], grid[2]), entries.device)
    flat = entries.detach().reshape(batch, stencil.num_channels, -1).permute(2, 1, 0)  # (V, C, B)
    own = flat[schedule.order]
    pairs = own[:, CHANNELS + len(WITHIN) :]
    if transpose:
        # A column of L gathers each neighbor's entry from that follower; outside there is none.
        padded = torch.cat([flat, torch.zeros_like(flat[:1])])[:, CHANNELS + len(WITHIN) :]
        padded = padded.unflatten(1, (len(PRECEDING), stencil.couplings))
        index = torch.arange(len(PRECEDING), device=entries.device)
        pairs = padded[schedule.followers, index]  # (V, M, couplings, B)
    else:
        pairs = pairs.unflatten(1, (len(PRECEDING), stencil.couplings))
    if stencil.cross_channel == "full":
        pairs = pairs.unflatten(2, (CHANNELS, CHANNELS))  # (row, col)
        if not transpose:
            pairs = pairs.transpose(2, 3)  # own channel last: the column of L for Lᵀ, its row for L
    return Packed(own[:, :CHANNELS], own[:, CHANNELS : CHANNELS + len(WITHIN)], pairs)


def solve(stencil: Stencil, packed: Packed, x: Tensor, transpose: bool, overwrite: bool = False) -> Tensor:
    """L⁻ᵀx or L⁻¹x; shapes as in `numba_solve.solve`. `overwrite` has no effect here."""
    del overwrite
    count, batch, _, *grid = x.shape
    schedule = _schedule((grid[0], grid[1], grid[2]), x.device)
    voxels = schedule.order.numel()
    # Voxel-major working copy with one row of zeros for "outside".
    work = x.new_zeros((voxels + 1, CHANNELS, batch, count))
    work[:-1] = x.detach().reshape(count, batch, CHANNELS, voxels).permute(3, 2, 1, 0)
    index = schedule.followers if transpose else schedule.neighbors
    bounds = torch.tensor([0, *schedule.sizes]).cumsum(0).tolist()
    steps = list(itertools.pairwise(bounds))
    channels = (2, 1, 0) if transpose else (0, 1, 2)
    for start, stop in reversed(steps) if transpose else steps:
        here = schedule.order[start:stop]
        others = work[index[start:stop]]  # (m, M, 3, B, N)
        pairs = packed.neighbors[start:stop]
        if stencil.cross_channel == "full":
            known = torch.einsum("mkdcb,mkdbn->mcbn", pairs, others)
        else:
            known = torch.einsum("mkcb,mkcbn->mcbn", pairs, others)
        right = work[here] - known
        solved: dict[int, Tensor] = {}
        for channel in channels:
            value = right[:, channel]
            for slot, (row, col) in enumerate(WITHIN):
                other = col if row == channel else row
                if channel in (row, col) and other in solved:
                    value = value - packed.within[start:stop, slot, :, None] * solved[other]
            solved[channel] = value / packed.diagonal[start:stop, channel, :, None]
        work[here] = torch.stack([solved[channel] for channel in range(CHANNELS)], dim=1)
    return work[:-1].permute(3, 2, 1, 0).reshape(x.shape).contiguous()
