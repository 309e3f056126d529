from __future__ import annotations

import warnings

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from monai.data import MetaTensor
from monai.networks.blocks import Warp as MonaiWarp
from scipy.ndimage import map_coordinates

from scripts.registration.errors import ShapeError
from scripts.registration.warp import warp, warp_labels
from tests.registration.conftest import brain_like, noise, smooth

GRID = (11, 13, 17)
INSIDE = (slice(None), slice(None), slice(4, -4), slice(4, -4), slice(4, -4))
pytestmark = pytest.mark.usefixtures("engine")


def monai_warp(image, ddf, mode="bilinear"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MonaiWarp(mode, "border")(image, ddf)


def places(ddf):
    """Where each voxel comes from, as SciPy wants it: [3, X, Y, Z]."""
    return np.indices(ddf.shape[2:]) + ddf[0].double().numpy()


def itk_warp(image, ddf, interpolator):
    """The same by SimpleITK: axes reversed in numpy, a field of physical displacements at unit spacing."""
    field = sitk.GetImageFromArray(ddf[0].double().permute(3, 2, 1, 0).contiguous().numpy(), isVector=True)
    source = sitk.GetImageFromArray(image[0, 0].permute(2, 1, 0).contiguous().numpy())
    result = sitk.Resample(source, source, sitk.DisplacementFieldTransform(field), interpolator, 0.0)
    return torch.from_numpy(sitk.GetArrayFromImage(result)).permute(2, 1, 0)[None, None]


class TestImages:
    def test_a_zero_field_is_the_identity_exactly(self, device):
        for grid in ((11, 13, 17), (80, 7, 3), (1, 1, 5)):
            image = torch.rand(2, 2, *grid, generator=torch.Generator().manual_seed(1)).to(device)
            assert torch.equal(warp(image, torch.zeros(2, 3, *grid, device=device)), image)

    def test_an_integer_shift_is_exact_inside(self, device):
        image = torch.rand(1, 1, *GRID, generator=torch.Generator().manual_seed(1)).to(device)
        ddf = torch.tensor([2.0, -1.0, 3.0], device=device).reshape(1, 3, 1, 1, 1).expand(1, 3, *GRID)
        expected = image.roll((-2, 1, -3), dims=(2, 3, 4))
        assert torch.equal(warp(image, ddf)[INSIDE], expected[INSIDE])

    def test_agrees_with_scipy(self, device):
        image, ddf = smooth(1, 1, *GRID, seed=1), 4 * smooth(1, 3, *GRID, seed=2)
        result = warp(image.to(device), ddf.to(device)).cpu()
        expected = map_coordinates(image[0, 0].double().numpy(), places(ddf), order=1, mode="nearest")
        np.testing.assert_allclose(result[0, 0], expected, atol=2e-5)

    def test_agrees_with_simpleitk(self, device):
        image, ddf = smooth(1, 1, *GRID, seed=1), smooth(1, 3, *GRID, seed=2)
        result = warp(image.to(device), ddf.to(device)).cpu()
        torch.testing.assert_close(result[INSIDE], itk_warp(image, ddf, sitk.sitkLinear)[INSIDE], rtol=0, atol=1e-5)

    @pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
    def test_agrees_with_monai_and_so_do_the_gradients(self, dtype, atol, device):
        image, ddf, grad = noise(2, 2, *GRID, seed=1), 5 * noise(2, 3, *GRID, seed=2), noise(2, 2, *GRID, seed=3)
        image, ddf, grad = (part.to(device, dtype) for part in (image, ddf, grad))
        ours, theirs = ddf.clone().requires_grad_(), ddf.double().requires_grad_()
        result, expected = warp(image, ours), monai_warp(image.double(), theirs)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=atol)
        (gradient,), (wanted,) = (
            torch.autograd.grad(result, ours, grad),
            torch.autograd.grad(expected, theirs, grad.double()),
        )
        torch.testing.assert_close(gradient.double(), wanted, rtol=0, atol=atol)

    def test_the_image_gets_its_gradient(self, device):
        image, ddf = noise(1, 1, *GRID, seed=1).to(device), 5 * noise(2, 3, *GRID, seed=2).to(device)
        ours, theirs = image.clone().requires_grad_(), image.clone().requires_grad_()
        warp(ours, ddf).square().sum().backward()
        monai_warp(theirs.expand(2, -1, -1, -1, -1), ddf).square().sum().backward()
        torch.testing.assert_close(ours.grad, theirs.grad)

    def test_gradient(self):
        # Whole voxels are kinks of linear interpolation: stay away from them.
        image = noise(1, 2, 3, 4, 3, seed=1)
        ddf = (noise(2, 3, 3, 4, 3, seed=2).round() + 0.3).requires_grad_()
        assert torch.autograd.gradcheck(lambda u: warp(image, u), ddf)

    def test_one_image_serves_many_fields(self, device):
        image = brain_like(*GRID).to(device)
        ddf = 2 * smooth(4, 3, *GRID).to(device)
        expected = torch.cat([warp(image, one[None]) for one in ddf])
        assert torch.equal(warp(image, ddf), expected)

    def test_a_broken_displacement_harms_no_other_voxel(self, engine):
        if engine == "torch":
            pytest.skip("grid_sample takes NaN for the border")
        image, ddf = brain_like(*GRID), torch.zeros(1, 3, *GRID)
        ddf[0, 1, 2, 3, 4], ddf[0, 2, 5, 5, 5] = torch.nan, torch.inf
        broken = warp(image, ddf).isnan()
        assert int(broken.sum()) == 2
        assert broken[0, 0, 2, 3, 4]
        assert broken[0, 0, 5, 5, 5]


class TestLabels:
    LABELS = torch.randint(0, 10_001, (1, 1, *GRID), generator=torch.Generator().manual_seed(3))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.bool])
    def test_values_and_dtype_are_kept(self, dtype, device):
        labels = self.LABELS.to(dtype).to(device)
        result = warp_labels(labels, 3 * smooth(1, 3, *GRID).to(device))
        assert result.dtype == dtype
        assert set(result.unique().tolist()) <= set(labels.unique().tolist())
        assert torch.equal(warp_labels(labels, torch.zeros(1, 3, *GRID, device=device)), labels)

    def test_agrees_with_scipy(self, device):
        ddf = 4 * smooth(1, 3, *GRID, seed=2)
        result = warp_labels(self.LABELS.to(device), ddf.to(device)).cpu()
        expected = map_coordinates(self.LABELS[0, 0].numpy(), places(ddf), order=0, mode="nearest")
        np.testing.assert_array_equal(result[0, 0], expected)

    def test_agrees_with_monai(self, device):
        ddf = 4 * smooth(1, 3, *GRID, seed=2, dtype=torch.float64)
        expected = monai_warp(self.LABELS.double(), ddf, "nearest")
        assert torch.equal(warp_labels(self.LABELS.to(device), ddf.to(device)).cpu().double(), expected)

    def test_agrees_with_simpleitk_also_halfway(self, device):
        ddf = torch.full((1, 3, *GRID), 0.5)
        ddf[:, :, ::2] = -0.5
        expected = itk_warp(self.LABELS, ddf, sitk.sitkNearestNeighbor)
        assert torch.equal(warp_labels(self.LABELS.to(device), ddf.to(device)).cpu()[INSIDE], expected[INSIDE])

    def test_one_map_serves_many_fields(self, device):
        ddf = 2 * smooth(4, 3, *GRID).to(device)
        labels = self.LABELS.to(device)
        assert torch.equal(warp_labels(labels, ddf), torch.cat([warp_labels(labels, one[None]) for one in ddf]))


def test_the_moving_images_metadata_is_not_kept():
    image, ddf = MetaTensor(brain_like(*GRID), affine=2 * torch.eye(4)), smooth(1, 3, *GRID)
    for result in (warp(image, ddf), warp_labels(image, ddf)):
        assert type(result) is torch.Tensor


def test_refuses_what_does_not_fit():
    image, ddf = torch.zeros(1, 1, 4, 4, 4), torch.zeros(2, 3, 4, 4, 4)
    with pytest.raises(ShapeError, match=r"expected ddf of shape \[B, 3, X, Y, Z\], got \(2, 2, 4, 4, 4\)"):
        warp(image, ddf[:, :2])
    with pytest.raises(ShapeError, match=r"expected image of shape \[1 or 2, C, 4, 4, 4\], got \(3, 1, 4, 4, 4\)"):
        warp(image.expand(3, -1, -1, -1, -1), ddf)
    with pytest.raises(ShapeError, match="expected image"):
        warp_labels(image[..., :3], ddf)
