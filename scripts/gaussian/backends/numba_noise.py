"""The noise of `scripts.gaussian.noise` on the CPU in float32: the same formulas in one vectorized loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange
from torch import Tensor

from scripts.gaussian.backends.loops import run

_SHIFT_30, _SHIFT_27, _SHIFT_31 = np.uint64(30), np.uint64(27), np.uint64(31)
_SHIFT_32, _LOW_32 = np.uint64(32), np.uint64(0xFFFFFFFF)
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_BLOCK = 4096


def fill(out: Tensor, states: Sequence[int]) -> None:
    """Write normal numbers into out, shape (N, size) float32, row n from the hash state states[n] (uint64)."""
    run(_fill, out, np.array(states, dtype=np.uint64))


@njit
def _log(x):  # type: ignore[no-untyped-def]
    """Natural logarithm of a normal positive float32 to 1 ulp or so: x = 2^e (1 + r), |r| < 0.42, polynomial in r."""
    bits = np.float32(x).view(np.int32)
    # Adding the distance from 1/sqrt(2) to 1 before taking the exponent puts the mantissa around 1.
    shifted = np.int32(bits + np.int32(0x3F800000 - 0x3F3504F3))
    exponent = np.float32(np.int32(np.int32(shifted >> np.int32(23)) - np.int32(127)))
    mantissa = np.int32((shifted & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)).view(np.float32)
    r = mantissa - np.float32(1.0)
    # log(1 + r) = 2 atanh(s) with s = r / (2 + r): odd powers only, |s| < 0.1716
    s = r / (np.float32(2.0) + r)
    s2 = s * s
    tail = np.float32(2.0 / 9.0)
    tail = tail * s2 + np.float32(2.0 / 7.0)
    tail = tail * s2 + np.float32(2.0 / 5.0)
    tail = tail * s2 + np.float32(2.0 / 3.0)
    return exponent * np.float32(0.6931471805599453) + (np.float32(2.0) * s + s * s2 * tail)


@njit
def _cos_sin_of_turn(turn):  # type: ignore[no-untyped-def]
    """Cosine and sine of 2π·turn, 0 <= turn < 1: Taylor series within ±1/8 turn, then quarter turns."""
    quarter = np.int32(turn * np.float32(4.0) + np.float32(0.5))
    x = (turn * np.float32(4.0) - np.float32(quarter)) * np.float32(1.5707963267948966)
    y = x * x
    sine = np.float32(-1.0 / 5040.0) + y * np.float32(1.0 / 362880.0)
    sine = np.float32(1.0 / 120.0) + y * sine
    sine = np.float32(-1.0 / 6.0) + y * sine
    sine = x + x * y * sine
    cosine = np.float32(-1.0 / 720.0) + y * (np.float32(1.0 / 40320.0) - y * np.float32(1.0 / 3628800.0))
    cosine = np.float32(1.0 / 24.0) + y * cosine
    cosine = np.float32(1.0) - np.float32(0.5) * y + y * y * cosine
    swap = (quarter & np.int32(1)) != 0
    c = sine if swap else cosine
    s = cosine if swap else sine
    c = -c if ((quarter + np.int32(1)) & np.int32(2)) != 0 else c
    s = -s if (quarter & np.int32(2)) != 0 else s
    return c, s


@njit(parallel=True, cache=True, nogil=True, error_model="numpy")
def _fill(out, states):  # type: ignore[no-untyped-def]
    count, size = out.shape
    pairs = (size + 1) // 2
    blocks = (pairs + _BLOCK - 1) // _BLOCK
    for job in prange(count * blocks):
        n, block = job // blocks, job % blocks
        start = block * _BLOCK
        length = min(_BLOCK, pairs - start)
        first, second = np.empty(_BLOCK, dtype=np.float32), np.empty(_BLOCK, dtype=np.float32)
        for p in range(length):
            bits = states[n] + np.uint64(start + p + 1) * _GAMMA
            bits = (bits ^ (bits >> _SHIFT_30)) * _MIX_1
            bits = (bits ^ (bits >> _SHIFT_27)) * _MIX_2
            bits = bits ^ (bits >> _SHIFT_31)
            uniform = np.float32(np.int64((bits >> _SHIFT_32) + np.uint64(1))) * np.float32(2.0**-32)
            turn = np.float32(np.int64(bits & _LOW_32)) * np.float32(2.0**-32)
            radius = np.sqrt(np.float32(-2.0) * min(_log(uniform), np.float32(0.0)))
            c, s = _cos_sin_of_turn(turn)
            first[p] = radius * c
            second[p] = radius * s
        row = out[n]
        whole = min(length, (size - 2 * start) // 2)
        for p in range(whole):
            row[2 * (start + p)] = first[p]
            row[2 * (start + p) + 1] = second[p]
        if whole < length:
            row[2 * (start + whole)] = first[whole]
