"""Incomplete Cholesky factor on the CPU, see `scripts.gaussian.incomplete`: one sweep in raster order."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def factor(own, couplings, offsets, products, entries):  # type: ignore[no-untyped-def]
    """Fill `entries`, float32 [X, Y, Z, 123] in the order of a full stencil; NaN where a pivot is not positive.

    Args:
        own: float64 [X, Y, Z, 3, 3].
        couplings: float64 [13].
        offsets: [13, 3].
        products: (u, k of v, k of u), sorted by u.
    """
    nx, ny, nz = own.shape[:3]
    first, block, pivot = 6, np.empty((3, 3)), np.empty((3, 3))
    for i in range(nx):
        for j in range(ny):
            for z in range(nz):
                here, row = entries[i, j, z], 0
                pivot[:] = own[i, j, z]
                for u in range(len(offsets)):
                    a, b, c = i + offsets[u, 0], j + offsets[u, 1], z + offsets[u, 2]
                    end = row
                    while end < len(products) and products[end, 0] == u:
                        end += 1
                    if a < 0 or b < 0 or b >= ny or c < 0 or c >= nz:
                        row = end
                        continue
                    there = entries[a, b, c]
                    block[:] = 0
                    for d in range(3):
                        block[d, d] = couplings[u]
                    while row < end:
                        mine, its = first + 9 * products[row, 1], first + 9 * products[row, 2]
                        for d in range(3):
                            for e in range(3):
                                total = 0.0
                                for t in range(3):
                                    total += np.float64(here[mine + 3 * d + t]) * there[its + 3 * e + t]
                                block[d, e] -= total
                        row += 1
                    # times D⁻ᵀ, D = [[d0, 0, 0], [d3, d1, 0], [d4, d5, d2]] of the neighbor
                    for d in range(3):
                        x = block[d, 0] / there[0]
                        y = (block[d, 1] - x * there[3]) / there[1]
                        w = (block[d, 2] - x * there[4] - y * there[5]) / there[2]
                        block[d, 0], block[d, 1], block[d, 2] = x, y, w
                    for d in range(3):
                        for e in range(3):
                            here[first + 9 * u + 3 * d + e] = block[d, e]
                            total = 0.0
                            for t in range(3):
                                total += block[d, t] * block[e, t]
                            pivot[d, e] -= total
                d0 = np.sqrt(pivot[0, 0])
                d3, d4 = pivot[1, 0] / d0, pivot[2, 0] / d0
                d1 = np.sqrt(pivot[1, 1] - d3 * d3)
                d5 = (pivot[2, 1] - d4 * d3) / d1
                here[0], here[1], here[2] = d0, d1, np.sqrt(pivot[2, 2] - d4 * d4 - d5 * d5)
                here[3], here[4], here[5] = d3, d4, d5
