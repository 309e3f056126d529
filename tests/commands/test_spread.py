"""The default spread of `run inference`, curvature with local weights, through files and `run apply`."""

from __future__ import annotations

import csv
import json

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch

from scripts.commands.apply import Application
from scripts.gaussian import StructuredGaussian
from scripts.posterior.posterior_file import load
from tests.commands.conftest import evaluator


@pytest.fixture(scope="module", params=["curvature", "noise"])
def registered(request, pair, weights, tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread")
    run = evaluator(folder, weights, fixed=pair.files["fixed"], moving=pair.files["moving"], spread=request.param,
                    moving_label=pair.files["moving_label"], fixed_label=pair.files["fixed_label"], num_samples=10,
                    refine_steps=2)  # fmt: skip
    run.run()
    (found,) = folder.glob("*__to__*")
    return found


def data(path):
    return nib.load(path).get_fdata()


def test_as_many_fields_are_drawn_as_kept_and_all_count_alike(registered):
    figures = json.loads((registered / "diagnostics.json").read_text())
    assert figures["num_proposals"] == figures["num_samples"] == figures["unique_samples"] == 10
    assert figures["largest_weight"] == pytest.approx(0.1)


def test_the_mean_field_is_the_proposals_own(registered):
    stored = load(registered / "posterior.pt")
    torch.testing.assert_close(stored.mean, stored.center())


def test_samples_are_drawn_again_to_the_bit(registered):
    first, second = (torch.stack(list(load(registered / "posterior.pt").control_points([3, 7]))) for _ in range(2))
    assert torch.equal(first, second)
    assert float((first[0] - first[1]).std()) > 0.05


def test_labels_carried_later_are_the_registrations_own(registered, pair, tmp_path):
    """Local weights included: the images are read again from their files."""
    Application(
        posterior=str(registered / "posterior.pt"), output_dir=str(tmp_path), label=pair.files["moving_label"],
        progress=False,
    ).run()  # fmt: skip
    for ours, theirs in (("labels", "labels"), ("probability", "label_probability"), ("entropy", "label_entropy")):
        expected = data(registered / f"{theirs}.nii.gz")
        np.testing.assert_allclose(data(tmp_path / f"moving_label_{ours}.nii.gz"), expected, atol=1e-5)


def test_images_that_are_gone_are_said_and_do_not_stop_it(registered, pair, tmp_path, caplog):
    stored = load(registered / "posterior.pt")
    if stored.spread.local:
        Application(
            posterior=str(registered / "posterior.pt"), output_dir=str(tmp_path / "b"), progress=False,
            label=pair.files["moving_label"], files={"fixed": str(tmp_path / "gone.nii.gz")},
        ).run()  # fmt: skip
        assert "not there any more" in caplog.text


def test_points_go_where_the_transform_sends_them(registered, tmp_path):
    (tmp_path / "points.csv").write_text("name,x,y,z\na,1,2,3\nb,-20,10,5\n")
    (path,) = Application(
        posterior=str(registered / "posterior.pt"), output_dir=str(tmp_path), points=str(tmp_path / "points.csv"),
        progress=False,
    ).run()  # fmt: skip
    transform = sitk.ReadTransform(str(registered / "transform.h5"))
    for row in csv.DictReader(path.open()):
        point = [-float(row["x_ras"]), -float(row["y_ras"]), float(row["z_ras"])]
        ours = [float(row[f"mean_{axis}_lps"]) for axis in "xyz"]
        np.testing.assert_allclose(ours, transform.TransformPoint(point), atol=0.6)  # ITK interpolates linearly
        assert float(row["cov_xx_mm2"]) > 0


def test_a_landmark_is_taken_in(registered, tmp_path):
    stored = load(registered / "posterior.pt")
    if not isinstance(stored.proposal, StructuredGaussian):
        pytest.skip("noise is no structured Gaussian")
    fixed = np.array([[10.0, -5.0, 8.0]])
    there = stored.space.align(fixed + stored.space.displacement_at(stored.mean.numpy(), fixed))
    there += np.array([3.0, -2.0, 1.0])
    row = ",".join(map(str, ["a", *fixed[0], *there[0]]))
    (tmp_path / "l.csv").write_text(f"name,fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z\n{row}\n")
    Application(
        posterior=str(registered / "posterior.pt"), output_dir=str(tmp_path / "out"), report=False, progress=False,
        landmarks=str(tmp_path / "l.csv"), landmark_std=0.1, settings={"refine_steps": 0},
    ).run()  # fmt: skip
    figures = json.loads((tmp_path / "out/diagnostics.json").read_text())["conditioning"]
    assert max(figures["landmark_error_after_mm"]) < 0.3
    assert figures["landmark_error_before_mm"][0] == pytest.approx(14**0.5, abs=0.01)
