"""MONAI Label's own bundle app with this bundle in its model folder: requests as Slicer sends them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from scripts.core.seg35 import SEG35
from tests.bundle.monailabel.conftest import Server, run_inference, write_scan
from tests.commands.conftest import ROOT

pytestmark = pytest.mark.monailabel

MODEL = "structured_sir"
FEW = {"num_proposals": 8, "num_samples": 4, "seed": 5}


@pytest.fixture(scope="module")
def place(tmp_path_factory, environment):
    folder = tmp_path_factory.mktemp("stock")
    monailabel = str(Path(sys.executable).with_name("monailabel"))
    command = [monailabel, "apps", "--download", "--name", "monaibundle", "--output", str(folder)]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    (folder / "monaibundle/model").mkdir(exist_ok=True)
    (folder / "monaibundle/model" / MODEL).symlink_to(ROOT, target_is_directory=True)
    (folder / "studies").mkdir()
    for name, seed in (("ann", 11), ("bob", 12)):
        write_scan(folder / "studies", name, seed, 4.0)
    return folder


@pytest.fixture(scope="module")
def server(place, environment, slicer_client):
    conf = [("models", MODEL), ("zoo_source", "ngc"), ("skip_trainers", "true"), ("sam2", "false")]
    server = Server(place / "monaibundle", place / "studies", place / "server.log", environment, *conf)
    server.client = slicer_client(server.url, tmpdir=str(place))
    server.info = server.wait(server.client)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def expected(place, environment, server):
    """`run inference` on the same pair: the scan and the example atlas, which the first request has written."""
    server.first = server.client.infer(MODEL, "ann", {**FEW, "output": "labels"})
    atlas = ROOT / "output/atlas"
    files = {"moving": atlas / "atlas.nii.gz", "moving_label": atlas / "atlas_labels.nii.gz"}
    fixed = place / "studies/ann.nii.gz"
    return run_inference(place / "expected", environment, fixed=fixed, **files, **FEW)


def test_info_lists_the_model_with_its_structures_and_options(server):
    model = server.info["models"][MODEL]
    assert model["type"] == "segmentation"
    assert model["labels"] == {label.name.lower(): number for number, label in SEG35.items()}
    assert model["config"]["output"] == ["labels", "uncertainty"]
    assert {"atlas", "atlas_labels", "num_proposals", "num_samples", "seed"} <= set(model["config"])


def test_labels_by_image_id_are_those_of_run_inference(place, server, expected):
    file, figures = server.first
    found, wanted = sitk.ReadImage(file), sitk.ReadImage(str(expected / "labels.nii.gz"))
    assert np.array_equal(sitk.GetArrayFromImage(found), sitk.GetArrayFromImage(wanted))
    scan = sitk.ReadImage(str(place / "studies/ann.nii.gz"))
    for of in ("GetOrigin", "GetSpacing", "GetDirection"):
        np.testing.assert_allclose(getattr(found, of)(), getattr(scan, of)(), atol=1e-4)
    diagnostics = json.loads((expected / "diagnostics.json").read_text())
    for key in ("ess", "khat", "ncc_after", "judgement"):
        assert figures[key] == diagnostics[key]
    rows = list(csv.DictReader((expected / "volumes.csv").open()))
    assert len(rows) == len(figures["volumes"]) > 20
    for row, volume in zip(rows, figures["volumes"], strict=True):
        assert row["name"] == volume["name"]
        for key in ("volume_mm3", "lower_95_mm3", "upper_95_mm3"):
            assert float(row[key]) == pytest.approx(volume[key], abs=0.051)


def test_uncertainty_of_an_uploaded_image_with_the_atlas_named(place, server, expected):
    session = server.client.create_session(str(place / "studies/ann.nii.gz"))["session_id"]
    atlas = ROOT / "output/atlas"
    named = {"atlas": str(atlas / "atlas.nii.gz"), "atlas_labels": str(atlas / "atlas_labels.nii.gz")}
    # A viewer sends its list of choices with the chosen one in front.
    params = {**FEW, **named, "output": ["uncertainty", "labels"]}
    file, figures = server.client.infer(MODEL, "", params, session_id=session)
    wanted = nib.load(expected / "uncertainty_std.nii.gz").get_fdata()[..., 0]
    # The file of `run inference` is rounded to 1/4096 mm.
    np.testing.assert_allclose(nib.load(file).get_fdata(), wanted, rtol=0, atol=1 / 8192 + 1e-6)
    assert figures["output"] == "uncertainty"
    server.client.remove_session(session)


def test_saved_labels_are_found_again(server, expected):
    file, figures = server.first
    server.client.save_label("ann", file, tag="final", params=figures)
    labels = server.client.datastore()["objects"]["ann"]["labels"]
    assert labels["final"]["info"]["judgement"] == figures["judgement"]
    back = server.client.download_label("ann", "final")
    assert np.array_equal(nib.load(back).get_fdata(), nib.load(expected / "labels.nii.gz").get_fdata())
    assert server.client.next_sample("first", {})["id"] == "bob"
    status = server.client.info()["datastore"]
    assert status["completed"] == 1
    assert status["label_tags"] == {"final": 1}
