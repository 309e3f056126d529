"""Fields at the fixed file's voxels, for every orientation, against SciPy's spline evaluated point by point."""

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.registration.space import PairSpace

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


@pytest.mark.parametrize(("order", "signs"), ORIENTATIONS[::5])
def test_detail_is_added_everywhere_alike(order, signs):
    """A second spline, with control points on the work grid's voxels, evaluated by SciPy on its own."""
    fixed = oriented(order, signs)
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(2, 3, *FIELD, generator=generator)
    detail = 0.2 * torch.randn(3, *WORK.shape, generator=generator)
    plain, fine = PairSpace(fixed, fixed, WORK), PairSpace(fixed, fixed, WORK, detail=detail)
    places = fixed.to_world(np.indices(fixed.shape).reshape(3, -1).T)
    where = WORK.to_indices(places).T
    added = np.stack(
        [map_coordinates(part, where, order=3, prefilter=False, mode="nearest") for part in detail.numpy()]
    )
    added = WORK.affine[:3, :3] @ added
    difference = (fine.displacement(points) - plain.displacement(points)).numpy().reshape(2, 3, -1)
    np.testing.assert_allclose(difference, np.stack([added, added]), atol=2e-5)
    at = [space.displacement_at(points[0].numpy(), places) for space in (fine, plain)]
    np.testing.assert_allclose(at[0] - at[1], added.T, atol=2e-5)
    np.testing.assert_allclose(fine.detail_at(places), added.T, atol=2e-5)
    assert not plain.detail_at(places).any()


def test_displacements_on_the_work_grid_are_those_at_its_voxels():
    generator = torch.Generator().manual_seed(0)
    points, detail = torch.randn(3, *FIELD, generator=generator), torch.randn(3, *WORK.shape, generator=generator)
    for space in (PairSpace(WORK, WORK, WORK), PairSpace(WORK, WORK, WORK, detail=detail)):
        expected = space.displacement(points[None])[0]
        torch.testing.assert_close(space.to_mm(space.on_work(points[None]))[0], expected, atol=2e-5, rtol=1e-5)
        voxels = space.in_fixed_voxels(expected[None])
        torch.testing.assert_close(voxels, space.on_work(points[None]), atol=2e-5, rtol=1e-5)


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
