"""The independent reference: everything as dense float64 matrices, written from the definitions."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from scripts.gaussian import Stencil


def dense_cholesky(stencil: Stencil, entries: Tensor) -> Tensor:
    """L of one batch element as (3V, 3V); loops over voxels, on purpose nothing like the shipped code."""
    _, nx, ny, nz = entries.shape
    size = 3 * nx * ny * nz

    def dimension(i: int, j: int, k: int, c: int) -> int:
        return 3 * ((i * ny + j) * nz + k) + c

    flat: list[tuple[int, int]] = []
    values = []
    for channel, (offset, row, col) in enumerate(stencil.table):
        for i, j, k in itertools.product(range(nx), range(ny), range(nz)):
            a, b, c = i + offset[0], j + offset[1], k + offset[2]
            if 0 <= a < nx and 0 <= b < ny and 0 <= c < nz:
                flat.append((dimension(i, j, k, row), dimension(a, b, c, col)))
                values.append(entries[channel, i, j, k])
    rows, cols = torch.tensor(flat).T
    return torch.zeros(size, size, dtype=entries.dtype).index_put((rows, cols), torch.stack(values))


def vec(fields: Tensor) -> Tensor:
    """(N, 3, X, Y, Z) -> (3V, N), voxel by voxel with the channels innermost."""
    return fields.flatten(2).permute(2, 1, 0).flatten(0, 1)


def unvec(columns: Tensor, grid: tuple[int, int, int]) -> Tensor:
    """(3V, N) -> (N, 3, X, Y, Z)."""
    return columns.T.reshape(-1, math.prod(grid), 3).transpose(1, 2).reshape(-1, 3, *grid)


class DenseGaussian:
    """One batch element of a StructuredGaussian as a plain multivariate normal."""

    def __init__(self, stencil: Stencil, mean: Tensor, entries: Tensor, factor: Tensor) -> None:
        self.L = dense_cholesky(stencil, entries)
        self.R = vec(factor)  # (3V, r)
        self.mean = vec(mean[None])[:, 0]
        self.covariance = self.R @ self.R.T + torch.linalg.inv(self.L @ self.L.T)
        self.normal = torch.distributions.MultivariateNormal(self.mean, self.covariance, validate_args=False)

    def log_prob(self, fields: Tensor) -> Tensor:
        return self.normal.log_prob(vec(fields).T)
