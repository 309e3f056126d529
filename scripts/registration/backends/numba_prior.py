"""The diffusion energy on the CPU: each field read once, differences to the three next neighbors squared on the way."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run


def diffusion_energy(z: Tensor) -> Tensor:
    """½ Σ ‖∇z‖² of fields [*, 3, X, Y, Z]; shape [*], float64, see `scripts.registration.prior`."""
    channels = z.reshape(-1, *z.shape[-3:])
    out = torch.empty(channels.shape[0], dtype=torch.float64)
    run(_energies, channels, out)
    return out.reshape(*z.shape[:-4], z.shape[-4]).sum(-1)


# "reassoc": sums in several lanes at once, the same ones each time.
@njit(fastmath={"contract", "reassoc", "nsz"})
def _squares(a, b, count):  # type: ignore[no-untyped-def]
    """Σ (a − b)²: the difference of neighbors is exact or nearly so in float32, the sum is float64."""
    total = 0.0
    for k in range(count):
        difference = np.float64(a[k] - b[k])
        total += difference * difference
    return total


@njit(parallel=True, cache=True, nogil=True)
def _energies(volumes, out):  # type: ignore[no-untyped-def]
    count, nx, ny, nz = volumes.shape
    for n in prange(count):
        volume, total = volumes[n], 0.0
        for i in range(nx):
            for j in range(ny):
                row = volume[i, j]
                total += _squares(row[1:], row, nz - 1)
                if j + 1 < ny:
                    total += _squares(volume[i, j + 1], row, nz)
                if i + 1 < nx:
                    total += _squares(volume[i + 1, j], row, nz)
        out[n] = 0.5 * total
