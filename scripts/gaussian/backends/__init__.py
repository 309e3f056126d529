"""Which code solves and multiplies with L, by device. Every backend gives the same numbers.

| backend  | device    | what it is                                                                |
|----------|-----------|---------------------------------------------------------------------------|
| numba    | CPU       | right-hand sides in vector lanes, threads over blocks of them; the fastest |
| torch    | CPU, CUDA | wavefronts of independent voxels, pure torch                              |
| cholespy | CPU, CUDA | refactorizes L Lᵀ; small grids, to cross-check                            |
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from scripts.gaussian.backends.loops import compiled
from scripts.gaussian.errors import BackendError

_MODULES = {"numba": "numba_solve", "torch": "torch_wavefront", "cholespy": "cholespy_solve"}
BACKENDS = tuple(_MODULES)


def solver(device: torch.device, name: str | None = None) -> ModuleType:
    """The module whose `pack` and `solve` do triangular solves on this device: one of BACKENDS, None for the fastest.

    Raises:
        BackendError: an unknown name, a package that is missing, or one that cannot run on the device.
    """
    if name is None:
        return _numba("solve", device) or importlib.import_module(f"{__name__}.torch_wavefront")
    if name not in _MODULES:
        raise BackendError(f"backend must be one of {BACKENDS}, got {name!r}")
    devices = {"numba": ("cpu",), "cholespy": ("cpu", "cuda")}.get(name, (device.type,))
    if device.type not in devices:
        raise BackendError(f"backend {name!r} runs on {' and '.join(devices)}, but the tensors are on {device}")
    try:
        return importlib.import_module(f"{__name__}.{_MODULES[name]}")
    except (ImportError, RuntimeError) as error:
        raise BackendError(f"backend {name!r} is not installed here ({error}); use another of {BACKENDS}") from error


def products(device: torch.device) -> ModuleType:
    """The module whose `multiply` and `outer` serve this device."""
    return _numba("products", device) or importlib.import_module(f"{__name__}.torch_products")


def noise(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The module whose `fill` makes noise faster than torch does, if there is one for this device and precision."""
    return _numba("noise", device) if dtype == torch.float32 else None


def sums(device: torch.device, dtype: torch.dtype) -> ModuleType | None:
    """The module whose `inner_products` are faster than torch's, if there is one; no gradients."""
    return _numba("sums", device) if dtype == torch.float32 else None


def _numba(work: str, device: torch.device) -> ModuleType | None:
    return compiled(f"{__name__}.numba_{work}") if device.type == "cpu" else None
