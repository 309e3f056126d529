"""The checklist passes, and each of its checks would notice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from bundle import verify


@pytest.mark.parametrize("name", verify.CHECKS)
def test_the_bundle_passes(name, capsys):
    status = verify.main([name])
    assert status == 0, capsys.readouterr().out


@pytest.fixture
def copy(tmp_path, monkeypatch) -> Path:
    """A copy of the bundle to spoil."""
    for name in ("LICENSE", "requirements.txt"):
        shutil.copy(verify.ROOT / name, tmp_path)
    for name in ("configs", "models"):
        shutil.copytree(verify.ROOT / name, tmp_path / name)
    (tmp_path / "bundle").mkdir()
    shutil.copy(verify.ROOT / "bundle/metadata_schema.json", tmp_path / "bundle")
    (tmp_path / "scripts").mkdir()
    monkeypatch.setattr(verify, "ROOT", tmp_path)
    return tmp_path


def fails(name: str, capsys) -> str:
    capsys.readouterr()
    assert verify.main([name]) == 1
    return capsys.readouterr().out


def spoil_metadata(copy: Path, **changes) -> None:
    path = copy / "configs/metadata.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_missing_file(copy, capsys):
    (copy / "LICENSE").unlink()
    assert "missing: LICENSE" in fails("files", capsys)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "9.9.9"}, "9.9.9 is not in the changelog"),
        ({"numpy_version": "1.0.0"}, "not the versions of requirements.txt: numpy"),
        ({"authors": 3}, "3 is not of type 'string'"),
        ({"network_data_format": {"inputs": {}}}, "required property"),
    ],
)
def test_metadata_that_is_wrong(copy, capsys, changes, words):
    spoil_metadata(copy, **changes)
    assert words in fails("metadata", capsys)


def test_another_number_of_channels(copy, capsys):
    metadata = json.loads((copy / "configs/metadata.json").read_text())
    metadata["network_data_format"]["outputs"]["pred"]["num_channels"] = 7
    spoil_metadata(copy, **metadata)
    assert "FAILED" in fails("input_and_output", capsys)


def test_weights_that_are_not_finite(copy, capsys):
    path = copy / "models/model.pt"
    content = torch.load(path, weights_only=True)
    content["mean_head.weight"] *= float("nan")
    torch.save(content, path)
    assert "not finite in mean_head.weight" in fails("weights", capsys)


def test_a_target_that_does_not_exist(copy, capsys):
    (copy / "configs/variants/typo.yaml").write_text("layout: {_target_: scripts.networks.ProposalLayuot}\n")
    assert "there is no scripts.networks.ProposalLayuot" in fails("configs", capsys)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import pickle\npickle.load(open('x'))", "line 2: pickle.load"),
        ("import torch\ntorch.load('x')", "without weights_only=True"),
        ("eval('1')", "line 1: eval"),
    ],
)
def test_code_that_runs_files(copy, capsys, code, words):
    (copy / "scripts/bad.py").write_text(code)
    assert words in fails("code", capsys)
