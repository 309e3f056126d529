"""Compiled loops for float32 on the CPU. Each has a torch twin beside the function that calls it, for all others.

`numba_warp` gathers voxels, `numba_ncc` slides windows, `numba_prior` takes differences: each does in one pass what
takes torch a dozen. `numba_likelihood` joins spline, warp and windows for fields without gradients, which leave nothing
but a number; its inner loops are in `numba_blocks`, written for vector registers.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from scripts.gaussian.backends import loops


def compiled(name: str, *tensors: Tensor) -> ModuleType | None:
    """The module of compiled loops with this name, or None if it does not serve such tensors."""
    served = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return loops.compiled(f"{__name__}.{name}") if served else None
