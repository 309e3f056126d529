"""The commands of docs/distributed.md: a process that dies ends the run, and what cannot work says so at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from scripts.data.samplers import ShardSampler
from scripts.engines import distributed
from scripts.engines.errors import ProcessError
from tests.engines.conftest import ROOT, TINY

THREADS = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def command(output_dir: Path) -> list[str]:
    """The documented training command on two processes, at test size and without end."""
    settings = {key: value for key, value in TINY.items() if key != "device"}
    settings |= {"output_dir": str(output_dir), "max_epochs": 10_000, "num_val_pairs": 2}
    configs = "['configs/train.yaml','configs/multi_gpu_train.yaml']"
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    words += ["-m", "monai.bundle", "run", "training", "--config_file", configs]
    return words + [part for name, value in settings.items() for part in (f"--{name}", str(value))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="takes the GPUs, of which there may be fewer than two")
def test_a_killed_process_ends_the_run_with_an_error(tmp_path):
    environment = {**os.environ, **THREADS, "PYTHONPATH": ""}
    with (tmp_path / "log").open("w") as log:
        run = subprocess.Popen(command(tmp_path / "out"), cwd=ROOT, env=environment, stdout=log, stderr=log)
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
    assert not list((tmp_path / "out").glob(".*.tmp"))


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
        ShardSampler(range(1), 0, 2, allow_empty=False)
    assert len(ShardSampler(range(1), 1, 2)) == 0
