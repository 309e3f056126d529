"""`python -m experiments.benchmark fusion`: kernels that the fused steps take, one by one and joined.

Counted, not timed: on the CPU inductor joins the same captured steps as on CUDA, and how many kernels it makes of them
can be compared with how many operations there were. float64, since float32 has loops of its own on the CPU.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from experiments.benchmark.measure import print_table, save
from scripts.core.fusion import BACKENDS
from scripts.gaussian import noise
from scripts.gaussian.stencil import Stencil
from scripts.registration import local_correlation, prior


class Operations(TorchDispatchMode):
    """Counts operations that make or change a tensor; views launch nothing."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def correlation() -> list[Tensor]:
    """Local correlation of two pairs and its gradient."""
    fixed, moving = _random(2, 1, 9, 10, 12), _random(2, 1, 9, 10, 12).flip(2).requires_grad_()
    value = local_correlation.local_ncc(fixed, moving, 5)
    return [value, *torch.autograd.grad(value.square().sum(), moving)]


def diffusion() -> list[Tensor]:
    """Diffusion energy of two fields and its gradient."""
    z = _random(2, 3, 5, 6, 7).requires_grad_()
    value = prior.diffusion_energy(z)
    return [value, *torch.autograd.grad(value.square().sum(), z)]


def entries() -> list[Tensor]:
    """Entries of L, rows bounded, and their gradient."""
    raw = (4 * _random(1, 45, 3, 4, 5) - 2).requires_grad_()
    value = Stencil("voxel", dominance=0.95).entries(raw)
    return [value, *torch.autograd.grad(value.square().sum(), raw)]


def normal() -> list[Tensor]:
    """Noise of three samples."""
    return [noise.standard_normal((3, 5), 7, [0, 3, 4], dtype=torch.float64)]


WORK: dict[str, Callable[[], list[Tensor]]] = {
    "local correlation, with gradient": correlation,
    "prior, with gradient": diffusion,
    "entries of L, with gradient": entries,
    "noise": normal,
}


def kernels(work: Callable[[], list[Tensor]]) -> tuple[int, int]:
    """Operations one by one, and kernels after inductor has joined them; what is not fused is in neither's favor."""
    from torch._inductor import metrics

    with Operations() as separate:
        work()
    torch.compiler.reset()
    metrics.reset()
    with mock.patch.dict(BACKENDS, cpu="inductor"):
        work()
    return separate.count, metrics.generated_kernel_count


def run() -> None:
    """Print the table."""
    if shutil.which("g++") is None:
        print("fusion: inductor needs a C++ compiler, and there is none")
        return
    rows = [[name, *kernels(work)] for name, work in WORK.items()]
    print_table("Kernels", ["steps", "one by one", "joined"], rows)
    save("fusion", {"kernels": rows})


def _random(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
