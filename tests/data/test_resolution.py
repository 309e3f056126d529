"""Images of twice the work grid's resolution: where they are, what they show, when there are any."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy.ndimage import map_coordinates

from scripts.core.grid import Grid
from scripts.core.pair_keys import fine_key
from scripts.data.resolution import halved, sample_fine, smooth_pair

SHAPE = (20, 24, 16)


def volume(values, affine):
    return MetaTensor(torch.from_numpy(values)[None], affine=torch.as_tensor(affine))


def smooth_image(spacing=1.0, shape=SHAPE, flip=False):
    x, y, z = np.meshgrid(*(np.arange(size) * spacing for size in shape), indexing="ij")
    affine = np.diag([-spacing if flip else spacing, spacing, spacing, 1.0])
    return volume((2 + np.sin(x / 4) + np.cos(y / 5) + np.sin(z / 6)).astype(np.float32), affine)


def test_a_halved_grid_covers_the_same_space():
    affine = np.array([[0, -2.0, 0, 5], [3, 0, 0, 1], [0, 0, 2.5, -7], [0, 0, 0, 1]])
    grid = Grid((4, 5, 6), affine)
    fine = halved(grid)
    assert fine.shape == (8, 10, 12)
    corners = np.array([[-0.5] * 3, [3.5, 4.5, 5.5]]), np.array([[-0.5] * 3, [7.5, 9.5, 11.5]])
    np.testing.assert_allclose(grid.to_world(corners[0]), fine.to_world(corners[1]))
    # The middle of eight small voxels is the large one's.
    eight = np.array(np.meshgrid([2, 3], [4, 5], [6, 7])).reshape(3, -1).T
    np.testing.assert_allclose(fine.to_world(eight).mean(0), grid.to_world(np.array([[1, 2, 3]]))[0])


@pytest.mark.parametrize("flip", [False, True])
def test_both_images_are_brought_to_the_halved_work_grid(flip):
    fixed, moving = smooth_image(), smooth_image(flip=flip)
    item = smooth_pair({"fixed": fixed, "moving": moving}, 2.0)
    work = volume(np.zeros((8, 8, 6), np.float32), np.diag([2.0, 2, 2, 1]) + np.eye(4, k=3) * (3 if not flip else -15))
    item = sample_fine({**item, "fixed": work})
    grid = halved(Grid.of(work))
    for role, image in (("fixed", fixed), ("moving", moving)):
        sampled = item[fine_key(role)]
        assert Grid.of(sampled).same_as(grid, 1e-6)
        places = grid.to_world(np.indices(grid.shape).reshape(3, -1).T)
        where = Grid.of(image).to_indices(places).T
        inside = np.all((where > 0) & (where < np.array(SHAPE)[:, None] - 1), axis=0)
        expected = map_coordinates(image[0].numpy(), where, order=1)
        np.testing.assert_allclose(sampled[0].numpy().ravel()[inside], expected[inside], atol=1e-4)
    assert "fine_fixed_mask" not in item


def test_a_mask_stays_one():
    mask = volume((np.indices(SHAPE)[0] > 9).astype(np.float32), np.eye(4))
    item = smooth_pair({"fixed": smooth_image(), "moving": smooth_image(), "fixed_mask": mask}, 2.0)
    item = sample_fine({**item, "fixed": volume(np.zeros((8, 8, 6), np.float32), np.diag([2.0, 2, 2, 1]))})
    assert item["fine_fixed_mask"].unique().tolist() == [0, 1]
    assert item["fine_fixed_mask"].shape == item["fine_fixed"].shape == torch.Size((1, 16, 16, 12))


@pytest.mark.parametrize(("fixed", "moving", "kept"), [(1.0, 1.0, True), (1.0, 2.0, False), (1.6, 1.0, False)])
def test_only_where_both_files_are_fine_enough(fixed, moving, kept):
    item = smooth_pair({"fixed": smooth_image(fixed), "moving": smooth_image(moving)}, 2.0)
    assert ("fine_fixed" in item) == ("fine_moving" in item) == kept


@pytest.mark.parametrize(
    ("spacing", "kept"), [((1.0, 1.0, 1.0), True), ((1.5, 1.2, 1.5), True), ((0.5, 0.5, 5.0), False)]
)
def test_thick_slices_are_not_fine(spacing, kept):
    image = volume(np.ones((6, 6, 6), np.float32), np.diag([*spacing, 1.0]))
    assert (fine_key("fixed") in smooth_pair({"fixed": image, "moving": image}, 2.0)) == kept
