"""Calling compiled loops, and which of them there are here."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch import Tensor

from scripts.core.threads import LOCK, use_torch_threads
from scripts.gaussian.errors import BackendWarning


def run(loop: Callable[..., None], *arguments: Any) -> None:
    """Call a compiled loop with as many threads as torch has, one loop at a time in the process.

    Args:
        loop: writes its results into arguments.
        arguments: tensors become arrays, contiguous ones; those that are written to must be contiguous before.
    """
    arrays = [each.detach().contiguous().numpy() if isinstance(each, Tensor) else each for each in arguments]
    with LOCK:
        use_torch_threads()
        loop(*arrays)


@functools.cache
def compiled(module: str) -> ModuleType | None:
    """The module of compiled loops with this full name; None, after a warning, where numba cannot be used."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as error:  # the latter: no place for numba's cache
        _warn_once(str(error))
        return None


@functools.cache
def _warn_once(reason: str) -> None:
    message = f"compiled loops are not available ({reason}); the slower torch backend takes their place"
    warnings.warn(message, BackendWarning, stacklevel=4)
