"""A sparse L for a given precision P: its incomplete Cholesky factor, with the pattern of a full stencil.

The exact factor of a precision that couples neighbors fills up: 10⁵ voxels take gigabytes. The incomplete one keeps the
entries of the 3x3x3 kernel alone and is computed row by row as the exact one would be,

    L_vu = (P_vu − Σ_k L_vk L_ukᵀ) D_u⁻ᵀ    for the preceding neighbors u of v,
    D_v D_vᵀ = P_vv − Σ_u L_vu L_vuᵀ        with D_v = L_vv lower triangular,

where k runs over what precedes both. Then (L Lᵀ)_vu = P_vu wherever the pattern has an entry, and the rest, which P has
not, is what was dropped: L⁻ᵀ ε has P⁻¹ as covariance but for correlations over many voxels, which come out shorter.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from scripts.gaussian.backends.loops import compiled, run
from scripts.gaussian.backends.torch_wavefront import schedule
from scripts.gaussian.errors import NotPositiveDefiniteError, ShapeError
from scripts.gaussian.stencil import CHANNELS, PRECEDING, WITHIN, Stencil

FIRST = CHANNELS + len(WITHIN)
"""Entries of a voxel's own block; those of the neighbors come after it, 9 each."""
_SHAPE = "(X, Y, Z, 3, 3)"


def incomplete_cholesky(
    own: Tensor,  # P_vv, [X, Y, Z, 3, 3]
    couplings: Tensor,  # [13], P_vu = couplings · 1 for the neighbors of PRECEDING
) -> Tensor:
    """Entries of L, [123, X, Y, Z], float32.

    Raises:
        ShapeError: for another shape.
        NotPositiveDefiniteError: where P, or what the pattern leaves of it, is not positive definite.
    """
    if own.ndim != 5 or own.shape[3:] != (CHANNELS, CHANNELS):
        raise ShapeError("own", _SHAPE, own.shape)
    channels = Stencil("full").num_channels
    entries = torch.zeros(*own.shape[:3], channels, dtype=torch.float32, device=own.device)
    fast = compiled("scripts.gaussian.backends.numba_incomplete") if own.device.type == "cpu" else None
    if fast is not None:
        arguments = (own.double(), couplings.double(), np.array(PRECEDING), _products(), entries)
        run(fast.factor, *arguments)
    else:
        _by_fronts(own.double(), couplings.double(), entries)
    bad = ~(torch.isfinite(entries).all(-1) & (entries[..., :CHANNELS] > 0).all(-1))
    if bool(bad.any()):
        raise NotPositiveDefiniteError(int(bad.sum()), bad.numel(), tuple(bad.nonzero()[0].tolist()))
    return entries.permute(3, 0, 1, 2).contiguous()


@functools.cache
def _products() -> np.ndarray:
    """(u, k of v, k of u) as numbers of PRECEDING, for each k that precedes both a voxel v and its neighbor u."""
    number = {offset: place for place, offset in enumerate(PRECEDING)}
    rows = []
    for u, to_u in enumerate(PRECEDING):
        for k, to_k in enumerate(PRECEDING):
            from_u = (to_k[0] - to_u[0], to_k[1] - to_u[1], to_k[2] - to_u[2])
            if from_u in number:
                rows.append((u, k, number[from_u]))
    return np.array(rows)


def _by_fronts(own: Tensor, couplings: Tensor, entries: Tensor) -> None:
    """The same in torch: all voxels of a wavefront at once; `entries` [X, Y, Z, 123] is filled."""
    plan = schedule(tuple(own.shape[:3]), own.device)
    voxels, products = len(plan.order), _products()
    own = own.reshape(-1, CHANNELS, CHANNELS)[plan.order]
    # One more row, of zeros, for "outside".
    couple = own.new_zeros(voxels + 1, len(PRECEDING), CHANNELS, CHANNELS)
    inverse = own.new_zeros(voxels + 1, CHANNELS, CHANNELS)
    diagonal = torch.zeros_like(own)
    eye = torch.eye(CHANNELS, dtype=own.dtype, device=own.device)
    for start, stop in plan.bounds:
        neighbors, left = plan.neighbors[start:stop], own[start:stop]
        for u in range(len(PRECEDING)):
            at = neighbors[:, u]
            block = couplings[u] * (at < voxels).to(own.dtype)[:, None, None] * eye
            for _, k, k_of_u in products[products[:, 0] == u]:
                block = block - couple[start:stop, k] @ couple[at, k_of_u].mT
            block = block @ inverse[at].mT
            couple[start:stop, u] = block
            left = left - block @ block.mT
        lower, failed = torch.linalg.cholesky_ex(left)
        diagonal[start:stop] = torch.where((failed > 0)[:, None, None], torch.nan, lower)
        inverse[start:stop] = torch.linalg.solve_triangular(diagonal[start:stop], eye.expand_as(left), upper=False)
    rows, columns = zip(*WITHIN, strict=True)
    found = torch.cat(
        [diagonal.diagonal(dim1=1, dim2=2), diagonal[:, rows, columns], couple[:-1].flatten(1)], dim=1
    )  # (V, 123)
    entries.copy_(found[plan.place].reshape(entries.shape))
