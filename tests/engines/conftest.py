from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from monai.bundle import ConfigWorkflow

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "synthetic": {"num_subjects": 14, "seed": 0, "shape": [16, 24, 24], "spacing": 9.0},
    "ncc_window": 3,
    "epoch_length": 2,
    "max_epochs": 1,
    "val_interval": 1,
    "num_val_pairs": 1,
    "num_proposals": 4,
    "train::preprocessing::max_shared": 1,
    "bundle_root": str(ROOT),
    "device": "$torch.device('cpu')",
}


def make_workflow(output_dir: Path, files: tuple[str, ...] = (), **overrides: Any) -> ConfigWorkflow:
    """The shipped training config, shrunk to volumes of 16x24x24 and a step or two."""
    configs = [str(ROOT / "configs" / name) for name in ("train.yaml", *files)]
    return ConfigWorkflow(
        config_file=configs,
        meta_file=str(ROOT / "configs/metadata.json"),
        logging_file=False,
        workflow_type="train",
        **{**TINY, "output_dir": str(output_dir), **overrides},
    )


def train(output_dir: Path, files: tuple[str, ...] = (), **overrides: Any) -> ConfigWorkflow:
    """Run it."""
    workflow = make_workflow(output_dir, files, **overrides)
    workflow.initialize()
    workflow.parser.get_parsed_content("train::trainer").run()
    return workflow


@pytest.fixture(scope="session")
def variants() -> list[str]:
    return sorted(str(path.relative_to(ROOT / "configs")) for path in (ROOT / "configs/variants").glob("*.yaml"))
