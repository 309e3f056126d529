"""Inner products of long float32 vectors on the CPU, summed in float64 without float64 copies of the vectors.

Dimensions are taken in blocks that fit the cache, all pairs of vectors in a block; threads take blocks. Their sums
are added in their order, so that a result depends neither on the threads nor on the other vectors.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run

_BLOCK = 4096


def inner_products(a: Tensor, b: Tensor) -> Tensor:
    """All inner products of a, shape (N, B, D), with b, shape (M, B, D), of the same batch element; (B, N, M)."""
    out = torch.empty((a.shape[1], a.shape[0], b.shape[0]), dtype=torch.float64)
    run(_inner_products, a, b, out)
    return out


# "reassoc": sums in several lanes at once, the same ones each time.
@njit(fastmath={"contract", "reassoc", "nsz"})
def _dot(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for d in range(a.size):  # from 0: an index that might be negative would not vectorize
        total += np.float64(a[d]) * np.float64(b[d])
    return total


@njit(parallel=True, cache=True, nogil=True)
def _inner_products(a, b, out):  # type: ignore[no-untyped-def]
    count, batch, size = a.shape
    blocks = (size + _BLOCK - 1) // _BLOCK
    parts = np.empty((blocks, batch, count, b.shape[0]))
    for block in prange(blocks):
        start, stop = block * _BLOCK, min((block + 1) * _BLOCK, size)
        for element in range(batch):
            for n in range(count):
                for m in range(b.shape[0]):
                    parts[block, element, n, m] = _dot(a[n, element, start:stop], b[m, element, start:stop])
    out[:] = 0.0
    for block in range(blocks):
        out += parts[block]
