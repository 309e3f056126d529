from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest
import torch

from scripts.gaussian import Stencil, StencilCholesky, backends
from scripts.gaussian.errors import BackendError
from tests.gaussian.conftest import random_entries


def test_numba_is_chosen_on_the_cpu():
    assert backends.solver(torch.device("cpu")).__name__.endswith("numba_solve")
    assert backends.products(torch.device("cpu")).__name__.endswith("numba_products")


def test_torch_is_chosen_elsewhere():
    assert backends.solver(torch.device("cuda")).__name__.endswith("torch_wavefront")
    assert backends.products(torch.device("cuda")).__name__.endswith("torch_products")


def test_unknown_backend_is_named():
    with pytest.raises(BackendError, match=r"numba.*torch.*cholespy.*got 'scipy'"):
        backends.solver(torch.device("cpu"), "scipy")


def test_numba_cannot_serve_cuda():
    with pytest.raises(BackendError, match="'numba' runs on cpu"):
        backends.solver(torch.device("cuda"), "numba")


def test_all_backends_agree_on_the_same_matrix():
    stencil = Stencil("full")
    entries = random_entries(stencil, 2, (5, 6, 7))
    x = torch.randn(9, 2, 3, 5, 6, 7, dtype=torch.float64)
    for transpose in (True, False):
        results = [StencilCholesky(stencil, entries, name).solve(x, transpose) for name in backends.BACKENDS]
        for result in results[1:]:
            torch.testing.assert_close(result, results[0], rtol=1e-9, atol=1e-9)


def test_missing_packages_mean_the_next_backend_and_one_warning():
    # In a process of its own, where numba and cholespy cannot be imported.
    program = textwrap.dedent(
        """
        import sys, warnings
        sys.modules["numba"] = sys.modules["cholespy"] = None
        import torch
        from scripts.gaussian import Stencil, StructuredGaussian
        from scripts.gaussian.errors import BackendError
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                entries = Stencil("voxel").entries(torch.zeros(1, 45, 3, 4, 5))
                gaussian = StructuredGaussian(torch.zeros(1, 3, 3, 4, 5), entries, torch.ones(1, 2, 3, 3, 4, 5))
                gaussian.log_prob(gaussian.rsample(4))
        ours = [str(w.message) for w in caught if w.category.__name__ == "BackendWarning"]
        assert len(ours) == 1 and "torch backend" in ours[0], ours
        try:
            StructuredGaussian(torch.zeros(1, 3, 3, 4, 5), entries, backend="cholespy")
        except BackendError as error:
            assert "not installed" in str(error), error
        else:
            raise AssertionError("no error for a backend that is not installed")
        print("ok")
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ok", done.stderr


def test_torch_keeps_its_number_of_threads():
    # In a process of its own: only the first use of numba starts its threads.
    program = textwrap.dedent(
        """
        import torch
        torch.set_num_threads(1)
        from scripts.gaussian import Stencil, StructuredGaussian
        entries = Stencil("voxel").entries(torch.zeros(1, 45, 3, 4, 5))
        StructuredGaussian(torch.zeros(1, 3, 3, 4, 5), entries).rsample(4)
        print(torch.get_num_threads())
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "1", done.stderr


def test_two_python_threads_may_solve_at_once():
    stencil = Stencil("voxel")
    operator = StencilCholesky(stencil, random_entries(stencil, 1, (6, 6, 8), torch.float32))
    inputs = [torch.randn(64, 1, 3, 6, 6, 8) for _ in range(4)]
    expected = [operator.solve(x, transpose=True) for x in inputs]
    results: list[torch.Tensor | None] = [None] * 4

    def work(i: int) -> None:
        for _ in range(20):
            results[i] = operator.solve(inputs[i], transpose=True)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result, value in zip(results, expected, strict=True):
        assert result is not None
        assert torch.equal(result, value)
