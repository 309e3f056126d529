"""Local correlation on the CPU: windows that slide along the three axes in one pass, with sums in float64.

For a slab of planes, the sums over the window's extent along x are kept for a whole plane, those over x and y for a
row. A voxel costs a few additions, whatever the window's size. Slabs have a fixed thickness, so that the result does
not depend on the number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run

_SLAB = 24
"""Planes a job; a slab's start costs window - 1 planes of additions."""


def statistics(image: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Local mean and variance, float64, see `local_correlation.fixed_statistics`."""
    mean, variance = (torch.empty(image.shape, dtype=torch.float64) for _ in range(2))
    run(_statistics, *_without_channel(image, mean, variance), window // 2)
    return mean, variance


def forward(
    fixed: Tensor, mean: Tensor, variance: Tensor, moving: Tensor, window: int, eps: float, with_gradient: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The map of squared correlations and what `backward` needs, see `local_correlation._torch_forward`."""
    out = torch.empty_like(moving, memory_format=torch.contiguous_format)
    kept = moving.new_empty((3, *moving.shape) if with_gradient else (3, 1, 1, 1, 1, 1))
    volumes = _without_channel(fixed, mean, variance, moving, out)
    run(_forward, *volumes, kept.squeeze(2), window // 2, eps, with_gradient)
    return out, tuple(kept) if with_gradient else ()


def backward(
    fixed: Tensor, mean: Tensor, moving: Tensor, kept: tuple[Tensor, ...], grad: Tensor, window: int
) -> Tensor:
    """Gradient with respect to the moving image, see `local_correlation._torch_backward`."""
    out = torch.empty_like(moving, memory_format=torch.contiguous_format)
    run(_backward, *_without_channel(fixed, mean, moving, *kept, grad, out), window // 2)
    return out


def _without_channel(*volumes: Tensor) -> list[Tensor]:
    """[B, 1, X, Y, Z] as [B, X, Y, Z]."""
    return [volume.squeeze(1) for volume in volumes]


@njit
def _extent(i, size, radius):  # type: ignore[no-untyped-def]
    """Voxels of a window around i that lie inside."""
    return min(size, i + radius + 1) - max(0, i - radius)


@njit
def _slide_moments(sums, f, m, i, first, radius):  # type: ignore[no-untyped-def]
    """Move the window along x to plane i: m, m² and f·m of one plane come in, those of another go out.

    Nothing goes out up to the slab's first plane, where the windows are still filling.
    """
    for p, sign in ((i + radius, 1.0), (i - radius - 1, -1.0)):
        if p < 0 or p >= len(m) or (sign < 0 and i <= first):
            continue
        for j in range(m.shape[1]):
            for k in range(m.shape[2]):
                value = np.float64(m[p, j, k])
                sums[0, j, k] += sign * value
                sums[1, j, k] += sign * (value * value)
                sums[2, j, k] += sign * (value * f[p, j, k])


@njit
def _slide_coefficients(sums, mean, m_mean, a, b, g, i, first, radius):  # type: ignore[no-untyped-def]
    """The same with α = g·a/n, β = g·b/n and α·mean_f − β·mean_m; n: the window's voxels."""
    nx, ny, nz = a.shape
    for p, sign in ((i + radius, 1.0), (i - radius - 1, -1.0)):
        if p < 0 or p >= nx or (sign < 0 and i <= first):
            continue
        for j in range(ny):
            count = _extent(p, nx, radius) * _extent(j, ny, radius)
            for k in range(nz):
                weight = sign * np.float64(g[p, j, k]) / (count * _extent(k, nz, radius))
                alpha, beta = weight * a[p, j, k], weight * b[p, j, k]
                sums[0, j, k] += alpha
                sums[1, j, k] += beta
                sums[2, j, k] += alpha * mean[p, j, k] - beta * m_mean[p, j, k]


@njit
def _slide_rows(plane, row, j, radius):  # type: ignore[no-untyped-def]
    """Move the window along y to row j: one row comes in, one goes out."""
    _, ny, nz = plane.shape
    for c in range(3):
        if j + radius < ny:
            for k in range(nz):
                row[c, k] += plane[c, j + radius, k]
        if j - radius - 1 >= 0:
            for k in range(nz):
                row[c, k] -= plane[c, j - radius - 1, k]


@njit
def _sum_windows(plane, row, box, j, radius):  # type: ignore[no-untyped-def]
    """box[:, k] = the sums over the window around voxel k of row j; `row` has those along y of the row before."""
    if j == 0:
        row[:] = 0.0
        for before in range(-radius, 0):
            _slide_rows(plane, row, before, radius)
    _slide_rows(plane, row, j, radius)
    nz = row.shape[1]
    s0 = s1 = s2 = 0.0
    for k in range(-radius, nz):
        enter, leave = k + radius, k - radius - 1
        if enter < nz:
            s0 += row[0, enter]
            s1 += row[1, enter]
            s2 += row[2, enter]
        if leave >= 0:
            s0 -= row[0, leave]
            s1 -= row[1, leave]
            s2 -= row[2, leave]
        if k >= 0:
            box[0, k], box[1, k], box[2, k] = s0, s1, s2


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _statistics(image, mean, variance, radius):  # type: ignore[no-untyped-def]
    batch, nx, ny, nz = image.shape
    slabs = (nx + _SLAB - 1) // _SLAB
    for job in prange(batch * slabs):
        b, first = job // slabs, (job % slabs) * _SLAB
        plane, row, box = np.zeros((3, ny, nz)), np.empty((3, nz)), np.empty((3, nz))
        for i in range(max(first - 2 * radius, -radius), min(nx, first + _SLAB)):
            _slide_moments(plane, image[b], image[b], i, first, radius)
            if i < first:
                continue
            for j in range(ny):
                _sum_windows(plane, row, box, j, radius)
                count = _extent(i, nx, radius) * _extent(j, ny, radius)
                for k in range(nz):
                    scale = 1.0 / (count * _extent(k, nz, radius))
                    local = box[0, k] * scale
                    mean[b, i, j, k], variance[b, i, j, k] = local, max(box[1, k] * scale - local * local, 0.0)


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _forward(fixed, mean, variance, moving, out, kept, radius, eps, with_gradient):  # type: ignore[no-untyped-def]
    batch, nx, ny, nz = moving.shape
    slabs = (nx + _SLAB - 1) // _SLAB
    for job in prange(batch * slabs):
        b, first = job // slabs, (job % slabs) * _SLAB
        s = b if fixed.shape[0] > 1 else 0
        plane, row, box = np.zeros((3, ny, nz)), np.empty((3, nz)), np.empty((3, nz))
        for i in range(max(first - 2 * radius, -radius), min(nx, first + _SLAB)):
            _slide_moments(plane, fixed[s], moving[b], i, first, radius)
            if i < first:
                continue
            for j in range(ny):
                _sum_windows(plane, row, box, j, radius)
                count = _extent(i, nx, radius) * _extent(j, ny, radius)
                for k in range(nz):
                    scale = 1.0 / (count * _extent(k, nz, radius))
                    m_mean = box[0, k] * scale
                    spread = max(box[1, k] * scale - m_mean * m_mean, 0.0) + eps
                    covariance = box[2, k] * scale - m_mean * mean[s, i, j, k]
                    slope = covariance / ((variance[s, i, j, k] + eps) * spread)
                    out[b, i, j, k] = covariance * slope
                    if with_gradient:
                        kept[0, b, i, j, k] = m_mean
                        kept[1, b, i, j, k] = 2.0 * slope
                        kept[2, b, i, j, k] = 2.0 * covariance * slope / spread


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _backward(fixed, mean, moving, m_mean, a, b_, grad, out, radius):  # type: ignore[no-untyped-def]
    batch, nx, ny, nz = moving.shape
    slabs = (nx + _SLAB - 1) // _SLAB
    for job in prange(batch * slabs):
        b, first = job // slabs, (job % slabs) * _SLAB
        s = b if fixed.shape[0] > 1 else 0
        plane, row, box = np.zeros((3, ny, nz)), np.empty((3, nz)), np.empty((3, nz))
        for i in range(max(first - 2 * radius, -radius), min(nx, first + _SLAB)):
            _slide_coefficients(plane, mean[s], m_mean[b], a[b], b_[b], grad[b], i, first, radius)
            if i < first:
                continue
            for j in range(ny):
                _sum_windows(plane, row, box, j, radius)
                for k in range(nz):
                    out[b, i, j, k] = fixed[s, i, j, k] * box[0, k] - moving[b, i, j, k] * box[1, k] - box[2, k]
