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
    place: Tensor  # (V,) int64: where each voxel is in that order
    bounds: tuple[tuple[int, int], ...]  # of each wavefront in that order
    neighbors: Tensor  # (V, 13) int64: places of the preceding neighbors of order[·]; V stands for "outside"
    followers: Tensor  # (V, 13) int64: the same for the neighbors that follow


@functools.lru_cache(maxsize=8)
def schedule(grid: tuple[int, int, int], device: torch.device) -> _Schedule:
    """Which voxels of a grid do not depend on each other, and where their neighbors are."""
    nx, ny, nz = grid
    voxels = nx * ny * nz
    i, j, k = torch.meshgrid(*(torch.arange(n, dtype=torch.int64) for n in grid), indexing="ij")
    front = (4 * i + 2 * j + k).reshape(-1)
    order = torch.argsort(front, stable=True)
    place = torch.empty_like(order)
    place[order] = torch.arange(voxels)
    sizes = [size for size in torch.bincount(front).tolist() if size]
    bounds = tuple(itertools.pairwise(itertools.accumulate(sizes, initial=0)))
    places = torch.cat([place, torch.tensor([voxels])])

    def index(sign: int) -> Tensor:
        columns = []
        for di, dj, dk in PRECEDING:
            a, b, c = i + sign * di, j + sign * dj, k + sign * dk
            inside = (a >= 0) & (a < nx) & (b >= 0) & (b < ny) & (c >= 0) & (c < nz)
            columns.append(torch.where(inside, (a * ny + b) * nz + c, voxels).reshape(-1))
        return places[torch.stack(columns, dim=1)[order]]

    return _Schedule(order.to(device), place.to(device), bounds, index(1).to(device), index(-1).to(device))


class Packed(NamedTuple):
    """L by voxel in wavefront order, for x_v = P⁻¹ b_v − Σ_k (P⁻¹ A_k) x_k with the voxel's own block P."""

    inverse: Tensor  # P⁻¹, (V·B, 3, 3)
    weights: Tensor  # P⁻¹ A side by side for the 13 neighbors, (V·B, 3, 39)


def pack(stencil: Stencil, entries: Tensor, transpose: bool) -> Packed:
    """Reorder L's entries by wavefront; `entries` has shape (B, C, X, Y, Z)."""
    batch, _, *grid = entries.shape
    plan = schedule((grid[0], grid[1], grid[2]), entries.device)
    flat = entries.detach().reshape(batch, stencil.num_channels, -1).permute(2, 0, 1)  # (V, B, C)
    own = flat[plan.order]
    first = CHANNELS + len(WITHIN)
    if transpose:
        # A column of L gathers each neighbor's entry from that follower; outside there is none.
        padded = torch.cat([own, torch.zeros_like(own[:1])])[..., first:]
        padded = padded.unflatten(2, (len(PRECEDING), stencil.couplings))
        index = torch.arange(len(PRECEDING), device=entries.device)
        pairs = padded.movedim(2, 1)[plan.followers, index].movedim(1, 2)  # (V, B, 13, couplings)
    else:
        pairs = own[..., first:].unflatten(2, (len(PRECEDING), stencil.couplings))
    if stencil.cross_channel == "full":
        blocks = pairs.unflatten(3, (CHANNELS, CHANNELS))  # (row, column)
        blocks = blocks.mT if transpose else blocks
    else:
        blocks = torch.diag_embed(pairs)
    blocks = blocks.movedim(3, 2).reshape(-1, CHANNELS, CHANNELS * len(PRECEDING))  # own channel, neighbor and its
    inverse = _inverse_of_lower(own[..., :CHANNELS], own[..., CHANNELS:first]).reshape(-1, CHANNELS, CHANNELS)
    inverse = (inverse.mT if transpose else inverse).contiguous()
    return Packed(inverse, torch.bmm(inverse, blocks))


def _inverse_of_lower(diagonal: Tensor, within: Tensor) -> Tensor:
    """Inverses of lower triangular 3x3 blocks, (…, 3, 3), of diagonals (…, 3) and entries (…, 3) in WITHIN's order."""
    (a, c, f), (b, d, e) = diagonal.unbind(-1), within.unbind(-1)
    zero = torch.zeros_like(a)
    rows = ((1 / a, zero, zero), (-b / (a * c), 1 / c, zero), ((b * e - c * d) / (a * c * f), -e / (c * f), 1 / f))
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def solve(stencil: Stencil, packed: Packed, x: Tensor, transpose: bool, overwrite: bool = False) -> Tensor:
    """L⁻ᵀx or L⁻¹x; shapes as in `numba_solve.solve`. `overwrite` has no effect here."""
    count, batch, _, *grid = x.shape
    plan = schedule((grid[0], grid[1], grid[2]), x.device)
    voxels = plan.order.numel()
    sides = x.detach().reshape(count, batch, CHANNELS, voxels).permute(3, 1, 2, 0)[plan.order]  # (V, B, 3, N)
    # In the order of the wavefronts, each of which is one piece of memory; one row of zeros for "outside".
    work = x.new_zeros((voxels + 1, batch, CHANNELS, count))
    work[:-1] = torch.bmm(packed.inverse, sides.reshape(-1, CHANNELS, count)).reshape(sides.shape)
    index = plan.followers if transpose else plan.neighbors
    for start, stop in reversed(plan.bounds) if transpose else plan.bounds:
        known = work[index[start:stop]].transpose(1, 2)  # (m, B, 13, 3, N)
        known = known.reshape(-1, CHANNELS * len(PRECEDING), count)
        here = work[start:stop].view(-1, CHANNELS, count)
        here.baddbmm_(packed.weights[start * batch : stop * batch], known, alpha=-1)
    return work[plan.place].permute(3, 1, 2, 0).reshape(x.shape).contiguous()
