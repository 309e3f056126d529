"""Gathering the voxels that a displacement field points to, on the CPU.

A voxel's source is i + u itself. torch's `grid_sample` wants coordinates scaled to [-1, 1] instead and scales them
back, which moves them by 10⁻⁵ voxels and takes longer than the interpolation.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

# One lock and one number of threads for all compiled loops of the process: numba's own threads are not reentrant.
from scripts.core.threads import LOCK, use_torch_threads


def linear(image: Tensor, ddf: Tensor, border: bool) -> Tensor:
    """Trilinear interpolation: image [1 or B, C, X, Y, Z], ddf [B, 3, X, Y, Z] to [B, C, X, Y, Z]."""
    out = image.new_empty((ddf.shape[0], image.shape[1], *ddf.shape[2:]))
    with LOCK:
        use_torch_threads()
        _linear(_numpy(image), _numpy(ddf), out.numpy(), border)
    return out


def linear_backward(image: Tensor, ddf: Tensor, grad: Tensor, border: bool) -> Tensor:
    """Gradient of `linear` with respect to the ddf, [B, 3, X, Y, Z], from that of its result [B, C, X, Y, Z]."""
    out = torch.empty(ddf.shape, dtype=ddf.dtype)
    with LOCK:
        use_torch_threads()
        _linear_backward(_numpy(image), _numpy(ddf), _numpy(grad), out.numpy(), border)
    return out


def nearest(image: Tensor, ddf: Tensor, border: bool) -> Tensor:
    """The nearest voxel's value; shapes as in `linear`, any dtype."""
    out = image.new_empty((ddf.shape[0], image.shape[1], *ddf.shape[2:]))
    # Only bits are copied: one compiled loop for each number of bytes, whatever they mean.
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[image.element_size()]
    with LOCK:
        use_torch_threads()
        _nearest(_numpy(image.view(bits)), _numpy(ddf), out.view(bits).numpy(), border)
    return out


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


@njit
def _bracket(x, size, border):  # type: ignore[no-untyped-def]
    """The two voxels around x, their weights, and the derivatives of the weights; a voxel outside has weight 0."""
    if not math.isfinite(x):  # ends in the result, never in an index
        return 0, 0, math.nan, math.nan, math.nan, math.nan
    slope = 1.0
    if border:
        if x <= 0.0:
            x, slope = 0.0, 0.0
        elif x >= size - 1.0:
            x, slope = size - 1.0, 0.0
    if x <= -1.0 or x >= size:
        return 0, 0, 0.0, 0.0, 0.0, 0.0
    low = math.floor(x)
    high = low + 1
    fraction = x - low
    low_weight, high_weight, low_slope, high_slope = 1.0 - fraction, fraction, -slope, slope
    if low < 0:
        low, low_weight, low_slope = 0, 0.0, 0.0
    if high > size - 1:
        high, high_weight, high_slope = size - 1, 0.0, 0.0
    return low, high, low_weight, high_weight, low_slope, high_slope


@njit
def _inside(x, y, z, nx, ny, nz):  # type: ignore[no-untyped-def]
    """Whether all eight voxels around a place exist; False for NaN."""
    return x > 0.0 and y > 0.0 and z > 0.0 and x < nx - 1.0 and y < ny - 1.0 and z < nz - 1.0


@njit
def _corners(low, high, ny, nz):  # type: ignore[no-untyped-def]
    """Positions in memory of the eight voxels around a place; unsigned, or numba would test each for being negative."""
    row0, row1 = (low[0] * ny + low[1]) * nz, (low[0] * ny + high[1]) * nz
    row2, row3 = (high[0] * ny + low[1]) * nz, (high[0] * ny + high[1]) * nz
    k0, k1 = low[2], high[2]
    return (
        (np.uint64(row0 + k0), np.uint64(row0 + k1), np.uint64(row1 + k0), np.uint64(row1 + k1)),
        (np.uint64(row2 + k0), np.uint64(row2 + k1), np.uint64(row3 + k0), np.uint64(row3 + k1)),
    )


@njit
def _stencil(x, y, z, nx, ny, nz, border):  # type: ignore[no-untyped-def]
    """Corner positions around a place, and for each axis (low weight, high weight, low slope, high slope)."""
    if _inside(x, y, z, nx, ny, nz):  # nearly everywhere
        i, j, k = int(x), int(y), int(z)
        fx, fy, fz = x - i, y - j, z - k
        return (
            _corners((i, j, k), (i + 1, j + 1, k + 1), ny, nz),
            (1.0 - fx, fx, -1.0, 1.0),
            (1.0 - fy, fy, -1.0, 1.0),
            (1.0 - fz, fz, -1.0, 1.0),
        )
    i0, i1, x0, x1, dx0, dx1 = _bracket(x, nx, border)
    j0, j1, y0, y1, dy0, dy1 = _bracket(y, ny, border)
    k0, k1, z0, z1, dz0, dz1 = _bracket(z, nz, border)
    return (
        _corners((i0, j0, k0), (i1, j1, k1), ny, nz),
        (x0, x1, dx0, dx1),
        (y0, y1, dy0, dy1),
        (z0, z1, dz0, dz1),
    )


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _linear(image, ddf, out, border):  # type: ignore[no-untyped-def]
    batch, channels, nx, ny, nz = out.shape
    flat = image.reshape(image.shape[0], channels, nx * ny * nz)
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        source = flat[b if flat.shape[0] > 1 else 0]
        for j in range(ny):
            ux, uy, uz = ddf[b, 0, i, j], ddf[b, 1, i, j], ddf[b, 2, i, j]
            for k in range(nz):
                (n, f), (x0, x1, _, _), (y0, y1, _, _), (z0, z1, _, _) = _stencil(
                    i + ux[k], j + uy[k], k + uz[k], nx, ny, nz, border
                )
                for c in range(channels):
                    v = source[c]
                    near = y0 * (z0 * v[n[0]] + z1 * v[n[1]]) + y1 * (z0 * v[n[2]] + z1 * v[n[3]])
                    far = y0 * (z0 * v[f[0]] + z1 * v[f[1]]) + y1 * (z0 * v[f[2]] + z1 * v[f[3]])
                    out[b, c, i, j, k] = x0 * near + x1 * far


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _linear_backward(image, ddf, grad, out, border):  # type: ignore[no-untyped-def]
    batch, _, nx, ny, nz = ddf.shape
    channels = grad.shape[1]
    flat = image.reshape(image.shape[0], channels, nx * ny * nz)
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        source = flat[b if flat.shape[0] > 1 else 0]
        for j in range(ny):
            ux, uy, uz = ddf[b, 0, i, j], ddf[b, 1, i, j], ddf[b, 2, i, j]
            for k in range(nz):
                (n, f), (x0, x1, dx0, dx1), (y0, y1, dy0, dy1), (z0, z1, dz0, dz1) = _stencil(
                    i + ux[k], j + uy[k], k + uz[k], nx, ny, nz, border
                )
                gx = gy = gz = 0.0
                for c in range(channels):
                    v, g = source[c], grad[b, c, i, j, k]
                    # a: interpolated along z, d: its derivative; then y, then x
                    a0, d0 = z0 * v[n[0]] + z1 * v[n[1]], dz0 * v[n[0]] + dz1 * v[n[1]]
                    a1, d1 = z0 * v[n[2]] + z1 * v[n[3]], dz0 * v[n[2]] + dz1 * v[n[3]]
                    a2, d2 = z0 * v[f[0]] + z1 * v[f[1]], dz0 * v[f[0]] + dz1 * v[f[1]]
                    a3, d3 = z0 * v[f[2]] + z1 * v[f[3]], dz0 * v[f[2]] + dz1 * v[f[3]]
                    gx += g * (dx0 * (y0 * a0 + y1 * a1) + dx1 * (y0 * a2 + y1 * a3))
                    gy += g * (x0 * (dy0 * a0 + dy1 * a1) + x1 * (dy0 * a2 + dy1 * a3))
                    gz += g * (x0 * (y0 * d0 + y1 * d1) + x1 * (y0 * d2 + y1 * d3))
                out[b, 0, i, j, k], out[b, 1, i, j, k], out[b, 2, i, j, k] = gx, gy, gz


@njit
def _round(x, size):  # type: ignore[no-untyped-def]
    """The nearest voxel inside, and whether the nearest one was inside; halves go up."""
    x += 0.5
    if x >= 0.0 and x < size:
        return int(x), True
    return (size - 1 if x >= size else 0), False  # NaN: 0


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _nearest(image, ddf, out, border):  # type: ignore[no-untyped-def]
    batch, channels, nx, ny, nz = out.shape
    flat = image.reshape(image.shape[0], channels, nx * ny * nz)
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        source = flat[b if flat.shape[0] > 1 else 0]
        for j in range(ny):
            ux, uy, uz = ddf[b, 0, i, j], ddf[b, 1, i, j], ddf[b, 2, i, j]
            for k in range(nz):
                x, inside_x = _round(i + ux[k], nx)
                y, inside_y = _round(j + uy[k], ny)
                z, inside_z = _round(k + uz[k], nz)
                inside = border or (inside_x and inside_y and inside_z)
                at = np.uint64((x * ny + y) * nz + z)
                for c in range(channels):
                    out[b, c, i, j, k] = source[c, at] if inside else 0
