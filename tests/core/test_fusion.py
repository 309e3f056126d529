"""Fused functions: captured whole, the same results and gradients, and no harm where a compiler is missing."""

from __future__ import annotations

import shutil
from unittest import mock

import pytest
import torch

from experiments.benchmark.fused_kernels import WORK, kernels
from scripts.core.fusion import BACKENDS, FusionWarning, fused

INDUCTOR = pytest.param(
    "inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
)


# Captured whole or not at all ("eager" runs what was captured); with gradients split off; and really compiled.
@pytest.mark.parametrize("backend", ["eager", "aot_eager", INDUCTOR])
@pytest.mark.parametrize("work", WORK.values(), ids=lambda work: work.__name__)
def test_fused_steps_give_the_same(work, backend):
    expected = work()
    with mock.patch.dict(BACKENDS, cpu=backend):
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
    with mock.patch.dict(BACKENDS, cpu=broken):
        with pytest.warns(FusionWarning, match="no compiler here"):
            assert torch.equal(function(torch.zeros(2)), torch.ones(2))
        assert torch.equal(function(torch.zeros(2)), torch.ones(2))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("work", WORK.values(), ids=lambda work: work.__name__)
def test_fused_steps_take_a_third_of_the_kernels_at_most(work):
    separate, joined = kernels(work)
    assert 0 < joined <= separate / 3
