"""Gathering voxels of one grid at displaced places of another, on the CPU."""

from __future__ import annotations

import math

import numpy as np
from numba import njit, prange
from torch import Tensor

from scripts.core.threads import LOCK, use_torch_threads


def linear(volume: Tensor, displacement: Tensor, matrix: np.ndarray, per_mm: np.ndarray) -> Tensor:
    """Trilinear interpolation; see `scripts.registration.pull.pull`."""
    out = displacement.new_empty(displacement.shape[1:])
    with LOCK:
        use_torch_threads()
        _linear(_numpy(volume), _numpy(displacement), matrix, per_mm, out.numpy())
    return out


def nearest(labels: Tensor, displacement: Tensor, matrix: np.ndarray, per_mm: np.ndarray) -> Tensor:
    """The nearest voxel's value; see `scripts.registration.pull.pull_labels`."""
    out = labels.new_empty(displacement.shape[1:])
    with LOCK:
        use_torch_threads()
        _nearest(_numpy(labels), _numpy(displacement), matrix, per_mm, out.numpy())
    return out


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


@njit
def _place(i, j, k, dx, dy, dz, m, n, axis):  # type: ignore[no-untyped-def]
    """Index along one axis of the source: (m · (i, j, k, 1) + n · d)_axis, in float64."""
    grid = m[axis, 0] * i + m[axis, 1] * j + m[axis, 2] * k + m[axis, 3]
    return grid + n[axis, 0] * dx + n[axis, 1] * dy + n[axis, 2] * dz


@njit
def _bracket(x, size):  # type: ignore[no-untyped-def]
    """Lower voxel, upper voxel, the upper one's weight, inside; a voxel reaches half a voxel around its center."""
    if not (x >= -0.5 and x < size - 0.5):  # NaN is outside
        return 0, 0, 0.0, False
    x = min(max(x, 0.0), size - 1.0)
    low = math.floor(x)
    return low, min(low + 1, size - 1), x - low, True


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _linear(v, d, m, n, out):  # type: ignore[no-untyped-def]
    nx, ny, nz = out.shape
    for i in prange(nx):
        for j in range(ny):
            for k in range(nz):
                dx, dy, dz = d[0, i, j, k], d[1, i, j, k], d[2, i, j, k]
                x0, x1, fx, in_x = _bracket(_place(i, j, k, dx, dy, dz, m, n, 0), v.shape[0])
                y0, y1, fy, in_y = _bracket(_place(i, j, k, dx, dy, dz, m, n, 1), v.shape[1])
                z0, z1, fz, in_z = _bracket(_place(i, j, k, dx, dy, dz, m, n, 2), v.shape[2])
                if not (in_x and in_y and in_z):
                    out[i, j, k] = 0.0
                    continue
                near = (1 - fy) * ((1 - fz) * v[x0, y0, z0] + fz * v[x0, y0, z1]) + fy * (
                    (1 - fz) * v[x0, y1, z0] + fz * v[x0, y1, z1]
                )
                far = (1 - fy) * ((1 - fz) * v[x1, y0, z0] + fz * v[x1, y0, z1]) + fy * (
                    (1 - fz) * v[x1, y1, z0] + fz * v[x1, y1, z1]
                )
                out[i, j, k] = (1 - fx) * near + fx * far


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _nearest(v, d, m, n, out):  # type: ignore[no-untyped-def]
    nx, ny, nz = out.shape
    for i in prange(nx):
        for j in range(ny):
            for k in range(nz):
                dx, dy, dz = d[0, i, j, k], d[1, i, j, k], d[2, i, j, k]
                x = math.floor(_place(i, j, k, dx, dy, dz, m, n, 0) + 0.5)
                y = math.floor(_place(i, j, k, dx, dy, dz, m, n, 1) + 0.5)
                z = math.floor(_place(i, j, k, dx, dy, dz, m, n, 2) + 0.5)
                inside = x >= 0 and y >= 0 and z >= 0 and x < v.shape[0] and y < v.shape[1] and z < v.shape[2]
                out[i, j, k] = v[int(x), int(y), int(z)] if inside else 0
