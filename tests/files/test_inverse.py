"""Inverse fields against known maps, SciPy's interpolation and SimpleITK."""

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch

from scripts.core.grid import Grid
from scripts.files import inverse as module
from scripts.files.inverse import invert
from scripts.posterior.folds import jacobian_determinant
from tests.files.spaces import FIXED, SHEARED, at_points, centered, from_sitk, points_of, rotation, smooth, to_sitk

GRIDS = {**FIXED, "sheared": SHEARED}


def errors(field, inverse, grid):
    """|e(y) + d(y + e(y))| in mm of the voxels y, shape [X, Y, Z]."""
    e = inverse.reshape(3, -1).T.astype(np.float64)
    return np.linalg.norm(e + at_points(field, grid, points_of(grid) + e), axis=1).reshape(grid.shape)


def in_voxels(field, grid):
    """As `jacobian_determinant` takes it, [1, 3, X, Y, Z]."""
    return torch.from_numpy(np.tensordot(np.linalg.inv(grid.affine[:3, :3]), field, axes=1))[None]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
class TestKnownMaps:
    def test_the_identity_needs_no_step(self, grid):
        result = invert(np.zeros((3, *grid.shape), np.float32), grid)
        assert not result.field.any()
        assert (result.mean_error_mm, result.max_error_mm) == (0, 0)

    def test_a_shift_goes_back_also_at_the_border(self, grid):
        field = np.empty((3, *grid.shape), np.float32)
        field[0], field[1], field[2] = 3.5, -2.0, 7.25
        np.testing.assert_allclose(invert(field, grid).field, -field, atol=1e-5)

    def test_a_linear_map_has_its_inverse_matrix(self, grid):
        # It stretches three times: the fixed-point iteration e ← −d(y + e) would grow twofold with every step.
        matrix = rotation(5, 10, -8) @ np.diag([3.0, 1.0, 0.6]) @ rotation(-5, 3, 8)
        center = grid.to_world((np.array([grid.shape]) - 1) / 2)
        away = points_of(grid) - center
        field = (away @ (matrix - np.eye(3)).T).T.reshape(3, *grid.shape).astype(np.float32)
        expected = away @ (np.linalg.inv(matrix) - np.eye(3)).T
        places = grid.to_indices(points_of(grid) + expected)
        inside = ((places >= 0) & (places <= np.array(grid.shape) - 1)).all(1)  # elsewhere the border continues d
        assert inside.sum() > 100
        found = invert(field, grid, tolerance_mm=1e-3).field.reshape(3, -1).T
        np.testing.assert_allclose(found[inside], expected[inside], atol=2e-3)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_random_fields_are_undone_to_the_tolerance_and_the_errors_are_true(grid):
    field = smooth((3, *grid.shape), largest=2.5)
    for tolerance in (0.01, 0.0005):
        result = invert(field, grid, tolerance_mm=tolerance)
        true = errors(field, result.field, grid)
        assert true.max() < tolerance
        assert result.mean_error_mm == pytest.approx(true.mean(), abs=1e-5)
        assert result.max_error_mm == pytest.approx(true.max(), abs=1e-5)


@pytest.mark.parametrize("name", ["RAS", "anisotropic", "left-handed"])
def test_folded_voxels_are_solved_too(name):
    grid = centered((30, 28, 26), FIXED[name].affine[:3, :3])
    field = smooth((3, *grid.shape), largest=7.0, sigma=2.0)
    folds = float((jacobian_determinant(in_voxels(field, grid)) <= 0).double().mean())
    assert 0.01 < folds < 0.3  # far more than in a registration
    result = invert(field, grid)
    true = errors(field, result.field, grid)
    assert true.mean() < 0.01
    assert np.isclose(result.max_error_mm, true.max(), atol=1e-4)
    assert (true > 0.01).mean() < 1e-3


def test_too_few_steps_are_not_hidden(monkeypatch):
    monkeypatch.setattr(module, "_MOST_STEPS", 0)
    grid = FIXED["oblique"]
    field = smooth((3, *grid.shape), largest=3.0)
    result = invert(field, grid)
    true = errors(field, result.field, grid)
    assert result.max_error_mm == pytest.approx(true.max(), rel=1e-4)
    assert result.max_error_mm > 0.01


def test_agrees_with_simpleitk_where_the_field_is_gentle():
    grid = centered((24, 26, 22), FIXED["left-handed"].affine[:3, :3])
    field = smooth((3, *grid.shape), largest=2.0, sigma=3.0)
    vectors = to_sitk(np.moveaxis(field, 0, -1).astype(np.float64) * [-1, -1, 1], grid)
    found = from_sitk(sitk.InvertDisplacementField(vectors, 50, 1e-3, 1e-4, False)) * [-1, -1, 1]
    inside = (slice(5, -5),) * 3  # beyond the border ITK's field is zero
    ours = np.moveaxis(invert(field, grid, tolerance_mm=1e-3).field, 0, -1)
    np.testing.assert_allclose(ours[inside], found[inside], atol=5e-3)


def test_a_single_slice_and_a_single_voxel():
    slab = Grid((9, 8, 1), np.diag([1.0, 2.0, 3.0, 1.0]))
    field = smooth((3, 9, 8, 1), largest=1.0, sigma=2.0)
    assert errors(field, invert(field, slab).field, slab).max() < 0.01
    assert invert(np.ones((3, 1, 1, 1)), Grid((1, 1, 1), np.eye(4))).field.tolist() == [[[[-1]]], [[[-1]]], [[[-1]]]]


def test_the_field_is_left_alone_and_the_result_repeats():
    grid = FIXED["oblique"]
    field = smooth((3, *grid.shape), largest=5.0)  # with folds
    copy = field.copy()
    first, second = invert(field, grid), invert(field, grid)
    np.testing.assert_array_equal(field, copy)
    np.testing.assert_array_equal(first.field, second.field)
    assert first.field.dtype == np.float32


def test_refuses_what_is_no_field():
    grid = Grid((4, 5, 6), np.eye(4))
    with pytest.raises(ValueError, match=r"expected a field of shape \(3, 4, 5, 6\), got \(3, 4, 5, 5\)"):
        invert(np.zeros((3, 4, 5, 5)), grid)
    broken = np.zeros((3, 4, 5, 6))
    broken[0, 0, 0, :2] = np.nan, np.inf
    with pytest.raises(ValueError, match="expected finite displacements, got 2 values"):
        invert(broken, grid)
