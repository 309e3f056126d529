"""A small pair of brains as files, a network for 6 mm, and the shipped inference config shrunk to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser

from scripts.inference.model import Model
from scripts.inference.objectives import SIRObjective
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.parts import Transform
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from scripts.synthetic.subjects import synthesize_subject

ROOT = Path(__file__).parents[2]
SPACING = 6.0
SMALL: dict[str, Any] = {
    "bundle_root": str(ROOT),
    "device": "$torch.device('cpu')",
    "num_proposals": 12,
    "num_samples": 6,
    "align": "none",
    "spread": "network",
    "report": False,
}


class PairOnDisk:
    """Two synthetic brains with labels, as NIfTI files."""

    def __init__(self, folder: Path, spacing: float = SPACING) -> None:
        self.folder = folder
        shape = tuple(int(size / spacing) for size in (160, 192, 224))
        self.subjects = [synthesize_subject(seed=seed, shape=shape, spacing=spacing) for seed in (3, 4)]
        self.files: dict[str, str] = {}
        for role, subject in zip(("fixed", "moving"), self.subjects, strict=True):
            self.write(role, subject.image, subject.affine)
            self.write(f"{role}_label", subject.label.astype(np.int16), subject.affine)

    def write(self, key: str, values: np.ndarray, affine: np.ndarray, name: str | None = None) -> str:
        path = self.folder / f"{name or key}.nii.gz"
        nib.save(nib.Nifti1Image(values, affine), path)
        self.files[key] = str(path)
        return str(path)


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> PairOnDisk:
    return PairOnDisk(tmp_path_factory.mktemp("pair é x"))


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> str:
    """Weights of a network whose mean moves things by a voxel or so."""
    path = tmp_path_factory.mktemp("weights") / "model.pt"
    small_model().save(path)
    return str(path)


def small_model(transform: Transform | None = None, **options: Any) -> Model:
    """A model of 6 mm; options are those of its layout."""
    torch.manual_seed(1)
    layout = ProposalLayout(dominance=0.95, **options)
    network = ProposalNetwork(layout, mean_gain=0.4)
    network.weight_scale.value.fill_(1e5)
    target = Target(NCCLikelihood(3), DiffusionPrior(1.0), DiffusionPrior(2.5), transform)
    return Model(network, SIRObjective(target, layout), SPACING)


def evaluator(output_dir: Path, weights: str, **overrides: Any) -> Any:
    """The `evaluator` of configs/inference.json with these settings."""
    parser = ConfigParser()
    parser.read_config(str(ROOT / "configs/inference.json"))
    parser.update({**SMALL, "ckpt_path": weights, "output_dir": str(output_dir), **overrides})
    return parser.get_parsed_content("evaluator")
