from __future__ import annotations

import json

import pytest
import torch

from experiments.benchmark import measure
from experiments.benchmark.solve import against_others, difference, flops, make
from experiments.benchmark.train import Step
from scripts.gaussian import Stencil


def test_flops_by_hand():
    # 45 entries, a multiplication and an addition each, 2·3·4 voxels, 5 samples
    assert flops(Stencil("voxel"), (2, 3, 4), 5) == 2 * 45 * 24 * 5


def test_everybody_solves_the_same_system():
    rows = against_others(4, with_cholespy=True, with_scipy=True)
    assert {row["solver"].split(",")[0].split()[0] for row in rows} == {"numba", "torch", "SciPy", "cholespy"}
    assert all(row["difference"] < 1e-5 for row in rows)


def test_difference_is_relative_to_the_largest_number():
    assert difference(torch.tensor([1.0, 11.0]), torch.tensor([1.0, 10.0])) == pytest.approx(0.1)


def test_matrices_repeat():
    first, second = (make(Stencil("voxel"), (2, 2, 2), 3) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_training_step_has_all_objectives():
    step = Step((16, 16, 16), rank=2)
    for name in step.objectives:
        parts = step.step(name)
        assert set(parts) == {"network", "objective", "backward", "optimizer"}
        assert all(seconds >= 0 for seconds in parts.values())


def test_result_is_json_with_the_machine(tmp_path):
    path = measure.save("x", {"bars": [measure.verdict("a", 2.0, 1.0)]}, tmp_path)
    content = json.loads(path.read_text())
    assert content["bars"][0]["reached"] is True
    assert content["machine"]["torch"] == torch.__version__


def test_verdicts_in_both_directions():
    assert measure.verdict("fast", 3, 2)["reached"]
    assert not measure.verdict("slow", 3, 2, at_least=False)["reached"]


def test_peak_memory_sees_what_the_marked_part_takes():
    before, peak = measure.peak_memory("import numpy as np\nmark()\nx = np.ones(25_000_000)\n")
    assert 190e6 < peak - before < 260e6


def test_failing_program_is_reported():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        measure.peak_memory("mark()\n1 / 0\n")
