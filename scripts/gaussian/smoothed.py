"""L of a Gaussian whose samples are smoothed: x becomes S x, and everything else stays exact.

A factor with neighbors only leaves samples rough from voxel to voxel: where images say little they fold before they are
wide enough. S averages along each axis, (S x)_i = a x_{i−1} + (1 − 2a) x_i + a x_{i+1} with ends repeated, `passes`
times. It is symmetric, so that with L̃ = S⁻¹L

    (L̃ L̃ᵀ)⁻¹ = S (L Lᵀ)⁻¹ S,   L̃⁻ᵀ = S L⁻ᵀ,   log det L̃ = log det L − log det S,

and S⁻¹ is a tridiagonal solve along each axis: its eigenvalues are 1 − 2a (1 − cos πm/n), positive for a < ¼.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from scipy.linalg import solveh_banded
from torch import Tensor

from scripts.gaussian.cholesky import StencilCholesky
from scripts.gaussian.errors import GaussianError
from scripts.gaussian.stencil import CHANNELS


class SmoothedCholesky(StencilCholesky):
    """S⁻¹L in place of L, for :class:`~scripts.gaussian.StructuredGaussian`; without gradients.

    It is not triangular, but nothing asks for more than products, solves and the determinant.

    Args:
        cholesky: L.
        share: a, what a voxel takes from each of its two neighbors along an axis, below ¼.
        passes: how often.

    Raises:
        GaussianError: for a share outside of [0, ¼), or a negative number of passes.
    """

    def __init__(self, cholesky: StencilCholesky, share: float, passes: int = 1) -> None:
        if not 0 <= share < 0.25 or passes < 0:
            raise GaussianError(f"smoothing needs a share in [0, 0.25) and passes, got {share} and {passes}")
        vars(self).update(vars(cholesky))  # what is packed for solves is used again
        self.share, self.passes = share, passes

    def multiply(self, x: Tensor, transpose: bool = False) -> Tensor:
        """S⁻¹Lx, or LᵀS⁻¹x."""
        if transpose:
            return super().multiply(self.roughened(x), transpose=True)
        return self.roughened(super().multiply(x))

    def solve(self, x: Tensor, transpose: bool = False, overwrite: bool = False) -> Tensor:
        """L⁻¹Sx, or SL⁻ᵀx."""
        if transpose:
            return self.smoothed(super().solve(x, transpose=True, overwrite=overwrite))
        return super().solve(self.smoothed(x))

    def log_det(self) -> Tensor:
        """log det L − log det S, shape (B,), float64."""
        sizes = self.entries.shape[2:]
        total = 0.0
        for size in sizes:
            values = 1 - 2 * self.share * (1 - np.cos(np.pi * np.arange(size) / size))
            total += math.prod(sizes) / size * float(np.log(values).sum())
        return super().log_det() - CHANNELS * self.passes * total

    def row_norms(self) -> Tensor:
        """Infinite: what a voxel's neighbors leave open is not known here, and is taken for nothing."""
        return torch.full_like(self.diagonal, math.inf)

    def smoothed(self, x: Tensor) -> Tensor:
        """S x of (…, X, Y, Z): along each axis a product with a small matrix, all passes at once.

        One field after the other, so that a sample does not depend on how many are made with it.
        """
        if not self.share or not self.passes:
            return x
        one, two, three = (_power(size, self.share, self.passes).to(x) for size in x.shape[-3:])
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        for field, target in zip(x.flatten(0, -4), out.view(-1, *x.shape[-3:]), strict=True):
            target.copy_((one @ field.flatten(1)).reshape(field.shape))
            torch.matmul(two, target @ three, out=target)
        return out

    def roughened(self, x: Tensor) -> Tensor:
        """S⁻¹x, computed in float64 on the CPU."""
        if not self.share or not self.passes:
            return x
        values = x.detach().double().cpu().numpy()
        for axis in (-3, -2, -1):
            bands = _bands(values.shape[axis], self.share)
            lines = np.moveaxis(values, axis, 0)
            flat = lines.reshape(len(lines), -1)
            for _ in range(self.passes):
                flat = solveh_banded(bands, flat, lower=True)
            values = np.moveaxis(flat.reshape(lines.shape), 0, axis)
        return torch.from_numpy(np.ascontiguousarray(values)).to(x)


@functools.lru_cache(maxsize=16)
def _power(size: int, share: float, passes: int) -> Tensor:
    """S along one axis, all passes, (size, size) float64; symmetric."""
    diagonal, below = _bands(size, share)
    once = np.diag(diagonal) + np.diag(below[: size - 1], -1) + np.diag(below[: size - 1], 1)
    return torch.from_numpy(np.linalg.matrix_power(once, passes))


@functools.lru_cache(maxsize=16)
def _bands(size: int, share: float) -> np.ndarray:
    """S along one axis: its diagonal and the one below."""
    bands = np.full((2, size), share)
    bands[0] = 1 - 2 * share
    bands[0, [0, -1]] += share if size > 1 else 2 * share
    return bands
