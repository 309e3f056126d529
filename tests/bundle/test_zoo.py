"""What MONAI's own functions make of the bundle."""

from __future__ import annotations

import json

import pytest
import torch
from monai.bundle import init_bundle, load
from monai.bundle.utils import DEFAULT_INFERENCE

from bundle import pack
from scripts.core.checkpoint import network_state
from scripts.networks import ProposalNetwork


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    return pack.unpack(pack.pack(folder / "bundle.zip"), folder)


def test_load_gives_the_trained_network(unpacked):
    network = load(pack.NAME, bundle_dir=str(unpacked.parent), workflow_type="inference")
    assert isinstance(network, ProposalNetwork)
    expected = network_state(torch.load(pack.ROOT / "models/model.pt", weights_only=True))
    state = network.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name].cpu(), value) for name, value in expected.items())


def test_load_gives_the_trained_network_wherever_one_is(unpacked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network = load(pack.NAME, bundle_dir=str(unpacked.parent), workflow_type="inference")
    expected = torch.load(pack.ROOT / "models/model.pt", weights_only=True)["mean_head.weight"]
    assert torch.equal(network.mean_head.weight.cpu(), expected)


def test_load_gives_the_weights_alone(unpacked):
    # MONAI looks for a training config in JSON, finds YAML, and gives what it has.
    with pytest.warns(UserWarning, match="return state dict instead"):
        state = load(pack.NAME, bundle_dir=str(unpacked.parent))
    assert "mean_head.weight" in state


def test_every_file_of_a_new_bundle_is_in_ours(tmp_path):
    init_bundle(str(tmp_path / "new"), metadata_str=json.loads((pack.ROOT / "configs/metadata.json").read_text()))
    made = [path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*")]
    assert {"configs/metadata.json", "configs/inference.json", "docs/README.md", "LICENSE", "models"} <= set(made)
    assert [name for name in made if not (pack.ROOT / name).exists()] == []


def test_inference_has_the_parts_that_new_bundles_have():
    ours = json.loads((pack.ROOT / "configs/inference.json").read_text())
    absent = {"datalist", "evaluating", "network"}
    assert set(DEFAULT_INFERENCE) - set(ours) <= absent
    assert {"network_def", "dataloader", "inferer", "evaluator", "postprocessing", "handlers"} <= set(ours)
