"""Preprocessing, inferer and postprocessing of the shipped config, called as MONAI Label's bundle app calls them."""

from __future__ import annotations

import csv
import json

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import decollate_batch

from scripts.core.errors import DataError
from tests.commands.conftest import ROOT, SMALL, evaluator


def viewer(pair, weights, **request):
    """The answer to a request: one image in, options as `displayable_configs`, everything else from the config."""
    parser = ConfigParser()
    parser.read_config(str(ROOT / "configs/inference.json"))
    parser.config.update({"ckpt_path": weights, **{key: SMALL[key] for key in ("bundle_root", "device", "align")}})
    defaults = parser.get_parsed_content("displayable_configs")
    options = {**defaults, "num_proposals": 12, "num_samples": 6, "atlas": pair.files["moving"]}
    options = {**options, "atlas_labels": pair.files["moving_label"], **request}
    parser["displayable_configs"].update(options)
    parser.parse()
    network = parser.get_parsed_content("network_def")
    data = {**options, "image": pair.files["fixed"], "image_path": pair.files["fixed"]}
    for transform in parser.get_parsed_content("preprocessing").transforms:
        data = transform(data)
    with torch.no_grad():
        answer = parser.get_parsed_content("inferer")(data["image"][None], network.eval())
    data["pred"] = decollate_batch(answer)[0]
    for transform in parser.get_parsed_content("postprocessing").transforms:
        data = transform(data)
    return data


@pytest.fixture(scope="module")
def expected(tmp_path_factory, pair, weights):
    folder = tmp_path_factory.mktemp("expected")
    files = {key: pair.files[key] for key in ("fixed", "moving", "moving_label")}
    rows = evaluator(folder, weights, **files, seed=3, spread="curvature").run()
    return folder / rows[0]["name"]


def test_labels_and_figures_are_those_of_run_inference(pair, weights, expected):
    data = viewer(pair, weights, seed=3)
    labels = nib.load(expected / "labels.nii.gz").get_fdata()
    assert np.array_equal(np.asarray(data["pred"]), labels)
    assert data["result_dtype"] == np.int16
    np.testing.assert_allclose(data["pred"].affine, nib.load(pair.files["fixed"]).affine)
    figures = json.loads(json.dumps(data["result"]))
    diagnostics = json.loads((expected / "diagnostics.json").read_text())
    for key in ("ess", "khat", "seed", "judgement"):
        assert figures[key] == diagnostics[key], key
    assert (figures["moving"], figures["fixed"]) == ("moving", "fixed")
    rows = list(csv.DictReader((expected / "volumes.csv").open()))
    assert [row["name"] for row in rows] == [volume["name"] for volume in figures["volumes"]]
    for row, volume in zip(rows, figures["volumes"], strict=True):
        assert volume["lower_95_mm3"] <= volume["volume_mm3"] <= volume["upper_95_mm3"]
        assert float(row["volume_mm3"]) == volume["volume_mm3"]


def test_uncertainty_comes_on_the_scans_own_grid(pair, weights, expected):
    data = viewer(pair, weights, seed=3, output=["uncertainty", "labels"])
    wanted = nib.load(expected / "uncertainty_std.nii.gz").get_fdata()[..., 0]
    # The file is rounded to 1/4096 mm.
    np.testing.assert_allclose(np.asarray(data["pred"]), wanted, rtol=0, atol=1 / 8192 + 1e-6)
    scan = nib.load(pair.files["fixed"])
    assert tuple(data["image"].meta["spatial_shape"]) == scan.shape
    np.testing.assert_allclose(data["image"].meta["original_affine"], scan.affine)
    labels = nib.load(expected / "labels.nii.gz").get_fdata()
    assert np.array_equal(np.asarray(data["segmentation"])[0], labels)


def test_another_output_is_refused(pair, weights):
    with pytest.raises(DataError, match="output must be one of labels, uncertainty"):
        viewer(pair, weights, output="mesh")


def test_plain_inference_writes_a_color_table(expected):
    lines = (expected / "labels.ctbl").read_text().splitlines()
    assert "14 Left-Hippocampus 220 216 20 255" in lines
