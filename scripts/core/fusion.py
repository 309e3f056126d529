"""Joining small steps into few kernels, where each kernel has to be launched: on CUDA, by `torch.compile`.

On the CPU the same work has loops of its own (the `backends` folders). Functions that are `fused` take and give plain
tensors and numbers, ask nothing of the host, and can be captured whole. `TORCHDYNAMO_DISABLE=1`, torch's own switch,
leaves them as they are written.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

BACKENDS: dict[str, str] = {"cuda": "inductor"}
"""Kind of device to the backend of `torch.compile` that serves it; comparisons and tests put others in."""


class FusionWarning(UserWarning):
    """A compiler is missing or failed; the steps are taken one by one, which gives the same and takes longer."""


def fused(function: Callable[P, R]) -> Callable[P, R]:
    """A function that is compiled when its first tensor is on CUDA, and called as it is elsewhere."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        tensor = next(value for value in args if isinstance(value, Tensor))
        backend = BACKENDS.get(tensor.device.type)
        # Inside of another capture the function is just a part of it.
        if backend is None or torch.compiler.is_compiling():
            return function(*args, **kwargs)
        return _compiled(function, backend)(*args, **kwargs)

    return call


@functools.cache
def _compiled(function: Callable[..., R], backend: str) -> Callable[..., R]:
    from torch._dynamo.exc import BackendCompilerFailed  # neither is loaded where nothing is compiled
    from torch._inductor.exc import InductorError

    whole = torch.compile(function, backend=backend, fullgraph=True)
    given_up = False

    def call(*args: object, **kwargs: object) -> R:
        nonlocal given_up
        if not given_up:
            try:
                return whole(*args, **kwargs)
            except (BackendCompilerFailed, InductorError) as error:
                given_up = True
                reason = " ".join(str(error).split("\n")[:2])
                message = f"{function.__name__} could not be compiled ({reason}); its steps run one by one"
                warnings.warn(message, FusionWarning, stacklevel=3)
        return function(*args, **kwargs)

    return call
