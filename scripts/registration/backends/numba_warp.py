"""Gathering the voxels that a displacement field points to, on the CPU: `warp` on one grid, `pull` on two.

A voxel's source is i + u itself. torch's `grid_sample` wants coordinates scaled to [-1, 1] instead and scales them
back, which moves them by 10⁻⁵ voxels and takes longer than the interpolation.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run


def linear(image: Tensor, ddf: Tensor) -> Tensor:
    """Trilinear interpolation: image [1 or B, C, X, Y, Z], ddf [B, 3, X, Y, Z] to [B, C, X, Y, Z]."""
    out = image.new_empty((ddf.shape[0], image.shape[1], *ddf.shape[2:]))
    run(_linear, image.flatten(2), ddf, out)
    return out


def linear_backward(image: Tensor, ddf: Tensor, grad: Tensor) -> Tensor:
    """Gradient of `linear` with respect to the ddf, [B, 3, X, Y, Z], from that of its result [B, C, X, Y, Z]."""
    out = torch.empty(ddf.shape, dtype=ddf.dtype)
    run(_linear_backward, image.flatten(2), ddf, grad, out)
    return out


def nearest(image: Tensor, ddf: Tensor) -> Tensor:
    """The nearest voxel's value; shapes as in `linear`, any dtype."""
    out = image.new_empty((ddf.shape[0], image.shape[1], *ddf.shape[2:]))
    # Only bits are copied: one compiled loop for each number of bytes, whatever they mean.
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[image.element_size()]
    run(_nearest, image.view(bits).flatten(2), ddf, out.view(bits))
    return out


def pull(volume: Tensor, displacement: Tensor, matrix: np.ndarray, per_mm: np.ndarray, nearest: bool) -> Tensor:
    """See `scripts.registration.pull`."""
    out = volume.new_empty(displacement.shape[1:])
    matrices = (np.ascontiguousarray(part, dtype=np.float64) for part in (matrix, per_mm))
    run(_pull_nearest if nearest else _pull, volume, displacement, *matrices, out)
    return out


@njit
def _bracket(x, size):  # type: ignore[no-untyped-def]
    """The two voxels around x, the upper one's weight, and its derivative."""
    if not math.isfinite(x):  # ends in the result, never in an index
        return 0, 0, math.nan, math.nan
    inside = x > 0.0 and x < size - 1.0
    x = min(max(x, 0.0), size - 1.0)
    low = math.floor(x)
    return low, min(low + 1, size - 1), x - low, 1.0 if inside else 0.0


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
def _stencil(x, y, z, nx, ny, nz):  # type: ignore[no-untyped-def]
    """Corner positions around a place, and for each axis the upper voxels' weight and its derivative."""
    if x > 0.0 and y > 0.0 and z > 0.0 and x < nx - 1.0 and y < ny - 1.0 and z < nz - 1.0:  # nearly everywhere
        i, j, k = int(x), int(y), int(z)
        corners = _corners((i, j, k), (i + 1, j + 1, k + 1), ny, nz)
        return corners, (x - i, y - j, z - k), (1.0, 1.0, 1.0)
    i0, i1, fx, dx = _bracket(x, nx)
    j0, j1, fy, dy = _bracket(y, ny)
    k0, k1, fz, dz = _bracket(z, nz)
    return _corners((i0, j0, k0), (i1, j1, k1), ny, nz), (fx, fy, fz), (dx, dy, dz)


@njit(fastmath={"contract"})
def _between(v, corners, upper):  # type: ignore[no-untyped-def]
    """The value between eight voxels of v, flat, with these weights of the upper ones along each axis."""
    (n, f), (x1, y1, z1) = corners, upper
    x0, y0, z0 = 1.0 - x1, 1.0 - y1, 1.0 - z1
    near = y0 * (z0 * v[n[0]] + z1 * v[n[1]]) + y1 * (z0 * v[n[2]] + z1 * v[n[3]])
    far = y0 * (z0 * v[f[0]] + z1 * v[f[1]]) + y1 * (z0 * v[f[2]] + z1 * v[f[3]])
    return x0 * near + x1 * far


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _linear(image, ddf, out):  # type: ignore[no-untyped-def]
    batch, channels, nx, ny, nz = out.shape
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        source = image[b if image.shape[0] > 1 else 0]
        for j in range(ny):
            ux, uy, uz = ddf[b, 0, i, j], ddf[b, 1, i, j], ddf[b, 2, i, j]
            for k in range(nz):
                corners, upper, _ = _stencil(i + ux[k], j + uy[k], k + uz[k], nx, ny, nz)
                for c in range(channels):
                    out[b, c, i, j, k] = _between(source[c], corners, upper)


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _linear_backward(image, ddf, grad, out):  # type: ignore[no-untyped-def]
    batch, _, nx, ny, nz = ddf.shape
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        source = image[b if image.shape[0] > 1 else 0]
        for j in range(ny):
            ux, uy, uz = ddf[b, 0, i, j], ddf[b, 1, i, j], ddf[b, 2, i, j]
            for k in range(nz):
                (n, f), (x1, y1, z1), (dx, dy, dz) = _stencil(i + ux[k], j + uy[k], k + uz[k], nx, ny, nz)
                x0, y0, z0 = 1.0 - x1, 1.0 - y1, 1.0 - z1
                gx = gy = gz = 0.0
                for c in range(grad.shape[1]):
                    v, g = source[c], grad[b, c, i, j, k]
                    # a: interpolated along z, d: its derivative; then y, then x
                    a0, d0 = z0 * v[n[0]] + z1 * v[n[1]], dz * v[n[1]] - dz * v[n[0]]
                    a1, d1 = z0 * v[n[2]] + z1 * v[n[3]], dz * v[n[3]] - dz * v[n[2]]
                    a2, d2 = z0 * v[f[0]] + z1 * v[f[1]], dz * v[f[1]] - dz * v[f[0]]
                    a3, d3 = z0 * v[f[2]] + z1 * v[f[3]], dz * v[f[3]] - dz * v[f[2]]
                    gx += g * dx * ((y0 * a2 + y1 * a3) - (y0 * a0 + y1 * a1))
                    gy += g * dy * (x0 * (a1 - a0) + x1 * (a3 - a2))
                    gz += g * (x0 * (y0 * d0 + y1 * d1) + x1 * (y0 * d2 + y1 * d3))
                out[b, 0, i, j, k], out[b, 1, i, j, k], out[b, 2, i, j, k] = gx, gy, gz


@njit
def _round(x, size):  # type: ignore[no-untyped-def]
    """The nearest voxel; halves go up."""
    x += 0.5
    if x >= 0.0 and x < size:
        return int(x)
    return size - 1 if x >= size else 0  # NaN: 0


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _nearest(image, ddf, out):  # type: ignore[no-untyped-def]
    batch, channels, nx, ny, nz = out.shape
    for job in prange(batch * nx):
        b, i = job // nx, job % nx
        source = image[b if image.shape[0] > 1 else 0]
        for j in range(ny):
            ux, uy, uz = ddf[b, 0, i, j], ddf[b, 1, i, j], ddf[b, 2, i, j]
            for k in range(nz):
                x, y, z = _round(i + ux[k], nx), _round(j + uy[k], ny), _round(k + uz[k], nz)
                at = np.uint64((x * ny + y) * nz + z)
                for c in range(channels):
                    out[b, c, i, j, k] = source[c, at]


@njit
def _place(i, j, k, d, m, n, axis):  # type: ignore[no-untyped-def]
    """Index along one axis of the source: (m · (i, j, k, 1) + n · d)_axis, in float64."""
    grid = m[axis, 0] * i + m[axis, 1] * j + m[axis, 2] * k + m[axis, 3]
    return grid + n[axis, 0] * d[0] + n[axis, 1] * d[1] + n[axis, 2] * d[2]


@njit
def _places(i, j, k, d, m, n):  # type: ignore[no-untyped-def]
    shift = d[0, i, j, k], d[1, i, j, k], d[2, i, j, k]
    return _place(i, j, k, shift, m, n, 0), _place(i, j, k, shift, m, n, 1), _place(i, j, k, shift, m, n, 2)


@njit
def _reached(x, size):  # type: ignore[no-untyped-def]
    """Whether x is inside: a voxel reaches half a voxel around its center. NaN is outside."""
    return x >= -0.5 and x < size - 0.5


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _pull(v, d, m, n, out):  # type: ignore[no-untyped-def]
    (nx, ny, nz), flat = v.shape, v.reshape(-1)
    for i in prange(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                x, y, z = _places(i, j, k, d, m, n)
                value = 0.0
                if _reached(x, nx) and _reached(y, ny) and _reached(z, nz):
                    corners, upper, _ = _stencil(x, y, z, nx, ny, nz)
                    value = _between(flat, corners, upper)
                out[i, j, k] = value


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _pull_nearest(v, d, m, n, out):  # type: ignore[no-untyped-def]
    for i in prange(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                at = _places(i, j, k, d, m, n)
                x, y, z = math.floor(at[0] + 0.5), math.floor(at[1] + 0.5), math.floor(at[2] + 0.5)
                inside = x >= 0 and y >= 0 and z >= 0 and x < v.shape[0] and y < v.shape[1] and z < v.shape[2]
                out[i, j, k] = v[int(x), int(y), int(z)] if inside else 0
