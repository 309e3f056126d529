"""Files that are finer than the model: detail at their own resolution, in every file that comes out."""

import csv
import json

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from scripts.commands.apply import Application
from scripts.posterior.posterior_file import load
from tests.commands.conftest import SPACING, PairOnDisk, evaluator
from tests.commands.test_registration_run import warped_by_itk

STEPS = 3


@pytest.fixture(scope="module")
def fine_pair(tmp_path_factory):
    """The brains at half the model's voxel size."""
    return PairOnDisk(tmp_path_factory.mktemp("fine"), SPACING / 2)


@pytest.fixture(scope="module")
def results(fine_pair, weights, tmp_path_factory):
    """The pair with detail and without."""
    folders = []
    for steps in (STEPS, 0):
        folder = tmp_path_factory.mktemp(f"detail{steps}")
        rows = evaluator(folder, weights, **fine_pair.files, detail_steps=steps, refine_steps=2).run()
        folders.append(folder / rows[0]["name"])
    return folders


def figures(folder):
    return json.loads((folder / "diagnostics.json").read_text())


def data(path):
    return nib.load(path).get_fdata()


def test_it_is_said_what_was_done(results):
    fine, plain = (figures(folder) for folder in results)
    assert fine["detail_steps"] == STEPS
    assert fine["detail_gain_log_posterior"] > 0
    assert fine["seconds"]["detail"] > 0
    assert "detail_steps" not in plain
    assert "detail" not in plain["seconds"]
    assert fine["ncc_after"] > plain["ncc_after"]


def test_the_fields_differ_and_the_uncertainty_does_not(results):
    fields = [data(folder / "displacement.nii.gz") for folder in results]
    assert np.abs(fields[0] - fields[1]).max() > 0.1 * SPACING
    std = [data(folder / "uncertainty_std.nii.gz") for folder in results]
    np.testing.assert_allclose(std[0], std[1], atol=1e-3)  # kept in half precision


@pytest.mark.parametrize("transform", ["transform.h5", "displacement.nii.gz"])
def test_simpleitk_reproduces_the_warped_image(results, fine_pair, transform):
    ours = sitk.GetArrayFromImage(sitk.ReadImage(str(results[0] / "warped.nii.gz")))
    theirs = warped_by_itk(results[0], fine_pair.files["fixed"], fine_pair.files["moving"], transform)
    assert np.abs(ours - theirs).mean() < 1e-4 * np.ptp(ours)


def test_folds_are_counted_on_the_files_own_grid(results):
    image = nib.load(results[0] / "displacement.nii.gz")
    lps = image.get_fdata()[..., 0, :]
    voxels = np.einsum("ij,...j->...i", np.linalg.inv(image.affine[:3, :3]), lps * [-1, -1, 1])
    jacobian = np.stack(np.gradient(voxels, axis=(0, 1, 2)), axis=-1) + np.eye(3)
    folds = 100 * (np.linalg.det(jacobian)[1:-1, 1:-1, 1:-1] <= 0).mean()
    inner = np.prod([size - 2 for size in image.shape[:3]]) / np.prod(image.shape[:3])
    assert figures(results[0])["fold_percent_mean"] == pytest.approx(folds * inner, abs=0.2)


def test_apply_gives_the_registrations_own_results(results, fine_pair, tmp_path):
    job = Application(
        str(results[0] / "posterior.pt"), output_dir=str(tmp_path), progress=False,
        image=fine_pair.files["moving"], label=fine_pair.files["moving_label"],
    )  # fmt: skip
    files = {path.name: path for path in job.run()}
    np.testing.assert_allclose(data(files["moving_warped.nii.gz"]), data(results[0] / "warped.nii.gz"), atol=1e-4)
    np.testing.assert_array_equal(data(files["moving_label_labels.nii.gz"]), data(results[0] / "labels.nii.gz"))


def test_samples_as_itk_transforms_have_the_detail(results, tmp_path):
    Application(str(results[0] / "posterior.pt"), output_dir=str(tmp_path), progress=False, transforms=True).run()
    stored = load(results[0] / "posterior.pt")
    samples = {index: points.numpy() for index, _, points in stored.samples()}
    points = np.array([[4.0, 2, 3], [-20, 10, 5], [15, -30, 20]])
    rows = list(csv.DictReader((tmp_path / "transforms/weights.csv").open()))
    assert rows
    for row in rows:
        transform = sitk.ReadTransform(str(tmp_path / "transforms" / row["file"]))
        expected = points + stored.space.displacement_at(samples[int(row["proposal"])], points)
        for point, there in zip(points * [-1, -1, 1], expected * [-1, -1, 1], strict=True):
            # Field and detail as one spline on the work grid: exact at its voxels, nearly so between them.
            np.testing.assert_allclose(transform.TransformPoint(point.tolist()), there, atol=0.02 * SPACING)


def test_conditioning_knows_of_the_detail(results, fine_pair, tmp_path):
    """A mark where the registration puts it already: nothing to mend."""
    stored = load(results[0] / "posterior.pt")
    point = np.array([[4.0, 2, 3]])
    there = stored.space.align(point + stored.space.displacement_at(stored.mean.numpy(), point))
    header = "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z"
    (tmp_path / "marks.csv").write_text(f"{header}\n{','.join(map(str, [*point[0], *there[0]]))}\n")
    Application(
        str(results[0] / "posterior.pt"), output_dir=str(tmp_path / "out"), progress=False, report=False,
        landmarks=str(tmp_path / "marks.csv"),
    ).run()  # fmt: skip
    (given,) = (tmp_path / "out").rglob("diagnostics.json")
    said = json.loads(given.read_text())["conditioning"]
    assert said["landmark_error_before_mm"][0] == pytest.approx(0, abs=0.01)
    assert said["surprise_p_value"] > 0.01


def test_files_as_coarse_as_the_model_have_none(pair, weights, tmp_path):
    files = {role: pair.files[role] for role in ("fixed", "moving")}
    rows = evaluator(tmp_path, weights, **files, detail_steps=STEPS).run()
    assert "detail_steps" not in figures(tmp_path / rows[0]["name"])


def test_conditioning_looks_for_the_detail_again(results, tmp_path):
    """A mark that is 8 mm off: the detail is another one then, and the mark is met with it."""
    stored = load(results[0] / "posterior.pt")
    point = np.array([[4.0, 2, 3]])
    there = stored.space.align(point + stored.space.displacement_at(stored.mean.numpy(), point))
    there[:, 0] += 8
    header = "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z"
    (tmp_path / "marks.csv").write_text(f"{header}\n{','.join(map(str, [*point[0], *there[0]]))}\n")
    Application(
        str(results[0] / "posterior.pt"), output_dir=str(tmp_path / "out"), progress=False, report=False,
        landmarks=str(tmp_path / "marks.csv"), landmark_std=0.5, settings={"refine_steps": 12},
    ).run()  # fmt: skip
    given = load(tmp_path / "out/posterior.pt")
    assert float((given.space.detail - stored.space.detail).abs().max()) > 0.01
    transform = sitk.ReadTransform(str(tmp_path / "out/transform.h5"))
    reached = np.array(transform.TransformPoint((point[0] * [-1, -1, 1]).tolist())) * [-1, -1, 1]
    assert np.linalg.norm(reached - there[0]) < 2.0
    said = figures(tmp_path / "out")
    assert said["conditioning"]["landmark_error_after_mm"][0] == pytest.approx(
        np.linalg.norm(reached - there[0]), abs=0.5
    )
