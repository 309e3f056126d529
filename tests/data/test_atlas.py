"""One image becomes a pair with an atlas."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from scripts.core.errors import DataError
from scripts.core.seg35 import SEG35
from scripts.data import atlas
from scripts.data.atlas import AtlasPaird, example_atlas
from scripts.data.pair_input import stack_pair


def test_example_atlas_is_a_labeled_brain_and_is_written_once(tmp_path):
    image, label = example_atlas(tmp_path / "atlas")
    values = nib.load(label).get_fdata()
    assert set(np.unique(values).astype(int)) <= {0, *SEG35}
    assert len(np.unique(values)) > 30
    assert nib.load(image).get_fdata()[values > 0].mean() > 0.2
    written = Path(image).stat().st_mtime_ns
    assert example_atlas(tmp_path / "atlas") == (image, label)
    assert Path(image).stat().st_mtime_ns == written


def test_an_image_is_fixed_and_the_atlas_moves():
    item = AtlasPaird("a.nii.gz", "l.nii.gz")({"image": "scan.nii.gz", "seed": 3})
    assert item["fixed"] == "scan.nii.gz"
    assert (item["moving"], item["moving_label"], item["seed"]) == ("a.nii.gz", "l.nii.gz", 3)


def test_pairs_stay_as_they_are():
    pair = {"fixed": "f.nii.gz", "moving": "m.nii.gz"}
    assert AtlasPaird("a.nii.gz", "l.nii.gz")(pair) == pair


@pytest.mark.parametrize(("image", "label"), [("a.nii.gz", ""), (None, "l.nii.gz")])
def test_half_an_atlas_is_refused(image, label):
    with pytest.raises(DataError, match="both atlas and atlas_labels"):
        AtlasPaird(image, label)({"image": "scan.nii.gz"})


def test_example_goes_elsewhere_when_its_folder_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(atlas.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "file").write_text("in the way")
    image, _ = AtlasPaird(example_dir=str(tmp_path / "file" / "atlas")).files()
    assert Path(image).is_relative_to(tmp_path / "tmp")


def test_stack_has_the_moving_image_first():
    moving, fixed = (MetaTensor(torch.full((1, 2, 3, 4), value)) for value in (1.0, 2.0))
    image = stack_pair({"moving": moving, "fixed": fixed})["image"]
    assert image.shape == (2, 2, 3, 4)
    assert image[:, 0, 0, 0].tolist() == [1.0, 2.0]
