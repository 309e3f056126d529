"""Every command in the README is run, on small data."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from scripts.synthetic.subjects import synthesize_subject
from tests.commands.conftest import SMALL, PairOnDisk
from tests.engines.conftest import ROOT, TINY

README = (ROOT / "README.md").read_text(encoding="utf-8")
# Those that set up an environment, and those that are this test's own caller or run elsewhere in the tests.
ELSEWHERE = {"make demo", "make test", "python -m pip install -r requirements.txt"}


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


def commands(page: str = README) -> list[list[str]]:
    """A page's commands in order, as words, comments left out."""
    lines = [line for block in blocks("bash", page) for line in block.replace("\\\n", " ").splitlines()]
    stripped = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [shlex.split(line) for line in stripped if line and line not in ELSEWHERE]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the files that the README's commands name."""
    folder = tmp_path_factory.mktemp("readme")
    pair = PairOnDisk(folder)
    nib.save(nib.load(pair.files["moving_label"]), folder / "labels_of_moving.nii.gz")
    nib.save(nib.load(pair.files["moving"]), folder / "other.nii.gz")
    (folder / "points.csv").write_text("x,y,z\n1,2,3\n")
    for number in range(20):
        person = folder / f"data/oasis/OASIS_OAS1_{number:04d}_MR1"
        person.mkdir(parents=True)
        subject = synthesize_subject(seed=number, shape=(16, 24, 24), spacing=9.0)
        for name, values in (("norm", subject.image), ("seg35", subject.label.astype(np.int16))):
            nib.save(nib.Nifti1Image(values, subject.affine), person / f"aligned_{name}.nii.gz")
    return folder


def small(words: list[str], folder: Path) -> list[str]:
    """The command on this folder's files, with few and small volumes."""
    run_id = words[words.index("run") + 1]
    trained = ("training", "evaluation", "calibration")
    settings = dict(SMALL) if run_id == "inference" else dict(TINY) if run_id in trained else {}
    settings["bundle_root"] = str(ROOT)
    if any("tiny.yaml" in word for word in words):
        settings |= {"roi_size": "[16,24,24]", "output_dir": str(folder / "output/tiny")}
    if "--dataset_dir" in words:
        settings.pop("synthetic")
        settings["voxel_mm"] = 9.0  # the files' own
    if run_id in ("evaluation", "calibration"):
        settings |= {"evaluated_proposals": 4, "evaluated_samples": 2, "num_pairs": 1}
    if run_id in ("inference", "apply"):
        settings["output_dir"] = str(folder / "output/inference")
    out = [sys.executable if word == "python" else word.replace("/data/", f"{folder}/data/") for word in words]
    out = [re.sub(r"configs/", f"{ROOT}/configs/", word) for word in out]
    for key, value in settings.items():
        if f"--{key}" not in out:
            out += [f"--{key}", str(value)]
    return out


def run_small(found: list[list[str]], folder: Path) -> None:
    """Run commands one after the other; each must succeed."""
    for words in found:
        done = subprocess.run(
            small(words, folder), cwd=folder, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}"


def test_the_commands_of_the_readme_run_in_their_order(place):
    found = commands()
    ids = [words[words.index("run") + 1] for words in found]
    assert ids == ["inference", "apply", "training", "evaluation", "training"]
    run_small(found, place)
    assert (place / "output/inference/moving__to__fixed/volumes.csv").is_file()
    assert (place / "output/inference/points_moved.csv").is_file()
    assert list((place / "output/tiny").glob("evaluation_test/tables.txt"))


def test_the_python_example_runs(capsys):
    for block in blocks("python"):
        code = block.replace("(72, 80, 96)", "(6, 4, 8)")
        assert code != block
        exec(compile(code, "README.md", "exec"), {})


def test_every_file_that_the_readme_links_to_exists():
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if not target.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
