"""A GPU without a GPU: tensors on the meta device, which hold no numbers, and a record of what is done to them.

For everything that is not on the CPU the program takes the code that it takes for CUDA, so the meta device stands for
one. `Watch` refuses operations between devices, and notes where the program asks for a number (which on a real GPU
waits for everything before it), where tensors go from one device to another, and how many kernels are launched.
"""

from __future__ import annotations

import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).parents[2]
ASKS = {torch.ops.aten._local_scalar_dense.default}
"""What .item(), .tolist(), bool(), int() and float() of a tensor become."""
FREE = {"aten.detach", "aten.lift_fresh", "aten.alias", "prim.device", "aten.sym_size", "aten.empty"}
"""What launches no kernel, beside views."""


class MixedDevicesError(RuntimeError):
    """An operation on tensors of two devices."""


class Watch(TorchDispatchMode):
    """Counts launches, and notes the places in `scripts/` that ask for numbers or move tensors between devices.

    Attributes:
        asked: place to how often a number was asked for; the answer is a made-up one.
        moved: place to how often a tensor was copied from one device to another.
        launches: operations that launch a kernel on the device.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.launches = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if not any(x.is_meta for x in given) and torch.device(kwargs.get("device") or "cpu").type != "meta":
            return func(*args, **kwargs)
        name = str(func).rsplit(".", 1)[0]
        if func in ASKS:
            self.asked[_place()] += 1
            return {torch.bool: True, torch.int64: 1}.get(args[0].dtype, 1.0)
        if name == "aten._to_copy" and kwargs.get("device") is not None and given[0].device != kwargs["device"]:
            self.moved[_place()] += 1
            if kwargs["device"].type == "cpu":  # with made-up numbers
                return torch.ones(given[0].shape, dtype=kwargs.get("dtype") or given[0].dtype)
            return func(*args, **kwargs)
        # As on CUDA, a single number on the CPU may take part in anything.
        if any(x.device.type == "cpu" and x.ndim for x in given):
            raise MixedDevicesError(f"{func} in {_place()}: {[(x.device.type, tuple(x.shape)) for x in given]}")
        self.launches += name not in FREE and not _is_view(func)
        return func(*args, **kwargs)


def _is_view(func: Any) -> bool:
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not returns[0].alias_info.is_write


def _place() -> str:
    """The innermost function of the program that is being run: file and name."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.is_relative_to(ROOT / "scripts"):
            return f"{path.relative_to(ROOT / 'scripts')}:{frame.name}"
    return "elsewhere"
