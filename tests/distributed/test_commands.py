"""The commands of docs/distributed.md: a process that dies ends the run, and what cannot work says so at once."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from scripts.core.checkpoint import save_atomically
from scripts.core.processes import Processes
from scripts.data.samplers import ShardSampler
from scripts.engines import distributed
from scripts.engines.distributed import ProcessError
from scripts.networks import ProposalLayout, ProposalNetwork
from tests.commands.conftest import SMALL, PairOnDisk
from tests.engines.conftest import ROOT, TINY

THREADS = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def documented(run_id: str, settings: dict[str, Any]) -> list[str]:
    """The command of docs/distributed.md that runs this id, with other settings."""
    text = (ROOT / "docs/distributed.md").read_text(encoding="utf-8")
    blocks = [shlex.split(block.replace("\\\n", " ")) for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)]
    (words,) = [words for words in blocks if f"run {run_id} " in " ".join(words)]
    assert words[:2] == ["torchrun", "--nproc_per_node=2"]
    # A port of its own for each test.
    out = [sys.executable, "-m", "torch.distributed.run", "--standalone", *words[1:]]
    for name, value in settings.items():
        if f"--{name}" in out:
            out[out.index(f"--{name}") + 1] = str(value)
        else:
            out += [f"--{name}", str(value)]
    return out


def training_settings(output_dir: Path) -> dict[str, Any]:
    settings = {key: value for key, value in TINY.items() if key != "device"}
    return {**settings, "output_dir": str(output_dir), "num_val_pairs": 2}


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **THREADS, "PYTHONPATH": ""}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)


needs_two = pytest.mark.skipif(torch.cuda.device_count() == 1, reason="two processes need two GPUs, or none")


@needs_two
def test_evaluation_by_two_processes(tmp_path):
    torch.manual_seed(0)
    save_atomically(ProposalNetwork(ProposalLayout()).state_dict(), tmp_path / "model.pt")
    settings = training_settings(tmp_path)
    settings |= {"evaluated_proposals": 4, "evaluated_samples": 2, "split": "train", "num_pairs": 3}
    done = run(documented("evaluation", settings))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("AUSE_label") == 1  # one table, by one process
    with (tmp_path / "evaluation_train/pair_summaries.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 3


@needs_two
def test_inference_of_a_list_by_two_processes(tmp_path, weights):
    files = PairOnDisk(tmp_path, spacing=9.0).files
    rows = [("fixed", "moving", "name"), (files["fixed"], files["moving"], "a"), (files["moving"], files["fixed"], "b")]
    with (tmp_path / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    settings = {key: value for key, value in SMALL.items() if key != "device"}
    settings |= {"pairs": tmp_path / "pairs.csv", "output_dir": tmp_path / "out", "ckpt_path": weights, "num_modes": 0}
    done = run(documented("inference", settings))
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("2 results are in") == 1
    assert all((tmp_path / "out" / name / "warped.nii.gz").is_file() for name in ("a", "b"))
    with (tmp_path / "out/registrations.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["a", "b"]


@needs_two
def test_a_killed_process_ends_the_run_with_an_error(tmp_path):
    environment = {**os.environ, **THREADS, "PYTHONPATH": ""}
    with (tmp_path / "log").open("w") as log:
        words = documented("training", {**training_settings(tmp_path / "out"), "max_epochs": 10_000})
        run = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            _wait_for(lambda: (tmp_path / "out/last.pt").is_file(), run, tmp_path / "log")
            workers = [p for p in psutil.Process(run.pid).children() if p.environ().get("RANK") == "1"]
            assert len(workers) == 1
            workers[0].kill()
            assert run.wait(timeout=120) != 0
        finally:
            for process in psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []:
                process.kill()
            run.kill()
    # What was saved before is whole.
    assert torch.load(tmp_path / "out/last.pt", weights_only=True)["progress"]["iteration"] > 0


def _wait_for(condition, run: subprocess.Popen, log: Path, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(0.2)


def test_without_torchrun_the_error_says_how_to_start(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ProcessError, match=r"RANK, WORLD_SIZE.*torchrun --nproc_per_node=2"):
        distributed.start("cpu")


def test_alone_nothing_is_wrapped(tmp_path):
    network = torch.nn.Linear(2, 2)
    assert distributed.distribute(network, "cpu") is network
    distributed.check_agreement("anything", 1, "")
    writer = distributed.summary_writer(str(tmp_path))
    assert writer is not None
    writer.close()


@pytest.mark.parametrize(("local_rank", "expected"), [("0", "cuda:0"), ("1", "cuda:1")])
def test_each_process_has_the_gpu_of_its_number(monkeypatch, local_rank, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert str(distributed.process_device()) == expected


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ProcessError, match="there are 2: lower --nproc_per_node"):
        distributed.process_device()


def test_too_few_pairs_to_validate_are_refused():
    with pytest.raises(ValueError, match="1 pairs are too few for 2 processes"):
        ShardSampler(range(1), Processes(0, 2), allow_empty=False)
    assert len(ShardSampler(range(1), Processes(1, 2))) == 0
