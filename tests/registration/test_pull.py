"""Volumes pulled onto another grid, against SciPy and SimpleITK; the compiled loops against the torch twin."""

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from scipy.ndimage import map_coordinates

from scripts.registration import pull as module
from scripts.registration.errors import ShapeError
from scripts.registration.pull import pull

MATRIX = np.array([[0.0, -0.9, 0.1, 12.0], [1.1, 0.05, 0, -1.0], [0, 0.1, 0.8, 1.0], [0, 0, 0, 1]])
PER_MM = np.array([[0.0, -0.5, 0.02], [0.6, 0, 0], [0, 0.1, 0.7]])


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    volume = torch.from_numpy(rng.random((14, 12, 11), dtype=np.float32))
    displacement = torch.from_numpy(rng.normal(0, 2, (3, 9, 13, 10)).astype(np.float32))
    return volume, displacement


def places(displacement):
    indices = np.indices(displacement.shape[1:]).reshape(3, -1)
    flat = displacement.numpy().reshape(3, -1)
    return MATRIX[:3, :3] @ indices + MATRIX[:3, 3:] + PER_MM @ flat


@pytest.fixture(params=["compiled", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(module, "compiled", lambda *_: None)
    return request.param


@pytest.mark.usefixtures("backend")
def test_linear_agrees_with_scipy_inside(case):
    volume, displacement = case
    at = places(displacement)
    expected = map_coordinates(volume.numpy().astype(np.float64), at, order=1, mode="nearest")
    size = np.array(volume.shape)[:, None]
    inside = ((at >= -0.5) & (at < size - 0.5)).all(0)
    assert 0.3 < inside.mean() < 1  # the case has both
    out = pull(volume, displacement, MATRIX, PER_MM).numpy().ravel()
    np.testing.assert_allclose(out[inside], expected[inside], atol=2e-5)
    assert (out[~inside] == 0).all()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.int64])
def test_labels_take_the_nearest_voxel(case, dtype):
    volume, displacement = case
    labels = (volume * 200).to(dtype)
    at = np.floor(places(displacement) + 0.5).astype(int)
    size = np.array(volume.shape)[:, None]
    inside = ((at >= 0) & (at < size)).all(0)
    expected = np.zeros(at.shape[1], dtype=labels.numpy().dtype)
    expected[inside] = labels.numpy()[tuple(at[:, inside])]
    out = pull(labels, displacement, MATRIX, PER_MM, nearest=True)
    assert out.dtype == dtype
    # float32 sums may put a place that is exactly between two voxels to the other one
    assert (out.numpy().ravel() == expected).mean() > 0.999


@pytest.mark.usefixtures("backend")
def test_agrees_with_simpleitk_up_to_the_edge():
    """Half a voxel around the outer centers belongs to the image, the rest is 0: as ITK's resampler has it."""
    rng = np.random.default_rng(1)
    volume = rng.random((6, 7, 8), dtype=np.float32)
    shift = np.array([1.3, -0.4, 0.45])
    image = sitk.GetImageFromArray(volume.transpose(2, 1, 0))
    expected = sitk.GetArrayFromImage(sitk.Resample(image, image, sitk.TranslationTransform(3, shift.tolist())))
    displacement = torch.from_numpy(np.broadcast_to(shift[:, None, None, None], (3, 6, 7, 8)).astype(np.float32).copy())
    out = pull(torch.from_numpy(volume), displacement, np.eye(4), np.eye(3))
    np.testing.assert_allclose(out.numpy(), expected.transpose(2, 1, 0), atol=1e-5)


@pytest.mark.usefixtures("backend")
def test_nothing_moves_without_displacement(case):
    volume, _ = case
    out = pull(volume, torch.zeros(3, *volume.shape), np.eye(4), np.eye(3))
    assert torch.equal(out, volume)


def test_wrong_shapes_are_named(case):
    volume, displacement = case
    with pytest.raises(ShapeError, match="volume"):
        pull(volume[None], displacement, MATRIX, PER_MM)
    with pytest.raises(ShapeError, match="displacement"):
        pull(volume, displacement[:2], MATRIX, PER_MM)
    with pytest.raises(ShapeError, match="matrices"):
        pull(volume, displacement, MATRIX[:3], PER_MM)
