"""Two processes on the CPU (Gloo) do what one does."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from tests.commands.conftest import PairOnDisk
from tests.distributed import program
from tests.engines.conftest import ROOT

ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> str:
    """Three pairs; the second one's moving image is missing."""
    folder = tmp_path_factory.mktemp("pairs")
    files = PairOnDisk(folder, spacing=9.0).files
    rows = [(files["fixed"], files["moving"], "a"), (files["fixed"], "nothing.nii.gz", "b")]
    rows.append((files["moving"], files["fixed"], "c"))
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("fixed", "moving", "name"), *rows])
    return str(folder / "pairs.csv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pairs, weights) -> Path:
    """Where two processes wrote."""
    out = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command += ["-m", "tests.distributed.program", str(out), pairs, weights]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return out


@pytest.fixture(scope="module")
def two(folder) -> list[dict[str, Any]]:
    """What the two processes noted."""
    return [torch.load(folder / f"noted_{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def one(tmp_path_factory) -> dict[str, Any]:
    """The same training by one process with the doubled batch."""
    out = tmp_path_factory.mktemp("one")
    return program.train(program.workflow(out, (), batch_size=2))


def test_gradients_are_those_of_the_doubled_batch(one, two):
    for name, expected in one["gradients"].items():
        assert float(expected.abs().max()) > 0, name
        for noted in two:
            got = noted["training"]["gradients"][name]
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_the_spread_of_log_weights_is_the_same_everywhere(one, two):
    first, second = (torch.stack(noted["training"]["scales"]) for noted in two)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, torch.stack(one["scales"]), rtol=1e-3, atol=0)
    assert len(set(first.tolist())) == program.STEPS


def test_weights_stay_equal_in_all_processes(one, two):
    first, second = (noted["training"]["weights"] for noted in two)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        torch.testing.assert_close(value, one["weights"][name], rtol=1e-3, atol=1e-5)


def test_validation_is_that_of_all_pairs(one, two):
    assert two[0]["training"]["best"] == two[1]["training"]["best"]
    assert two[0]["training"]["best"] == pytest.approx(one["best"], abs=1e-3)


def test_only_the_first_process_writes(folder):
    written = {path.name for path in (folder / "training_0").iterdir()}
    assert {"last.pt", "model.pt", "validation.csv", "validation.png"} <= written
    assert any(name.startswith("events") for name in written)
    assert not (folder / "training_1").exists()
    assert not (folder / "evaluation_1").exists()
    assert not (folder / "registration_1" / "registrations.csv").exists()


def test_evaluation_gives_the_table_of_one_process_exactly(folder, two, tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        program.evaluate(tmp_path)
    finally:
        torch.set_num_threads(threads)
    for name in ("pairs.csv", "curves.jsonl"):
        assert (folder / "evaluation_0" / name).read_text() == (tmp_path / name).read_text()
    assert two[0]["summary"] == two[1]["summary"]
    assert _without_seconds(folder / "evaluation_0/pair_summaries.csv") == _without_seconds(
        tmp_path / "pair_summaries.csv"
    )


def test_a_list_of_pairs_is_registered_as_by_one_process(folder, two, pairs, weights, tmp_path):
    assert program.register(tmp_path, pairs, weights) == ["a", "c"]
    assert two[0]["registered"] == two[1]["registered"] == ["a", "c"]
    table = folder / "registration_0/registrations.csv"
    assert _without_seconds(table)[0][:2] == ["name", "status"]
    assert [row[0] for row in _without_seconds(table)] == ["name", "a", "c", "b"]
    # Pairs 0 and 2 are the first process's.
    for name in ("a", "c"):
        got, expected = (
            np.asarray(nib.load(place / name / "displacement.nii.gz").dataobj)
            for place in (folder / "registration_0", tmp_path)
        )
        assert float(np.abs(expected).max()) > 0
        np.testing.assert_allclose(got, expected, atol=1e-3)


def test_processes_tell_each_other(two):
    for rank, noted in enumerate(two):
        told = noted["talk"]
        assert told["texts"] == ["", "é"]
        assert told["first"] == "of 0"
        assert told["mean"] == [0.5, 1.5]
        assert told["share"] == [[0, 2, 4], [1, 3]][rank]
        assert told["disagreement"] == "the processes disagree about their number: 0, 1; count again"


def _without_seconds(path: Path) -> list[list[str]]:
    rows = list(csv.reader(path.open(newline="")))
    keep = [i for i, name in enumerate(rows[0]) if not name.startswith("seconds")]
    return [[row[i] for i in keep] for row in rows]
