"""The pictures of docs/slicer.md, from a small result."""

from __future__ import annotations

import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from experiments.slicer_pictures import Scene, main, read_color_table
from scripts.commands.apply import Application
from tests.commands.conftest import ROOT, evaluator, pair, weights  # noqa: F401


@pytest.fixture(scope="module")
def result(tmp_path_factory, pair, weights):  # noqa: F811
    folder = tmp_path_factory.mktemp("pictures")
    files = {key: pair.files[key] for key in ("fixed", "moving", "moving_label")}
    rows = evaluator(folder, weights, **files).run()
    place = folder / rows[0]["name"]
    Application(str(place / "posterior.pt"), transforms=True, progress=False, debug=True).run()
    return place


def test_plane_shows_anterior_on_top_and_the_right_side_on_the_left(result, pair):  # noqa: F811
    scene = Scene(result, Path(pair.files["fixed"]), Path(pair.files["moving"]))
    image = nib.load(pair.files["fixed"])
    at = np.linalg.inv(image.affine) @ np.array([20.0, 30.0, scene.height, 1.0])  # right, anterior; RAS
    row, column = -30.0 - scene.low[1], -20.0 - scene.low[0]  # LPS mm from the plane's corner
    near = image.get_fdata()[tuple(np.round(at[:3]).astype(int))]
    shown = scene.plane(scene.fixed)[int(row) - 2 : int(row) + 3, int(column) - 2 : int(column) + 3]
    assert shown.min() - 0.1 <= near <= shown.max() + 0.1
    assert scene.plane(scene.fixed).max() > 0.5


def test_pictures_are_written(result, pair, tmp_path):  # noqa: F811
    main([str(result), "--fixed", pair.files["fixed"], "--moving", pair.files["moving"], "--output_dir", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        "slicer_overlays.png",
        "slicer_samples.png",
        "slicer_warped.png",
    ]


def test_color_table_has_every_label_of_the_map(result):
    table = read_color_table(result / "labels.ctbl")
    labels = np.unique(nib.load(result / "labels.nii.gz").get_fdata()).astype(int)
    assert set(labels) <= set(table)
    assert table[14] == ("Left-Hippocampus", (220, 216, 20, 255))


def test_files_and_pictures_that_the_page_names_exist():
    page = (ROOT / "docs/slicer.md").read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", page) if not target.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []
