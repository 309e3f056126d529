from __future__ import annotations

import itertools

import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch

from scripts.gaussian import Stencil, StencilCholesky
from scripts.gaussian.errors import (
    FactorizationError,
    NearlySingularError,
    NonFiniteError,
    NonPositiveDiagonalError,
    ShapeError,
)
from scripts.gaussian.sparse import coordinates, from_columns, to_columns
from tests.gaussian.conftest import GRIDS, RTOL, random_entries
from tests.gaussian.dense import dense_cholesky, unvec, vec

PATTERNS = ["none", "voxel", "full"]


def dense_apply(matrix, x):
    """matrix @ each field of x, shape (N, 3, X, Y, Z)."""
    return unvec(matrix @ vec(x), x.shape[-3:])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("cross_channel", PATTERNS)
class TestAgainstDense:
    def operator(self, cross_channel, grid, dtype, device="cpu", backend=None):
        stencil = Stencil(cross_channel)
        entries = random_entries(stencil, 2, grid, dtype)
        x = torch.randn(5, 2, 3, *grid, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        return StencilCholesky(stencil, entries.to(device), backend), x.to(device, dtype), entries.double()

    @pytest.mark.parametrize("transpose", [False, True])
    def test_multiply(self, cross_channel, grid, dtype, transpose, device):
        operator, x, entries = self.operator(cross_channel, grid, dtype, device)
        result = operator.multiply(x, transpose).cpu().double()
        for b in range(2):
            dense = dense_cholesky(operator.stencil, entries[b])
            expected = dense_apply(dense.T if transpose else dense, x[:, b].cpu().double())
            torch.testing.assert_close(result[:, b], expected, rtol=RTOL[dtype], atol=RTOL[dtype])

    @pytest.mark.parametrize("transpose", [False, True])
    def test_solve(self, cross_channel, grid, dtype, transpose, device, backend):
        if backend == "numba" and device == "cuda":
            pytest.skip("numba runs on the CPU")
        operator, x, entries = self.operator(cross_channel, grid, dtype, device, backend)
        result = operator.solve(x, transpose).cpu().double()
        for b in range(2):
            inverse = torch.linalg.inv(dense_cholesky(operator.stencil, entries[b]))
            expected = dense_apply(inverse.T if transpose else inverse, x[:, b].cpu().double())
            torch.testing.assert_close(result[:, b], expected, rtol=RTOL[dtype], atol=RTOL[dtype])

    def test_log_det_and_row_norms(self, cross_channel, grid, dtype):
        operator, _, entries = self.operator(cross_channel, grid, dtype)
        for b in range(2):
            dense = dense_cholesky(operator.stencil, entries[b])
            torch.testing.assert_close(operator.log_det()[b], dense.logdet(), rtol=RTOL[dtype], atol=RTOL[dtype])
            expected = unvec((dense @ dense.T).diagonal()[:, None], grid)[0]
            torch.testing.assert_close(operator.row_norms()[b].double(), expected, rtol=RTOL[dtype], atol=RTOL[dtype])


@pytest.mark.parametrize("count", [1, 7, 8, 31, 33, 64, 70])
@pytest.mark.parametrize("cross_channel", ["voxel", "full"])
def test_every_block_size_of_the_numba_solver_agrees_with_scipy(cross_channel, count):
    # Blocks of 8, 16 and 32 lanes, full and partly filled; rows that do and do not divide into tiles of 8.
    grid = (4, 3, 19)
    stencil = Stencil(cross_channel)
    entries = random_entries(stencil, 1, grid, torch.float32)
    x = torch.randn(count, 1, 3, *grid, generator=torch.Generator().manual_seed(0))
    rows, columns, values = (t.numpy() for t in coordinates(stencil, entries[0].double()))
    matrix = scipy.sparse.csr_matrix((values, (rows, columns)))
    for transpose in (True, False):
        factor = matrix.T.tocsr() if transpose else matrix
        right = to_columns(x[:, 0].double()).numpy()
        expected = scipy.sparse.linalg.spsolve_triangular(factor, right, lower=not transpose)
        result = StencilCholesky(stencil, entries, "numba").solve(x, transpose)
        torch.testing.assert_close(
            result[:, 0].double(), from_columns(torch.from_numpy(expected), grid), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("operation", ["multiply", "solve"])
@pytest.mark.parametrize("cross_channel", PATTERNS)
def test_gradcheck(cross_channel, operation, transpose, backend):
    stencil = Stencil(cross_channel)
    entries = random_entries(stencil, 2, (2, 2, 2)).requires_grad_()
    x = torch.randn(2, 2, 3, 2, 2, 2, dtype=torch.float64).requires_grad_()

    def apply(entries, x):
        return getattr(StencilCholesky(stencil, entries, backend), operation)(x, transpose)

    assert torch.autograd.gradcheck(apply, (entries, x), fast_mode=backend == "cholespy")  # a factorization a call


def test_plain_torch_products_agree_with_the_numba_ones():
    from scripts.gaussian.backends import numba_products, torch_products

    for cross_channel, grid in itertools.product(["voxel", "full"], [(3, 4, 9), (3, 4, 17), (2, 2, 40)]):
        stencil = Stencil(cross_channel)
        entries = random_entries(stencil, 2, grid)
        x, y = torch.randn(2, 5, 2, 3, *grid, dtype=torch.float64)
        for transpose in (False, True):
            torch.testing.assert_close(
                numba_products.multiply(stencil, entries, x, transpose),
                torch_products.multiply(stencil, entries, x, transpose),
            )
        torch.testing.assert_close(numba_products.outer(stencil, x, y), torch_products.outer(stencil, x, y))


def test_entries_that_point_outside_are_ignored_and_get_no_gradient(backend):
    stencil = Stencil("voxel")
    entries = random_entries(stencil, 1, (2, 2, 2)).requires_grad_()
    x = torch.randn(1, 1, 3, 2, 2, 2, dtype=torch.float64)
    StencilCholesky(stencil, entries, backend).solve(x, transpose=True).square().sum().backward()
    # The first voxel has no predecessors: all its neighbor entries point outside.
    assert not entries.grad[0, 6:, 0, 0, 0].any()
    changed = entries.detach().clone()
    changed[0, 6:, 0, 0, 0] = 1e6
    result = StencilCholesky(stencil, changed, backend).solve(x, transpose=True)
    torch.testing.assert_close(result, StencilCholesky(stencil, entries.detach(), backend).solve(x, transpose=True))


def test_overwrite_keeps_the_input_where_a_gradient_is_recorded():
    stencil = Stencil("voxel")
    entries = random_entries(stencil, 1, (2, 3, 8), torch.float32)
    x = torch.randn(4, 1, 3, 2, 3, 8)
    expected = StencilCholesky(stencil, entries).solve(x, transpose=True)
    kept = x.clone()
    StencilCholesky(stencil, entries.clone().requires_grad_()).solve(kept, transpose=True, overwrite=True)
    assert torch.equal(kept, x)
    given = x.clone()
    result = StencilCholesky(stencil, entries).solve(given, transpose=True, overwrite=True)
    assert torch.equal(result, expected)
    assert result.data_ptr() == given.data_ptr()


def test_non_contiguous_input():
    stencil = Stencil("voxel")
    entries = random_entries(stencil, 1, (3, 4, 5))
    x = torch.randn(3, 5, 4, 3, 1, 6, dtype=torch.float64).permute(5, 4, 0, 3, 2, 1)[..., :5]
    x = x[:, :, :, :3]
    operator = StencilCholesky(stencil, entries)
    assert not x.is_contiguous()
    torch.testing.assert_close(operator.solve(operator.multiply(x)), x)


class TestBadInput:
    def test_nan_is_counted(self):
        entries = random_entries(Stencil("voxel"), 1, (2, 2, 2))
        entries[0, 7, 0, 0, :] = float("nan")
        entries[0, 8, 1, 1, 1] = float("inf")
        with pytest.raises(NonFiniteError, match="2 NaN and 1 infinite values among 360"):
            StencilCholesky(Stencil("voxel"), entries)

    def test_non_positive_diagonal_is_counted(self):
        entries = random_entries(Stencil("voxel"), 1, (2, 2, 2))
        entries[0, 0, 0, 0, 0] = 0.0
        entries[0, 2, 1, 0, 0] = -0.5
        with pytest.raises(NonPositiveDiagonalError, match=r"2 of 24 entries.*-0.5"):
            StencilCholesky(Stencil("voxel"), entries)

    def test_shapes_say_expected_and_got(self):
        with pytest.raises(ShapeError, match=r"\(B, 45, X, Y, Z\), got \(1, 3, 2, 2, 2\)"):
            StencilCholesky(Stencil("voxel"), torch.ones(1, 3, 2, 2, 2))
        operator = StencilCholesky(Stencil("none"), torch.ones(1, 3, 2, 2, 2))
        with pytest.raises(ShapeError, match=r"\(N, 1, 3, 2, 2, 2\), got \(4, 1, 3, 2, 2, 3\)"):
            operator.solve(torch.ones(4, 1, 3, 2, 2, 3))

    @pytest.mark.parametrize("transpose", [False, True])
    @pytest.mark.parametrize("cross_channel", PATTERNS)
    def test_nearly_singular_l_is_an_error_never_a_silent_nan(self, cross_channel, transpose, backend):
        stencil = Stencil(cross_channel)
        entries = torch.full((1, stencil.num_channels, 3, 3, 9), 0.5)
        entries[:, :3] = 1e-30
        x = torch.ones(6, 1, 3, 3, 3, 9)
        x[3:] *= 1e10
        error, message = NearlySingularError, r"of 6 right-hand sides.*smallest diagonal entry is 1e-30"
        if backend == "cholespy" and cross_channel != "none":  # it fails already when it factorizes
            error, message = FactorizationError, r"element 0 \(of 1\).*from 1e-30 to 1e-30"
        with pytest.raises(error, match=message):
            StencilCholesky(stencil, entries, backend).solve(x, transpose)

    def test_one_overflowing_sample_among_many_is_found_and_counted(self):
        stencil = Stencil("voxel")
        entries = random_entries(stencil, 1, (4, 5, 9), torch.float32)
        x = torch.randn(40, 1, 3, 4, 5, 9)
        x[17, 0, 1, 2, 3, 4] = float("inf")
        with pytest.raises(NearlySingularError, match=r"1 of 40 right-hand sides.*voxel \(2, 3, 4\)"):
            StencilCholesky(stencil, entries).solve(x, transpose=True)
