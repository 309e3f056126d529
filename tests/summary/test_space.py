"""Fields at the fixed file's voxels, for every orientation, against SciPy's spline evaluated point by point."""

import itertools

import numpy as np
import pytest
import torch

from scripts.data.errors import DataError
from scripts.io.grid import Grid
from scripts.summary.space import PairSpace

WORK = Grid((16, 8, 24), np.array([[-2.0, 0, 0, 30], [0, 0, 2, -20], [0, -2, 0, 12], [0, 0, 0, 1]]))  # L, I, A
FIELD = (8, 4, 12)


def oriented(order, signs, spacing=(1.0, 1.5, 3.0), shape=(9, 7, 5)):
    affine = np.eye(4)
    affine[:3, :3] = 0
    for axis, (world, sign) in enumerate(zip(order, signs, strict=True)):
        affine[world, axis] = sign * spacing[axis]
    center = WORK.to_world(np.array([[7.0, 4.0, 11.0]]))[0]
    affine[:3, 3] = center - affine[:3, :3] @ (np.array(shape) - 1) / 2
    return Grid(shape, affine)


ORIENTATIONS = list(itertools.product(itertools.permutations(range(3)), itertools.product((1, -1), repeat=3)))


@pytest.mark.parametrize(("order", "signs"), ORIENTATIONS)
def test_displacement_at_the_voxels_of_all_48_orientations(order, signs):
    fixed = oriented(order, signs)
    space = PairSpace(fixed, fixed, WORK)
    points = torch.randn(1, 3, *FIELD, generator=torch.Generator().manual_seed(0))
    out = space.displacement(points)[0]
    assert tuple(out.shape) == (3, *fixed.shape)
    indices = np.indices(fixed.shape).reshape(3, -1).T
    expected = space.displacement_at(points[0].numpy(), fixed.to_world(indices))
    np.testing.assert_allclose(out.numpy().reshape(3, -1).T, expected, atol=2e-5)


def test_oblique_grids_share_their_directions():
    angle = np.deg2rad(17)
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    fixed, work = oriented((2, 0, 1), (1, -1, 1)), WORK
    points = torch.randn(2, 3, *FIELD, generator=torch.Generator().manual_seed(1))
    straight = PairSpace(fixed, fixed, work).displacement(points)
    turned = PairSpace(
        Grid(fixed.shape, turn @ fixed.affine), fixed, Grid(work.shape, turn @ work.affine)
    ).displacement(points)
    rotated = torch.einsum("ij,njxyz->nixyz", torch.as_tensor(turn[:3, :3], dtype=torch.float32), straight)
    torch.testing.assert_close(turned, rotated, atol=1e-4, rtol=1e-4)


def test_a_sheared_grid_is_refused():
    affine = WORK.affine.copy()
    affine[0, 1] = 0.3
    space = PairSpace(Grid(WORK.shape, affine), WORK, WORK)
    with pytest.raises(DataError, match="perpendicular"):
        space.check()


def test_a_volume_of_the_work_grid_keeps_its_places():
    """A function that is linear in space survives linear interpolation, whatever the two grids."""
    fixed = oriented((1, 2, 0), (-1, 1, -1))
    space = PairSpace(fixed, fixed, WORK)

    def plane(grid):
        world = grid.to_world(np.indices(grid.shape).reshape(3, -1).T)
        return torch.from_numpy((world @ [0.3, -0.7, 1.1] + 5).reshape(1, 1, *grid.shape))

    torch.testing.assert_close(space.to_fixed(plane(WORK)), plane(fixed))


def test_warp_takes_values_where_the_transform_points():
    """An image that is linear in space is known at every place: warped(x) = m(A (x + d))."""
    fixed, moving = oriented((0, 2, 1), (1, 1, -1)), Grid((40, 40, 40), np.diag([2.0, 2, 2, 1]) - 0)
    moving.affine[:3, 3] = -40
    alignment = np.eye(4)
    alignment[:3, :3] += np.array([[0.0, 0.1, 0], [-0.1, 0, 0.05], [0, 0, 0.02]])
    alignment[:3, 3] = [3, -2, 5]
    space = PairSpace(fixed, moving, WORK, alignment)
    points = torch.randn(1, 3, *FIELD, generator=torch.Generator().manual_seed(2))
    displacement = space.displacement(points)[0]
    slope, offset = np.array([0.4, 1.0, -0.2]), 3.0
    image = moving.to_world(np.indices(moving.shape).reshape(3, -1).T) @ slope + offset
    warped = space.warp(torch.from_numpy(image.reshape(moving.shape)).float(), displacement)
    world = fixed.to_world(np.indices(fixed.shape).reshape(3, -1).T) + displacement.numpy().reshape(3, -1).T
    expected = space.align(world) @ slope + offset
    np.testing.assert_allclose(warped.numpy().ravel(), expected, atol=1e-3)
