"""Grids against nibabel, SimpleITK and values by hand."""

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from scripts.core.grid import LPS, Grid
from tests.files.spaces import FIXED, SHEARED, affine, orientations, to_sitk


def test_of_a_loaded_volume():
    matrix = affine(np.diag([2.0, 1.0, 3.0]), (5, 6, 7))
    grid = Grid.of(MetaTensor(torch.zeros(1, 4, 5, 6), affine=torch.as_tensor(matrix)))
    assert grid.shape == (4, 5, 6)
    assert grid.affine.dtype == np.float64
    np.testing.assert_array_equal(grid.affine, matrix)


def test_values_by_hand():
    grid = Grid((3, 4, 5), affine(np.diag([-2.0, 1.0, 3.0]), (10, 20, 30)))
    assert grid.spacing.tolist() == [2, 1, 3]
    assert grid.voxel_volume == 6.0  # left-handed, still positive
    # x runs from 10 down to 10 − 2·2, y from 20 to 20 + 3, z from 30 to 30 + 4·3
    assert grid.bounds.tolist() == [[6, 20, 30], [10, 23, 42]]
    assert grid.to_world(np.array([[1, 2, 3]])).tolist() == [[8, 22, 39]]


@pytest.mark.parametrize("linear", orientations())
def test_indices_and_points_are_inverse_to_each_other_and_nibabel_agrees(linear):
    grid = Grid((5, 6, 7), affine(linear * [1.0, 0.8, 2.5], (3, -4, 5)))
    indices = np.random.default_rng(0).uniform(-3, 9, (20, 3))
    points = grid.to_world(indices)
    np.testing.assert_allclose(points, nib.affines.apply_affine(grid.affine, indices), atol=1e-12)
    np.testing.assert_allclose(grid.to_indices(points), indices, atol=1e-12)
    np.testing.assert_allclose(grid.spacing, nib.affines.voxel_sizes(grid.affine))


@pytest.mark.parametrize("grid", [*FIXED.values(), SHEARED], ids=[*FIXED, "sheared"])
def test_simpleitk_has_voxels_in_the_same_places(grid):
    image = to_sitk(np.zeros(grid.shape, np.float32), grid)
    index = (3, 5, 2)
    point = np.array(image.TransformIndexToPhysicalPoint(index))
    np.testing.assert_allclose(LPS[:3, :3] @ point, grid.to_world(np.array([index]))[0], atol=1e-9)
    world = grid.to_world(np.indices(grid.shape).reshape(3, -1).T)
    np.testing.assert_allclose(grid.bounds, [world.min(0), world.max(0)], atol=1e-9)


def test_same_as_needs_shape_and_affine():
    grid = Grid((3, 4, 5), np.eye(4))
    moved = np.eye(4)
    moved[0, 3] = 0.01
    assert grid.same_as(Grid((3, 4, 5), np.eye(4) + 1e-5))
    assert not grid.same_as(Grid((3, 4, 5), moved))
    assert grid.same_as(Grid((3, 4, 5), moved), tolerance=0.1)
    assert not grid.same_as(Grid((3, 4, 6), np.eye(4)))
