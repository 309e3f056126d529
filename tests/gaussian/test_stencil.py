from __future__ import annotations

import pytest
import torch

from scripts.gaussian import Stencil
from scripts.gaussian.errors import GaussianError, ShapeError
from scripts.gaussian.sparse import coordinates
from scripts.gaussian.stencil import PRECEDING, _rows, shift_slices
from tests.gaussian.conftest import random_entries
from tests.gaussian.dense import dense_cholesky


@pytest.mark.parametrize(("cross_channel", "numbers"), [("none", 3), ("voxel", 45), ("full", 123)])
def test_table_has_the_paper_s_numbers_a_voxel(cross_channel, numbers):
    stencil = Stencil(cross_channel)
    assert stencil.num_channels == numbers == len(stencil.table) == len(set(stencil.table))
    assert Stencil.from_num_channels(numbers).cross_channel == cross_channel


def test_neighborhood_is_causal():
    assert len(PRECEDING) == 13
    assert all(offset < (0, 0, 0) for offset in PRECEDING)
    # Together with their opposites and the voxel itself they are the whole 3x3x3 kernel.
    assert len({*PRECEDING, *(tuple(-d for d in o) for o in PRECEDING), (0, 0, 0)}) == 27


@pytest.mark.parametrize("cross_channel", ["none", "voxel", "full"])
def test_dense_matrix_is_lower_triangular_with_the_given_diagonal(cross_channel):
    stencil = Stencil(cross_channel)
    entries = random_entries(stencil, 1, (3, 4, 5))[0]
    dense = dense_cholesky(stencil, entries)
    assert torch.equal(dense, dense.tril())
    torch.testing.assert_close(dense.diagonal(), entries[:3].flatten(1).T.reshape(-1))


def test_interior_row_couples_the_whole_neighborhood():
    # 13 neighbors x 3 channels plus the voxel's own 3, 2 or 1 columns.
    dense = dense_cholesky(Stencil("full"), random_entries(Stencil("full"), 1, (3, 3, 3))[0])
    centre = 3 * 13
    assert [int((dense[centre + c] != 0).sum()) for c in range(3)] == [40, 41, 42]
    dense = dense_cholesky(Stencil("voxel"), random_entries(Stencil("voxel"), 1, (3, 3, 3))[0])
    assert [int((dense[centre + c] != 0).sum()) for c in range(3)] == [14, 15, 16]


def test_zero_network_output_means_the_initial_standard_deviation():
    stencil = Stencil("voxel", initial_std=0.4)
    entries = stencil.entries(torch.zeros(2, 45, 2, 2, 2))
    torch.testing.assert_close(1 / entries[:, :3], torch.full((2, 3, 2, 2, 2), 0.4))
    assert not entries[:, 3:].any()


def test_diagonal_stays_positive_for_any_network_output():
    raw = torch.full((1, 3, 1, 1, 1), -1e4)
    assert (Stencil("none").entries(raw) > 0).all()


@pytest.mark.parametrize("pattern", ["voxel", "full"])
def test_dominance_bounds_the_rows_of_the_matrix_and_its_inverse(pattern):
    torch.manual_seed(0)
    stencil = Stencil(pattern, dominance=0.9)
    raw = 3.0 * torch.randn(stencil.num_channels, 3, 4, 5, dtype=torch.float64)
    L = dense_cholesky(stencil, stencil.entries(raw))
    diagonal = L.diagonal()
    assert ((L.abs().sum(1) - diagonal) <= 0.9 * diagonal * (1 + 1e-12)).all()
    inverse = torch.linalg.inv(L)
    assert float(inverse.abs().sum(1).max()) <= float(10 / diagonal.min()) * (1 + 1e-12)
    free = dense_cholesky(stencil, Stencil(pattern).entries(raw))
    assert torch.equal(diagonal, free.diagonal())
    assert float(torch.linalg.inv(free).abs().max()) > 1e3 * float(inverse.abs().max())


def test_dominance_leaves_rows_within_it_alone():
    raw = 0.01 * torch.randn(1, 45, 2, 3, 4)
    assert torch.equal(Stencil("voxel", dominance=0.9).entries(raw), Stencil("voxel").entries(raw))


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 3, 4), (1, 5, 7)])
def test_coordinates_agree_with_the_dense_matrix(grid):
    stencil = Stencil("full")
    entries = random_entries(stencil, 1, grid)[0]
    rows, columns, values = coordinates(stencil, entries)
    assert rows.dtype == columns.dtype == torch.int64
    dense = dense_cholesky(stencil, entries)
    rebuilt = torch.zeros_like(dense).index_put((rows, columns), values, accumulate=True)
    assert torch.equal(rebuilt, dense)


def test_indices_do_not_collide_above_two_to_the_24():
    # float32 indices would merge neighbors from 16,777,217 on; the last ones of a large grid must stay apart.
    entries = torch.ones(3, 1, 1, 6_000_000)
    rows, _, _ = coordinates(Stencil("none"), entries)
    assert int(rows.max()) == 17_999_999
    assert torch.bincount(rows).max() == 1


def test_shift_slices_pair_voxels_with_their_neighbors():
    grid = torch.arange(2 * 3 * 4).reshape(2, 3, 4)
    here, there = shift_slices((-1, 0, 1))
    assert torch.equal(grid[there] - grid[here], torch.full((1, 3, 3), -12 + 1))


@pytest.mark.parametrize(
    "arguments", [{"cross_channel": "some"}, {"initial_std": 0.0}, {"initial_std": float("nan")}, {"dominance": 1.0}]
)
def test_bad_arguments_are_named(arguments):
    with pytest.raises(GaussianError, match=next(iter(arguments))):
        Stencil(**arguments)


def test_wrong_channels_say_expected_and_got():
    with pytest.raises(ShapeError, match=r"45.*got \(1, 44, 2, 2, 2\)"):
        Stencil("voxel").entries(torch.zeros(1, 44, 2, 2, 2))
    with pytest.raises(ShapeError, match=r"3 \| 45 \| 123"):
        Stencil.from_num_channels(7)


def test_nothing_is_copied_to_the_device_from_the_second_call_on(monkeypatch):
    stencil = Stencil("voxel", dominance=0.95)
    raw = torch.randn(1, stencil.num_channels, 2, 3, 4)
    _rows.cache_clear()
    with torch.inference_mode():
        expected = stencil.entries(raw)

    def refuse(*values, **options):
        raise AssertionError(f"a tensor is made of a list again: {values} {options}")

    monkeypatch.setattr(torch, "tensor", refuse)
    again = stencil.entries(raw.requires_grad_())  # what inference has made serves training, too
    again.sum().backward()
    assert torch.equal(again.detach(), expected)
