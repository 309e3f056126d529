"""The log-likelihood of many fields on the CPU in one pass: spline, warp and local correlation together.

A sample goes through the image once, plane by plane along x and row by row along y, and leaves nothing but one number:

    control points ──along x──► a coarse plane ──along z──► its rows at full length ──along y──► u of a row ──► m, the
    warped row ──► sums of m, m² and f·m over the window along x (kept for a plane) ──► and y (for a row) ──► and z ──►
    Σ weight · cov² / (var + ε)

So row (p, j) of the warped image, once it is there, moves the windows and finishes row (p − radius, j − radius) of the
correlation. What is kept of a sample fits the cache: the last `window` planes of m, which leave the sums again, and a
plane of sums. Sums are float64, as differences of nearly equal ones are taken.

Where the fixed image is constant in the whole window, the covariance is zero whatever the field is. Only the voxels
around the others are warped: of a head on an empty background, less than half. Rows of the fixed image are padded with
weight 0 to a multiple of 16 voxels. A thread takes a sample at a time; nothing depends on the other samples.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from scripts.core.threads import LOCK, use_torch_threads
from scripts.gaussian.backends.lanes import LANES
from scripts.registration.backends.numba_blocks import correlate_block, slide_block, warp_block

_CONSTANT = 1e-14
"""Variance below which a window of the fixed image counts as constant; with ε = 10⁻⁵ its squared correlation is below
10⁻⁹ whatever the moving image shows."""


class Prepared(NamedTuple):
    """What all fields of a pair share; P is Z rounded up to a multiple of 16."""

    pairs: np.ndarray  # (X + 1, Y + 1, Z) int64: a voxel of the moving image and its successor along z, border repeated
    fixed: np.ndarray  # (X, Y, P) float32
    mean: np.ndarray  # (X, Y, P) float64, local means of the fixed image
    weight: np.ndarray  # (X, Y, P) float32, mask / (σ² (local variance + ε))
    active: np.ndarray  # (X, Y, 2) int64, first voxel and blocks of a row whose correlation counts
    needed: np.ndarray  # (X, Y, 2) int64, the same of the voxels in their windows, which are to be warped
    boxes: np.ndarray  # (X + radius, 4) int64, for each plane that enters: rows (first, end) and first voxel and blocks
    shares: tuple[np.ndarray, np.ndarray, np.ndarray]  # (X,), (Y,), (P,) float64, 1 / the window's extent along an axis
    window: int
    eps: float


def prepare(
    moving: Tensor,
    image: Tensor,
    mean: Tensor,
    variance: Tensor,
    mask: Tensor | None,
    window: int,
    eps: float,
    sigma: float,
) -> Prepared:
    """Arrange a pair for `log_likelihood`; images [1, 1, X, Y, Z] float32, statistics float64."""
    source = moving.detach()[0, 0]
    columns = torch.stack([source, torch.cat([source[..., 1:], source[..., -1:]], dim=-1)], dim=-1)
    columns = torch.cat([columns, columns[-1:]])
    columns = torch.cat([columns, columns[:, -1:]], dim=1).contiguous()  # (X + 1, Y + 1, Z, 2)
    size = source.shape[-1]
    beyond = -size % LANES
    trust = 1.0 / (sigma**2 * (variance.detach()[0, 0] + eps))
    if mask is not None:
        trust = trust * mask.detach()[0, 0]
    counts = ~(variance.detach()[0, 0] <= _CONSTANT) & (trust != 0)  # where it is NaN, so is the result

    def padded(volume: Tensor) -> np.ndarray:
        return torch.nn.functional.pad(volume.detach().as_subclass(Tensor), (0, beyond)).contiguous().numpy()

    active, needed, boxes = _extents(counts.numpy(), window // 2, LANES)
    shares = []
    for length in source.shape:
        i = np.arange(length)
        shares.append(1.0 / (np.minimum(i + window // 2 + 1, length) - np.maximum(i - window // 2, 0)))
    shares[2] = np.pad(shares[2], (0, beyond))
    return Prepared(
        columns.view(torch.int64)[..., 0].numpy(),
        padded(image[0, 0]),
        padded(mean[0, 0]),
        padded(trust.float()),
        active,
        needed,
        boxes,
        (shares[0], shares[1], shares[2]),
        window,
        eps,
    )


def log_likelihood(pair: Prepared, z: Tensor, phases: Tensor, starts: Tensor) -> Tensor:
    """log p(I_f | I_m ∘ Z) of the displacements z, control points [N, 3, x, y, z] float32; shape [N], float64.

    Args:
        pair: the images.
        z: finite or not; NaN for fields that are not.
        phases: the spline's weights, shape [factor, 4]: image voxel factor · κ + p takes those of phase p.
        starts: and the first of its four control points is κ + starts[p], shape [factor].
    """
    out = torch.empty(z.shape[0], dtype=torch.float64)
    with LOCK:
        use_torch_threads()
        _log_likelihood(
            z.detach().contiguous().numpy(),
            phases.numpy(),
            starts.numpy(),
            pair.pairs,
            pair.fixed,
            pair.mean,
            pair.weight,
            pair.active,
            pair.needed,
            pair.boxes,
            pair.shares,
            pair.window,
            np.float32(pair.eps),
            out.numpy(),
        )
    return out


@njit(cache=True, nogil=True)
def _extents(counts, radius, lanes):  # type: ignore[no-untyped-def]
    """Extents of the voxels that count, see `Prepared`."""
    nx, ny, nz = counts.shape
    width = (nz + lanes - 1) // lanes * lanes
    low, high = np.full((nx, ny), nz), np.zeros((nx, ny), dtype=np.int64)
    for i in range(nx):
        for j in range(ny):
            for k in range(nz):
                if counts[i, j, k]:
                    low[i, j] = min(low[i, j], k)
                    high[i, j] = k + 1
    # The windows' extents: smallest start and largest end of the rows around, along x, then along y.
    along_x = np.full((nx, ny), nz), np.zeros((nx, ny), dtype=np.int64)
    for i in range(nx):
        for q in range(max(0, i - radius), min(nx, i + radius + 1)):
            for j in range(ny):
                along_x[0][i, j] = min(along_x[0][i, j], low[q, j])
                along_x[1][i, j] = max(along_x[1][i, j], high[q, j])
    active, needed = np.zeros((nx, ny, 2), dtype=np.int64), np.zeros((nx, ny, 2), dtype=np.int64)
    boxes = np.zeros((nx + radius, 4), dtype=np.int64)
    boxes[:, 0], boxes[:, 2] = ny, nz
    ends = np.zeros(nx + radius, dtype=np.int64)
    for i in range(nx):
        for j in range(ny):
            first, last = nz, 0
            for q in range(max(0, j - radius), min(ny, j + radius + 1)):
                first, last = min(first, along_x[0][i, q]), max(last, along_x[1][i, q])
            if last == 0:
                continue
            first, last = max(first - radius, 0), min(last + radius, nz)
            blocks = (last - first + lanes - 1) // lanes
            needed[i, j, 0], needed[i, j, 1] = min(first, width - blocks * lanes), blocks
            if high[i, j] > 0:
                blocks = (high[i, j] - low[i, j] + lanes - 1) // lanes
                active[i, j, 0], active[i, j, 1] = min(low[i, j], width - blocks * lanes), blocks
            # Row (i, j) enters at plane i, leaves at plane i + window, and is in the windows of all planes between.
            for p in range(i, min(i + 2 * radius + 2, nx + radius)):
                boxes[p, 0], boxes[p, 1] = min(boxes[p, 0], j), max(boxes[p, 1], j + 1)
                boxes[p, 2], ends[p] = min(boxes[p, 2], first), max(ends[p], last)
    for p in range(nx + radius):
        if ends[p] > 0:
            boxes[p, 3] = (ends[p] - boxes[p, 2] + lanes - 1) // lanes
            boxes[p, 2] = min(boxes[p, 2], width - boxes[p, 3] * lanes)
        else:
            boxes[p] = 0
    return active, needed, boxes


@njit
def _finite(values):  # type: ignore[no-untyped-def]
    """Whether no number is infinite or NaN; by the exponents' bits, which vectorizes."""
    bits, found = values.view(np.int32), np.int32(0)
    for n in range(bits.size):
        found |= np.int32((bits[n] & np.int32(0x7F800000)) == np.int32(0x7F800000))
    return found == 0


@njit
def _along_x(field, i, factor, phases, starts, first, end, coarse):  # type: ignore[no-untyped-def]
    """The spline along x at plane i: control rows first … end − 1, with two repeated ends along z on either side."""
    kappa, p = i // factor, i % factor
    last, nz = field.shape[1] - 1, field.shape[3]
    a, b = min(max(kappa + starts[p], 0), last), min(max(kappa + starts[p] + 1, 0), last)
    c, d = min(max(kappa + starts[p] + 2, 0), last), min(max(kappa + starts[p] + 3, 0), last)
    w0, w1, w2, w3 = phases[p, 0], phases[p, 1], phases[p, 2], phases[p, 3]
    for channel in range(3):
        for j in range(first, end):
            fa, fb, fc, fd = field[channel, a, j], field[channel, b, j], field[channel, c, j], field[channel, d, j]
            row = coarse[channel, j]
            for k in range(nz):
                row[k + 2] = w0 * fa[k] + w1 * fb[k] + w2 * fc[k] + w3 * fd[k]
            row[0] = row[1] = row[2]
            row[nz + 2] = row[nz + 3] = row[nz + 1]


@njit
def _along_z(coarse, phases, starts, first, end, plane):  # type: ignore[no-untyped-def]
    """The spline along z: rows of control points become rows of the image's length."""
    factor, controls = phases.shape[0], coarse.shape[2] - 4
    for channel in range(3):
        for j in range(first, end):
            row, out = coarse[channel, j], plane[channel, j]
            if factor == 2:  # both phases in one turn: vectorized, the results interleaved
                w0, w1, w2, w3 = phases[0, 0], phases[0, 1], phases[0, 2], phases[0, 3]
                v0, v1, v2, v3 = phases[1, 0], phases[1, 1], phases[1, 2], phases[1, 3]
                for k in range(controls):
                    out[2 * k] = w0 * row[k] + w1 * row[k + 1] + w2 * row[k + 2] + w3 * row[k + 3]
                    out[2 * k + 1] = v0 * row[k + 1] + v1 * row[k + 2] + v2 * row[k + 3] + v3 * row[k + 4]
                continue
            for p in range(factor):
                shift = starts[p] + 2
                for k in range(controls):
                    total = phases[p, 0] * row[k + shift] + phases[p, 1] * row[k + shift + 1]
                    total += phases[p, 2] * row[k + shift + 2] + phases[p, 3] * row[k + shift + 3]
                    out[factor * k + p] = total


@njit(parallel=True, cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def _log_likelihood(  # type: ignore[no-untyped-def]
    fields, phases, starts, pairs, fixed, mean, weight, active, needed, boxes, shares, window, eps, out
):
    count, _, _, cy, cz = fields.shape
    nx, ny, width = fixed.shape
    nz, radius, factor = pairs.shape[2], window // 2, phases.shape[0]
    flat_pairs, flat_fixed, flat_mean, flat_weight = (
        pairs.reshape(-1),
        fixed.reshape(-1),
        mean.reshape(-1),
        weight.reshape(-1),
    )
    flat_phases = phases.reshape(-1)
    sx, sy = np.int32(pairs.shape[1] * nz), np.int32(nz)
    for n in prange(count):
        field = fields[n]
        if not _finite(field.reshape(-1)):
            out[n] = np.nan
            continue
        coarse = np.empty((3, cy, cz + 4), dtype=np.float32)
        plane = np.zeros((3, cy, max(factor * cz, width)), dtype=np.float32)
        ring = np.zeros((window, ny + 1, width), dtype=np.float32).reshape(-1)  # row ny: zeros, beyond the border
        sums = np.zeros((ny + 1, 3, width)).reshape(-1)
        row, stride = np.zeros(width, dtype=np.float32), width + 2 * radius
        window_sums, totals = np.zeros(3 * stride), np.zeros(width)
        flat_plane, length = plane.reshape(-1), plane.shape[2]
        reach = np.empty(4, dtype=np.float32)
        for p in range(nx + radius):
            j_first, j_end, k_first, blocks = boxes[p, 0], boxes[p, 1], boxes[p, 2], boxes[p, 3]
            if blocks == 0:
                continue
            if p < nx:
                lowest, highest = max(j_first // factor - 2, 0), min((j_end - 1) // factor + 3, cy)
                _along_x(field, p, factor, phases, starts, lowest, highest, coarse)
                _along_z(coarse, phases, starts, lowest, highest, plane)
            window_sums[:] = 0.0
            reach[0], reach[1] = -p, nx - 1 - p
            slot = (p % window) * (ny + 1)
            i = p - radius
            for j in range(j_first, j_end + radius):
                row[:] = 0.0
                inside = min(j, ny)
                if p < nx and j < ny and needed[p, j, 1] > 0:
                    kappa, phase = j // factor, j % factor
                    at = kappa + starts[phase]
                    a, b = min(max(at, 0), cy - 1) * length, min(max(at + 1, 0), cy - 1) * length
                    c, d = min(max(at + 2, 0), cy - 1) * length, min(max(at + 3, 0), cy - 1) * length
                    reach[2], reach[3] = -j, ny - 1 - j
                    base = p * sx + j * sy
                    for block in range(needed[p, j, 1]):
                        k = needed[p, j, 0] + block * LANES
                        warp_block(
                            flat_plane, a + k, b + k, c + k, d + k, cy * length, flat_phases, phase * 4, flat_pairs,
                            np.int32(base + k), sx, sy, reach, np.float32(nz - 1), np.float32(k), row, k,
                        )  # fmt: skip
                    row[nz:] = 0.0
                enters = (min(p, nx - 1) * ny + min(j, ny - 1)) * width
                leaves = (max(p - window, 0) * ny + min(j, ny - 1)) * width
                here = inside * 3 * width
                behind = (j - window if j - window >= j_first else ny) * 3 * width
                for block in range(blocks):
                    k = k_first + block * LANES
                    slide_block(
                        row, k, ring, (slot + inside) * width + k, flat_fixed, enters + k, leaves + k, sums, here + k,
                        behind + k, width, window_sums, radius + k, stride,
                    )  # fmt: skip
                jo = j - radius
                if i < 0 or jo < 0 or jo >= ny or active[i, jo, 1] == 0:
                    continue
                share, voxel = shares[0][i] * shares[1][jo], (i * ny + jo) * width
                for block in range(active[i, jo, 1]):
                    k = active[i, jo, 0] + block * LANES
                    correlate_block(
                        window_sums, k, stride, window, share, shares[2], k, flat_mean, flat_weight, voxel + k, eps,
                        totals,
                    )  # fmt: skip
        out[n] = totals.sum()
