from __future__ import annotations

import sys

import pytest
import torch

from scripts.gaussian.backends import loops
from scripts.gaussian.errors import BackendWarning
from scripts.registration import backends
from scripts.registration.local_correlation import NCCLikelihood, local_ncc
from scripts.registration.target import Target
from scripts.registration.warp import warp
from tests.registration.conftest import brain_like, smooth

GRID = (50, 9, 11)


@pytest.fixture
def without_numba(monkeypatch):
    for name in ("numba_warp", "numba_ncc", "numba_prior", "numba_likelihood"):
        monkeypatch.setitem(sys.modules, f"{backends.__name__}.{name}", None)
    loops.compiled.cache_clear()
    loops._warn_once.cache_clear()
    yield
    loops.compiled.cache_clear()


def test_without_numba_torch_does_the_work_after_one_warning(without_numba):
    image, ddf = brain_like(*GRID), smooth(1, 3, *GRID)
    with pytest.warns(BackendWarning, match="not available.*numba_warp") as record:
        first, second = warp(image, ddf), warp(image, ddf)
    assert len(record) == 1
    assert torch.equal(first, second)


def test_without_numba_fields_are_weighed_step_by_step(request):
    target = Target(NCCLikelihood(window=5))
    images, z = (brain_like(*GRID), brain_like(*GRID, seed=1)), smooth(2, 3, *(-(-n // 2) for n in GRID))
    in_one_pass = target(target.prepare(*images)[0], z)
    request.getfixturevalue("without_numba")
    with pytest.warns(BackendWarning, match="not available.*numba_likelihood"):
        by_torch = target(target.prepare(*images)[0], z)
    torch.testing.assert_close(by_torch, in_one_pass, rtol=1e-6, atol=0)


def test_the_result_does_not_depend_on_threads_or_batch():
    fixed, ddf = brain_like(*GRID, seed=1), smooth(3, 3, *GRID)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            warped = warp(brain_like(*GRID, seed=2), ddf)
            results += [local_ncc(fixed, warped), torch.cat([local_ncc(fixed, one[None]) for one in warped])]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[0]) for result in results)


def test_only_float32_on_the_cpu_is_compiled():
    assert backends.compiled("numba_warp", torch.zeros(1)) is not None
    assert backends.compiled("numba_warp", torch.zeros(1), torch.zeros(1, dtype=torch.float64)) is None
