from __future__ import annotations

import subprocess
import sys

from PIL import Image

from experiments.training_figure import read_columns
from tests.engines.conftest import ROOT

CSV = "iteration,epoch,dice,dice_unregistered,variance,ess\n10,1,0.5,0.4,0.1,0.2\n20,2,0.6,0.4,0.2,0.3\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.training_figure", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_picture_of_two_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "validation.csv").write_text(CSV)
    done = run(str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "figures" / "f.png"))
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "figures" / "f.png").size[0] > 500


def test_missing_run_is_named(tmp_path):
    done = run(str(tmp_path / "nothing"))
    assert done.returncode != 0
    assert "nothing/validation.csv does not exist" in done.stderr


def test_columns_with_gaps_are_left_out(tmp_path):
    path = tmp_path / "validation.csv"
    path.write_text("iteration,dice,late\n1,0.5,\n2,0.6,3\n")
    assert read_columns(path) == {"iteration": [1.0, 2.0], "dice": [0.5, 0.6]}
