"""Fused functions: captured whole, the same results and gradients, and no harm where a compiler is missing."""

from __future__ import annotations

import shutil

import pytest
import torch

from scripts.fusion import FusionWarning, fused, fusing
from scripts.gaussian import noise
from scripts.gaussian.stencil import Stencil
from scripts.registration import prior, similarity

INDUCTOR = pytest.param(
    "inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
)
SHAPE = (2, 1, 9, 10, 12)


def random(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def correlation() -> list[torch.Tensor]:
    fixed, moving = random(*SHAPE), random(*SHAPE).flip(2).requires_grad_()
    value = similarity.local_ncc(fixed, moving, 5)
    return [value, *torch.autograd.grad(value.square().sum(), moving)]


def diffusion() -> list[torch.Tensor]:
    z = random(2, 3, 5, 6, 7).requires_grad_()
    value = prior.diffusion_energy(z)
    return [value, *torch.autograd.grad(value.square().sum(), z)]


def entries() -> list[torch.Tensor]:
    raw = (4 * random(1, 45, 3, 4, 5) - 2).requires_grad_()
    value = Stencil("voxel", dominance=0.95).entries(raw)
    return [value, *torch.autograd.grad(value.square().sum(), raw)]


def normal() -> list[torch.Tensor]:
    return [noise.standard_normal((3, 5), 7, [0, 3, 4], dtype=torch.float64)]


# Captured whole or not at all ("eager" runs what was captured); with gradients split off; and really compiled.
@pytest.mark.parametrize("backend", ["eager", "aot_eager", INDUCTOR])
@pytest.mark.parametrize("work", [correlation, diffusion, entries, normal])
def test_fused_steps_give_the_same(work, backend):
    expected = work()
    with fusing("cpu", backend):
        got = work()
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_nothing_is_fused_on_the_cpu():
    seen = []
    function = fused(lambda x: seen.append(torch.compiler.is_compiling()) or x + 1)
    assert torch.equal(function(torch.zeros(2)), torch.ones(2))
    assert seen == [False]


def test_a_missing_compiler_costs_time_only():
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    function = fused(lambda x: x + 1)
    with fusing("cpu", broken):
        with pytest.warns(FusionWarning, match="no compiler here"):
            assert torch.equal(function(torch.zeros(2)), torch.ones(2))
        assert torch.equal(function(torch.zeros(2)), torch.ones(2))
