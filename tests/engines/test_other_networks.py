"""The example configs: networks of MONAI, trained and evaluated with the handlers of this bundle."""

from __future__ import annotations

import csv

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigWorkflow

from tests.engines.conftest import ROOT

TINY = {
    "synthetic": {"num_subjects": 14, "seed": 0, "shape": [32, 32, 32], "spacing": 6.0},
    "roi_size": None,
    "epoch_length": 2,
    "max_epochs": 1,
    "num_pairs": 2,
    "bundle_root": str(ROOT),
    "device": "$torch.device('cpu')",
}


@pytest.mark.parametrize("files", [("localnet",), ("localnet", "voxelmorph")], ids=lambda files: files[-1])
def test_training_then_evaluation(files, tmp_path):
    for command in ("training", "evaluation"):
        workflow = ConfigWorkflow(
            config_file=[str(ROOT / f"configs/examples/{name}.yaml") for name in files],
            meta_file=str(ROOT / "configs/metadata.json"),
            logging_file=False,
            workflow_type=None,
            run_id=command,
            output_dir=str(tmp_path),
            **TINY,
        )
        workflow.initialize()
        workflow.run()
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    used = workflow.parser.get_parsed_content("network_def").state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in used.items())
    metrics = workflow.parser.get_parsed_content("evaluator").state.metrics
    assert set(metrics) == {"dice", "dice_unregistered", "dice_most_probable", "dice_single", "std_mm"}
    assert 0 < metrics["dice"] < 1
    assert metrics["std_mm"] > 0
    rows = list(csv.DictReader((tmp_path / "dice.csv").open()))
    assert np.mean([float(row["dice"]) for row in rows]) == pytest.approx(metrics["dice"])
    for row in rows:
        images = [nib.load(path) for path in tmp_path.glob(f"{row['fixed']}__{row['moving']}_*.nii.gz")]
        assert len(images) == 4
        assert {image.shape for image in images} == {(32, 32, 32)}
        np.testing.assert_allclose(images[0].header.get_zooms(), 6)
