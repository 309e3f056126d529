from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bundle import comparison

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("variant", [*comparison.VARIANTS, *comparison.SENSITIVITY, "vxm"])
def test_every_variant_has_its_config(variant):
    assert (ROOT / f"configs/variants/{variant}.yaml").is_file()


def test_the_common_start_and_the_split_are_in_the_bundle():
    preset = yaml.safe_load((ROOT / "configs/presets/comparison.yaml").read_text())
    for key in ("start_from", "split_file"):
        assert (ROOT / preset[key].split("'")[1].lstrip("/")).is_file()
    assert preset["epoch_length"] * preset["max_epochs"] == preset["decay_steps"]


def test_work_is_claimed_once(tmp_path):
    with comparison.claimed(tmp_path / "a.lock") as first, comparison.claimed(tmp_path / "a.lock") as second:
        assert first
        assert not second
    with comparison.claimed(tmp_path / "a.lock") as again:
        assert again


def test_the_lock_of_a_process_that_is_gone_counts_for_nothing(tmp_path):
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    lock = tmp_path / "a.lock"
    lock.write_text(gone.stdout.strip())
    with comparison.claimed(lock) as mine:
        assert mine
        assert lock.read_text() == str(os.getpid())


def test_each_variant_is_trained_then_evaluated_and_filed(tmp_path, monkeypatch):
    commands: list[list[str]] = []
    monkeypatch.setattr(comparison, "run", lambda command: commands.append(list(command)))
    comparison.main(["--dataset_dir", "/a,/b", "--work_dir", str(tmp_path), "--variants", "v_d,vxm_3"])
    tasks = [command[4] if "monai.bundle" in command else command[3] for command in commands]
    assert tasks == ["training", "evaluation", "add", "training", "training"]
    evaluation, ensemble = commands[1], commands[-1]
    assert evaluation[evaluation.index("--dataset_dir") + 1] == "/a"
    assert evaluation[evaluation.index("--split") + 1] == "test"
    assert ensemble[ensemble.index("--seed") + 1] == "3"
    assert ensemble[ensemble.index("--start_from") + 1] == "None"
