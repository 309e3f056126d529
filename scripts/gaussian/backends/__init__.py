"""Which code solves and multiplies with L, by device. Every backend gives the same numbers.

| backend  | device    | what it is                                                                |
|----------|-----------|---------------------------------------------------------------------------|
| numba    | CPU       | right-hand sides in vector lanes, threads over blocks of them; the fastest |
| torch    | CPU, CUDA | wavefronts of independent voxels, pure torch                              |
| cholespy | CPU, CUDA | refactorizes L Lᵀ; small grids, to cross-check                            |
"""

from __future__ import annotations

import functools
import importlib
import warnings
from types import ModuleType

import torch

from scripts.gaussian.errors import BackendError, BackendWarning

_MODULES = {"numba": "numba_solve", "torch": "torch_wavefront", "cholespy": "cholespy_solve"}
_DEVICES = {"numba": ("cpu",), "torch": None, "cholespy": ("cpu", "cuda")}
BACKENDS = tuple(_MODULES)


@functools.cache
def _load(name: str) -> ModuleType | ImportError:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        return error
    except RuntimeError as error:  # numba: no place for its cache
        return ImportError(str(error))


def solver(device: torch.device, name: str | None = None) -> ModuleType:
    """The module whose `pack` and `solve` do triangular solves on this device.

    Args:
        device: where the tensors are.
        name: one of BACKENDS, or None for the fastest that is installed.

    Raises:
        BackendError: an unknown name, a package that is missing, or one that cannot run on the device.
    """
    if name is None:
        if device.type == "cpu" and _numba_or_warn("numba_solve"):
            return _numba_or_warn("numba_solve")  # type: ignore[return-value]
        return importlib.import_module(f"{__name__}.torch_wavefront")
    if name not in _MODULES:
        raise BackendError(f"backend must be one of {BACKENDS}, got {name!r}")
    devices = _DEVICES[name]
    if devices is not None and device.type not in devices:
        raise BackendError(f"backend {name!r} runs on {' and '.join(devices)}, but the tensors are on {device}")
    module = _load(_MODULES[name])
    if isinstance(module, ImportError):
        raise BackendError(f"backend {name!r} is not installed here ({module}); use another of {BACKENDS}")
    return module


def products(device: torch.device) -> ModuleType:
    """The module whose `multiply` and `outer` serve this device."""
    fast = _numba_or_warn("numba_products") if device.type == "cpu" else None
    return fast or importlib.import_module(f"{__name__}.torch_products")


def noise(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The module whose `fill` makes noise faster than torch does, if there is one for this device and precision."""
    return _numba_or_warn("numba_noise") if device.type == "cpu" and dtype == torch.float32 else None


def sums(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The module whose `inner_products` and `squared_norms` are faster than torch's, if there is one; no gradients."""
    return _numba_or_warn("numba_sums") if device.type == "cpu" and dtype == torch.float32 else None


def _numba_or_warn(module: str) -> ModuleType | None:
    loaded = _load(module)
    if isinstance(loaded, ImportError):
        _warn_once(str(loaded))
        return None
    return loaded


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        f"numba is not available ({reason}); solving with the slower torch backend", BackendWarning, stacklevel=4
    )
