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
from scipy.ndimage import maximum_filter, minimum_filter
from torch import Tensor
from torch.nn import functional as F

from scripts.gaussian.backends.lanes import LANES
from scripts.gaussian.backends.loops import run
from scripts.registration.backends.numba_blocks import correlate_block, slide_block, warp_block
from scripts.registration.local_correlation import FixedStatistics

_CONSTANT = 1e-14
"""Variance below which a window of the fixed image counts as constant; with ε = 10⁻⁵ its squared correlation is below
10⁻⁹ whatever the moving image shows."""


class Prepared(NamedTuple):
    """What all fields of a pair share, in the order of the loop's arguments; P is Z rounded up to a multiple of 16."""

    pairs: Tensor  # (X + 1, Y + 1, Z) int64: a voxel of the moving image and its successor along z, border repeated
    fixed: Tensor  # (X, Y, P) float32
    mean: Tensor  # (X, Y, P) float64, local means of the fixed image
    weight: Tensor  # (X, Y, P) float32, mask / (σ² (local variance + ε))
    active: np.ndarray  # (X, Y, 2) int64, first voxel and blocks of a row whose correlation counts
    needed: np.ndarray  # (X, Y, 2) int64, the same of the voxels in their windows, which are to be warped
    boxes: np.ndarray  # (X + radius, 4) int64, for each plane that enters: rows (first, end) and first voxel and blocks
    shares: tuple[np.ndarray, ...]  # (X,), (Y,), (P,) float64, 1 / the window's extent along an axis
    window: int
    eps: np.float32


def prepare(moving: Tensor, fixed: FixedStatistics, mask: Tensor | None, eps: float, sigma: float) -> Prepared:
    """Arrange a pair for `log_likelihood`; images [1, 1, X, Y, Z] float32."""
    moving, image, mean, variance = (each.detach().as_subclass(Tensor)[0, 0] for each in (moving, *fixed[:3]))
    trust = 1.0 / (sigma**2 * (variance + eps))
    if mask is not None:
        trust = trust * mask.detach()[0, 0]
    counts = ~(variance <= _CONSTANT) & (trust != 0)  # where it is NaN, so is the result
    radius, beyond = fixed.window // 2, -moving.shape[-1] % LANES
    repeated = F.pad(moving[None], [0, 1] * 3, mode="replicate")[0]
    pairs = torch.stack([repeated[..., :-1], repeated[..., 1:]], dim=-1)
    shares = []
    for length in moving.shape:
        i = np.arange(length)
        shares.append(1.0 / (np.minimum(i + radius + 1, length) - np.maximum(i - radius, 0)))
    shares[2] = np.pad(shares[2], (0, beyond))
    pairs = pairs.view(torch.int64)[..., 0]
    image, mean, trust = (F.pad(volume, (0, beyond)).contiguous() for volume in (image, mean, trust.float()))
    active, needed, boxes = _extents(counts.numpy(), radius)
    return Prepared(pairs, image, mean, trust, active, needed, boxes, tuple(shares), fixed.window, np.float32(eps))


def log_likelihood(pair: Prepared, z: Tensor, phases: Tensor, starts: Tensor) -> Tensor:
    """log p(I_f | I_m ∘ Z) of the displacements z, control points [N, 3, x, y, z] float32; shape [N], float64.

    Args:
        z: finite or not; NaN for fields that are not.
        phases: the spline's weights, shape [factor, 4]: image voxel factor · κ + p takes those of phase p.
        starts: and the first of its four control points is κ + starts[p], shape [factor].
    """
    out = torch.empty(z.shape[0], dtype=torch.float64)
    run(_log_likelihood, out, z, phases, starts, *pair)
    return out


def _extents(counts: np.ndarray, radius: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Active, needed and boxes of `Prepared`, from the voxels that count, (X, Y, Z) bool."""
    nx, _, nz = counts.shape
    # First and last + 1 voxel of each row, nz and 0 where there is none; then those of the rows around, and around k.
    low = np.where(counts.any(-1), counts.argmax(-1), nz)
    high = np.where(counts.any(-1), nz - counts[..., ::-1].argmax(-1), 0)
    first = np.maximum(minimum_filter(low, 2 * radius + 1, mode="nearest") - radius, 0)
    last = maximum_filter(high, 2 * radius + 1, mode="nearest")
    some = last > 0
    first, last = np.where(some, first, nz), np.where(some, np.minimum(last + radius, nz), 0)
    boxes = np.zeros((nx + radius, 4), dtype=np.int64)
    for p in range(nx + radius):
        # Row (i, j) enters at plane i, leaves at plane i + window, and is in the windows of all planes between.
        planes = slice(max(p - 2 * radius - 1, 0), p + 1)
        rows = np.flatnonzero(some[planes].any(0))
        if len(rows):
            boxes[p, :2] = rows[0], rows[-1] + 1
            boxes[p, 2:] = _blocks(first[planes].min(), last[planes].max(), nz)
    return _blocks(low, high, nz), _blocks(first, last, nz), boxes


def _blocks(first: np.ndarray, last: np.ndarray, nz: int) -> np.ndarray:
    """First voxel and number of blocks that cover a row from first to last − 1, (…, 2); both 0 if it is empty."""
    blocks = -(-np.maximum(last - first, 0) // LANES)
    start = np.minimum(first, -(-nz // LANES) * LANES - blocks * LANES)  # no block reaches over the padded row's end
    return np.stack([np.where(blocks > 0, start, 0), blocks], axis=-1)


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
    out, fields, phases, starts, pairs, fixed, mean, weight, active, needed, boxes, shares, window, eps
):
    count, _, _, cy, cz = fields.shape
    nx, ny, width = fixed.shape
    nz, radius, factor = pairs.shape[2], window // 2, phases.shape[0]
    flat_pairs, flat_phases = pairs.reshape(-1), phases.reshape(-1)
    flat_fixed, flat_mean, flat_weight = fixed.reshape(-1), mean.reshape(-1), weight.reshape(-1)
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
