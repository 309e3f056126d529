"""Standard normal noise that can be made again: number j of sample i of seed s is always the same number.

It is computed, not drawn: a counter is hashed (SplitMix64) and turned into normal numbers (Box-Muller). So a sample
does not depend on how many others were drawn with it, in which chunks, or on which device, and can be redrawn later
from its seed and index alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.core.fusion import fused
from scripts.gaussian import backends

_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_MASK_64 = (1 << 64) - 1
_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 23
"""Pairs of numbers made at a time; keeps the integers of the hash small beside the result. More on a GPU, where every
step of the way is a kernel to be launched."""


def _signed(value: int) -> int:
    """The int64 with the same bits."""
    value &= _MASK_64
    return value - (1 << 64) if value >= 1 << 63 else value


def mix(state: int) -> int:
    """SplitMix64's finalizer on a Python integer."""
    state &= _MASK_64
    state = ((state ^ (state >> 30)) * _MIX_1) & _MASK_64
    state = ((state ^ (state >> 27)) * _MIX_2) & _MASK_64
    return state ^ (state >> 31)


def fold(seed: int, index: int) -> int:
    """A seed for part `index` of something that has the seed `seed`; part 0 keeps the seed itself."""
    return seed if index == 0 else mix(mix(seed) + index * _GAMMA) >> 1


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift of int64 (torch shifts in copies of the sign)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _hash(counter: Tensor) -> Tensor:
    """SplitMix64's finalizer on int64 tensors; products wrap around, as they should."""
    counter = (counter ^ _shift_right(counter, 30)) * _signed(_MIX_1)
    counter = (counter ^ _shift_right(counter, 27)) * _signed(_MIX_2)
    return counter ^ _shift_right(counter, 31)


def standard_normal(
    shape: Sequence[int],
    seed: int,
    indices: Sequence[int],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Noise for N samples, given by their indices in any order; shape (N, *shape).

    Numbers agree between devices to rounding; float32 and float64 come from the same 64 random bits a pair.
    """
    size = math.prod(shape)
    out = torch.empty((len(indices), size), device=device, dtype=dtype)
    pairs = (size + 1) // 2
    states = [mix(mix(seed) + _GAMMA * (2 * index + 1)) for index in indices]
    fast = backends.noise(out.device, dtype)
    if fast is not None:
        fast.fill(out, states)
        return out.reshape(len(indices), *shape)
    rows = torch.empty((len(indices), 1), device=device, dtype=torch.int64)
    for row, state in zip(rows, states, strict=True):
        row.fill_(_signed(state))  # not copied from the host: a GPU would be waited for
    length = max((_BLOCK if out.device.type == "cpu" else _GPU_BLOCK) // max(len(indices), 1), 1)
    for start in range(0, pairs, length):
        stop = min(start + length, pairs)
        counter = torch.arange(start + 1, stop + 1, device=device, dtype=torch.int64)
        part = out[:, 2 * start : 2 * stop]
        part.copy_(_normal_pairs(counter * _signed(_GAMMA) + rows, dtype)[:, : part.shape[1]])
    return out.reshape(len(indices), *shape)


@fused
def _normal_pairs(counter: Tensor, dtype: torch.dtype) -> Tensor:
    """Box-Muller: the two halves of each hash give a radius and an angle, these a pair of normal numbers.

    From int64 (N, n) to (N, 2n).
    """
    bits = _hash(counter)
    # (0, 1]: the radius stays finite, and reaches 6.6 standard deviations.
    first = (_shift_right(bits, 32) + 1).to(torch.float64).mul_(2.0**-32).to(dtype)
    angle = (bits & 0xFFFFFFFF).to(torch.float64).mul_(2.0 * math.pi * 2.0**-32).to(dtype)
    radius = first.log_().mul_(-2.0).sqrt_()
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=2).flatten(1)
