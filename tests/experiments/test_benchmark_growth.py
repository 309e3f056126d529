from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from PIL import Image

from experiments.benchmark import growth

ROOT = Path(__file__).parents[2]
SMALL = ((8, 8, 8), (16, 16, 16))


@pytest.fixture(scope="module")
def rows() -> list[growth.Row]:
    return [
        *(growth.weighing("voxels", shape, samples=3, rank=2) for shape in SMALL),
        growth.weighing("samples", SMALL[0], samples=4, rank=2),
        growth.weighing("rank", SMALL[0], samples=3, rank=0),
        growth.training(SMALL[1]),
    ]


def test_rows_tell_what_is_varied(rows):
    assert [row.value for row in rows] == [512, 4096, 4, 0, 4096]
    assert all(row.seconds > 0 for row in rows)
    assert all(row.peak_bytes is None or row.peak_bytes >= 0 for row in rows)


def test_table_has_every_row(rows, capsys):
    growth.show(rows)
    printed = capsys.readouterr().out
    assert printed.count("weighing, ") == 4
    assert printed.count("training, voxels") == 1


def test_picture(rows, tmp_path):
    path = growth.draw(rows, tmp_path / "images" / "growth.png")
    assert Image.open(path).size == (1540, 374)


def test_peak_within_the_process():
    """In a process of its own: what other tests have freed before would count as room that is there already."""
    program = """
        import torch
        from experiments.benchmark import measure
        torch.ones(1000).sum()  # what the first call loads
        print(measure.peak_of(lambda: torch.ones(25_000_000).sum()))
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert 90e6 < int(run.stdout) < 130e6
