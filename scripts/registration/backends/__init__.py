"""Compiled loops for float32 on the CPU. Each has a torch twin beside the function that calls it, for all others.

`numba_warp` gathers voxels, `numba_ncc` slides windows, `numba_prior` takes differences: each does in one pass what
takes torch a dozen. `numba_likelihood` joins spline, warp and windows for fields without gradients, which leave nothing
but a number; its inner loops are in `numba_blocks`, written for vector registers with `lanes`.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch
from torch import Tensor


class BackendWarning(UserWarning):
    """The compiled loops cannot be used and the slower torch operations are."""


def compiled(name: str, *tensors: Tensor) -> ModuleType | None:
    """The module of compiled loops with this name, or None if it does not serve such tensors."""
    served = all(tensor.device.type == "cpu" and tensor.dtype == torch.float32 for tensor in tensors)
    return _load(name) if served else None


@functools.cache
def _load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except (ImportError, RuntimeError) as error:  # the latter: no place for numba's cache
        message = f"{name} is not available ({error}); registering with slower torch operations"
        warnings.warn(message, BackendWarning, stacklevel=4)
        return None
