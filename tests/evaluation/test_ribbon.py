"""The ribbon around a boundary against hand counts and SciPy's morphology."""

import pytest
import torch
from scipy import ndimage

from scripts.evaluation.ribbon import boundary_ribbon, dilate, label_ribbons


def blobs(shape, seed=0):
    """A smooth random label map with the values 0, 3 and 500."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).numpy()
    smooth = ndimage.gaussian_filter(noise, 2)
    return torch.from_numpy((smooth > 0.05) * 3 + (smooth < -0.05) * 500)


def scipy_ribbon(structure, radius):
    """The definition in SciPy's words: border_value=1 keeps the image's edge from being a boundary."""
    inside = ndimage.binary_erosion(structure, border_value=1)
    boundary = structure & ~inside
    return ndimage.binary_dilation(boundary, iterations=radius) if radius else boundary


def test_a_single_voxel_grows_to_the_city_block_ball():
    structure = torch.zeros(9, 9, 9, dtype=torch.bool)
    structure[4, 4, 4] = True
    # Voxels at city-block distance ≤ 3 in three dimensions: 1 + 6 + 18 + 38 = 63.
    assert boundary_ribbon(structure, 3).sum() == 63
    distance = (torch.stack(torch.meshgrid(*[torch.arange(9)] * 3, indexing="ij")) - 4).abs().sum(0)
    assert torch.equal(boundary_ribbon(structure, 3), distance <= 3)


def test_a_plane_has_three_layers_outside_and_the_boundary_with_three_inside():
    # Half of the volume, x < 10 of 20: the boundary is the layer x = 9, the ribbon is x = 6 … 12. The image's edge at
    # x = 0, y = 0 … is no boundary.
    structure = torch.zeros(20, 5, 5, dtype=torch.bool)
    structure[:10] = True
    assert boundary_ribbon(structure, 3)[:, 2, 2].nonzero().flatten().tolist() == [6, 7, 8, 9, 10, 11, 12]
    assert torch.equal(boundary_ribbon(structure, 3).all(2).all(1), boundary_ribbon(structure, 3)[:, 0, 0])


@pytest.mark.parametrize("radius", [0, 1, 3])
def test_agrees_with_scipy_on_the_whole_volume(radius):
    truth = blobs((18, 20, 22))
    labels = [3, 500]
    assert all((truth == label).any() for label in labels)
    for label, ribbon in zip(labels, label_ribbons(truth, labels, radius), strict=True):
        full = torch.zeros(truth.shape, dtype=torch.bool)
        full[ribbon.box] = ribbon.mask
        assert torch.equal(full, torch.from_numpy(scipy_ribbon((truth == label).numpy(), radius)))
        assert torch.equal(ribbon.select(truth), truth[full])  # same voxels in the same order


def test_select_keeps_leading_axes():
    truth = blobs((12, 12, 12))
    (ribbon,) = label_ribbons(truth, [3])
    channels = torch.stack([truth, -truth])
    assert torch.equal(ribbon.select(channels)[1], -ribbon.select(truth))


def test_dilation_agrees_with_scipy():
    mask = torch.rand(9, 10, 11, generator=torch.Generator().manual_seed(0)) < 0.02
    for steps in (0, 1, 2, 5):
        expected = ndimage.binary_dilation(mask.numpy(), iterations=steps) if steps else mask.numpy()
        assert torch.equal(dilate(mask, steps), torch.from_numpy(expected))


def test_an_absent_structure_has_an_empty_ribbon():
    truth = blobs((8, 8, 8))
    (ribbon,) = label_ribbons(truth, [9])
    assert ribbon.select(truth).shape == (0,)


def test_a_structure_that_fills_the_image_has_no_boundary():
    (ribbon,) = label_ribbons(torch.ones(4, 5, 6, dtype=torch.int16), [1])
    assert ribbon.mask.sum() == 0


def test_wrong_shape_and_radius_are_refused():
    with pytest.raises(ValueError, match=r"expected a label map of shape \[X, Y, Z\], got \(1, 4, 4, 4\)"):
        label_ribbons(torch.zeros(1, 4, 4, 4), [1])
    with pytest.raises(ValueError, match="radius of 0 or more voxels, got -1"):
        label_ribbons(torch.zeros(4, 4, 4), [1], radius=-1)
