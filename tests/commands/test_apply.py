"""`run apply`: what the stored posterior does to other files, against the registration's own results and SimpleITK."""

import csv

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch

from scripts.commands.apply import Application
from scripts.posterior.posterior_file import load
from tests.commands.conftest import evaluator


@pytest.fixture(scope="module")
def registered(pair, weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("registered")
    files = {key: pair.files[key] for key in ("fixed", "moving", "moving_label")}
    return folder / evaluator(folder, weights, **files).run()[0]["name"]


def apply(registered, tmp_path, **options):
    return Application(str(registered / "posterior.pt"), output_dir=str(tmp_path), progress=False, **options).run()


def data(path):
    return nib.load(path).get_fdata()


def test_the_moving_image_itself_gives_the_registrations_own_result(registered, pair, tmp_path):
    files = apply(registered, tmp_path, image=pair.files["moving"])
    assert [path.name for path in files] == ["moving_warped.nii.gz", "moving_mean.nii.gz", "moving_std.nii.gz"]
    np.testing.assert_allclose(data(files[0]), data(registered / "warped.nii.gz"), atol=1e-4)
    assert data(files[2]).max() > 0


def test_labels_give_the_registrations_own_result(registered, pair, tmp_path):
    files = {path.name: path for path in apply(registered, tmp_path, label=pair.files["moving_label"])}
    for ours, theirs in (("labels", "labels"), ("probability", "label_probability"), ("entropy", "label_entropy")):
        expected = data(registered / f"{theirs}.nii.gz")
        np.testing.assert_allclose(data(files[f"moving_label_{ours}.nii.gz"]), expected, atol=1e-5)
    assert (registered / "volumes.csv").read_text() == files["moving_label_volumes.csv"].read_text()


def test_mean_and_spread_of_an_image_are_those_of_the_samples(registered, pair, tmp_path):
    files = apply(registered, tmp_path, image=pair.files["moving"])
    stored = load(registered / "posterior.pt")
    moving = torch.from_numpy(data(pair.files["moving"])).float()
    warped = []
    for _, count, points in stored.samples():
        image = stored.space.warp(moving, stored.space.displacement(points[None])[0])
        warped += [image.double()] * count
    stack = torch.stack(warped)
    np.testing.assert_allclose(data(files[1]), stack.mean(0).numpy(), atol=1e-5)
    np.testing.assert_allclose(data(files[2]), stack.std(0).numpy(), atol=1e-5)


def test_an_image_on_another_grid_is_taken_from_its_own_voxels(registered, pair, tmp_path):
    """Another image of the moving person, every second slice: SimpleITK resamples it with the same transform."""
    moving = nib.load(pair.files["moving"])
    thick = nib.Nifti1Image(moving.get_fdata(dtype=np.float32)[:, ::2], moving.affine @ np.diag([1.0, 2, 1, 1]))
    nib.save(thick, tmp_path / "thick.nii.gz")
    (path,) = apply(registered, tmp_path / "out", image=str(tmp_path / "thick.nii.gz"), mode="mean")
    images = [sitk.ReadImage(name, sitk.sitkFloat32) for name in (str(tmp_path / "thick.nii.gz"), pair.files["fixed"])]
    expected = sitk.GetArrayFromImage(sitk.Resample(*images, sitk.ReadTransform(str(registered / "transform.h5"))))
    ours = sitk.GetArrayFromImage(sitk.ReadImage(str(path)))
    assert np.abs(ours - expected).mean() < 1e-3 * np.ptp(expected)


@pytest.mark.parametrize("space", ["RAS", "LPS"])
def test_points_go_where_the_transform_sends_them(registered, tmp_path, space):
    sign = np.array([-1, -1, 1]) if space == "LPS" else np.ones(3)
    ras = np.array([[1.0, 2, 3], [-20, 10, 5], [15, -30, 20]])
    lines = ["name,x,y,z", *(f"p{i},{x},{y},{z}" for i, (x, y, z) in enumerate(ras * sign))]
    (tmp_path / "points.csv").write_text("\n".join(lines))
    (path,) = apply(registered, tmp_path, points=str(tmp_path / "points.csv"), points_space=space)
    rows = list(csv.DictReader(path.open()))
    transform = sitk.ReadTransform(str(registered / "transform.h5"))
    for row, point in zip(rows, ras, strict=True):
        expected = transform.TransformPoint((point * [-1, -1, 1]).tolist())
        ours = [float(row[f"mean_{axis}_lps"]) for axis in "xyz"]
        # ITK interpolates the field linearly between voxels of 6 mm, where the spline is curved
        np.testing.assert_allclose(ours, expected, atol=0.6)
        assert float(row["cov_xx_mm2"]) > 0
        assert float(row["radius_95_mm"]) > 0


def test_the_covariance_is_that_of_the_samples(registered, tmp_path):
    (tmp_path / "points.csv").write_text("x,y,z\n5,6,7\n")
    (path,) = apply(registered, tmp_path, points=str(tmp_path / "points.csv"))
    (row,) = csv.DictReader(path.open())
    stored = load(registered / "posterior.pt")
    places = []
    for _, count, points in stored.samples():
        places += [stored.space.displacement_at(points.numpy(), np.array([[5.0, 6, 7]]))[0]] * count
    covariance = np.cov(np.array(places).T, bias=True)
    assert float(row["cov_xy_mm2"]) == pytest.approx(covariance[0, 1], rel=1e-3)
    assert float(row["cov_zz_mm2"]) == pytest.approx(covariance[2, 2], rel=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--image, --label, --points"),
        ({"image": "/nowhere.nii"}, "does not exist"),
        ({"image": "FIXED", "mode": "median"}, "--mode"),
        ({"points": "/nowhere.csv"}, "does not exist"),
        ({"image": "FAR"}, "does not lie where the moving image was"),
        ({"label": "FAR"}, "does not lie where the moving image was"),
        ({"points": "OUTSIDE"}, "no point lies in the fixed image"),
    ],
)
def test_mistakes_are_named_in_one_line(registered, pair, tmp_path, capsys, options, words):
    moving = nib.load(pair.files["moving"])
    away = moving.affine.copy()
    away[:3, 3] += 500
    nib.save(nib.Nifti1Image((moving.get_fdata() > 0.5).astype(np.int16), away), tmp_path / "far.nii.gz")
    (tmp_path / "outside.csv").write_text("x,y,z\n900,0,0\n")
    named = {"FIXED": pair.files["fixed"], "FAR": f"{tmp_path}/far.nii.gz", "OUTSIDE": f"{tmp_path}/outside.csv"}
    options = {key: named.get(value, value) for key, value in options.items()}
    with pytest.raises(SystemExit) as caught:
        apply(registered, tmp_path, **options)
    assert caught.value.code == 1
    assert words in capsys.readouterr().err


def test_existing_files_are_kept_unless_told_otherwise(registered, pair, tmp_path, capsys):
    (first,) = apply(registered, tmp_path, image=pair.files["moving"], mode="mean")
    with pytest.raises(SystemExit):
        apply(registered, tmp_path, image=pair.files["moving"], mode="mean")
    assert "--overwrite" in capsys.readouterr().err
    assert apply(registered, tmp_path, image=pair.files["moving"], mode="mean", overwrite=True) == [first]
    with pytest.raises(SystemExit):
        Application(None, image=pair.files["moving"]).run()
    assert "--posterior" in capsys.readouterr().err
