"""The simulated expert, and the table that is made of the experiment's rows."""

from __future__ import annotations

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from experiments import conditioning
from experiments.conditioning import (
    COLUMNS,
    load_model,
    load_pair,
    read_rows,
    replace_table,
    run_pair,
    table,
    write_rows,
)
from experiments.simulated_expert import APART_MM, marks_at_tips, marks_where_worst
from scripts.registration.space import PairSpace
from scripts.synthetic.subjects import synthesize_subject
from tests.evidence.test_outline import GRID, ball

ROOT = Path(__file__).parents[2]


def space() -> PairSpace:
    return PairSpace(GRID, GRID, GRID)


def test_the_worst_places_of_a_ball_that_is_too_far_left_are_its_sides():
    """The moving ball is 8 mm to the right: without any displacement its right and left ends are worst."""
    fixed, moving = ball() == 5, ball((8.0, 0, 0)) == 5
    marks = marks_where_worst(fixed, moving, np.zeros((3, 16, 16, 16)), space())
    assert len(marks.given) == len(marks.held_out) == 5
    points = np.concatenate([marks.given.fixed, marks.held_out.fixed])
    apart = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(10)
    assert apart.min() >= APART_MM[0]
    assert np.abs(marks.given.fixed[0, 0]) > 10
    error = marks.given.distances(np.zeros((3, 16, 16, 16)), space())
    assert error[0] == pytest.approx(8, abs=1.5)  # an outline of 2 mm voxels
    assert error[0] == error.max()
    on_outline = np.abs(np.linalg.norm(marks.given.moving - [8.0, 0, 0], axis=1) - 14)
    assert on_outline.max() < 1.8


def test_tips_of_a_shifted_ball_are_shifted_by_as_much():
    marks = marks_at_tips(ball() == 5, ball((4.0, 2, 0)) == 5, space())
    assert len(marks.given) == len(marks.held_out) == 5
    np.testing.assert_allclose(marks.given.moving - marks.given.fixed, np.tile([4.0, 2, 0], (5, 1)), atol=1.5)


def row(method: str, before: float, after: float) -> dict[str, str]:
    values = dict.fromkeys(COLUMNS, "1") | {"method": method, "weights": "w"}
    for name in ("dice", "dice_all"):
        values |= {f"{name}_before": str(before), f"{name}_after": str(after)}
    return values


def test_the_table_has_means_and_counts(tmp_path):
    rows = [row("worst", 0.5, 0.7), row("worst", 0.7, 0.6), row("outline", 0.5, 0.8)]
    write_rows(rows, tmp_path / "a.csv")
    lines = table(read_rows(tmp_path / "a.csv")).splitlines()
    assert "| 2 | 0.600 → 0.650 |" in lines[2]
    assert lines[2].endswith("| 1 of 2 |")
    assert lines[3].endswith("| 1 of 1 |")
    (tmp_path / "a.md").write_text("x\n<!-- table: begin -->\nold\n<!-- table: end -->\ny\n")
    replace_table(tmp_path / "a.md", "new")
    assert (tmp_path / "a.md").read_text() == "x\n<!-- table: begin -->\nnew\n<!-- table: end -->\ny\n"


def test_the_documented_table_is_that_of_the_documented_rows():
    rows = read_rows(ROOT / "docs/results/conditioning.csv")
    assert table(rows) in (ROOT / "docs/conditioning.md").read_text(encoding="utf-8")


def test_the_experiment_runs_with_the_shipped_config_as_it_is(tmp_path, monkeypatch):
    """Two drawn people of 6 mm in the layout of the dataset."""
    monkeypatch.setattr(conditioning, "SMALLEST", 8)  # voxels of 6 mm
    people = ["a", "b"]
    for seed, name in enumerate(people):
        subject = synthesize_subject(seed=seed, shape=(26, 32, 37), spacing=6.0)
        (tmp_path / name).mkdir()
        for kind, values in (("norm", subject.image), ("seg35", subject.label.astype(np.int16))):
            nib.save(nib.Nifti1Image(values, subject.affine), tmp_path / name / f"aligned_{kind}.nii.gz")
    model = load_model(ROOT / "models/model.pt", 4, 2, **{"preprocessing::pixdim": 6.0})
    item = load_pair(model, tmp_path, *people)
    rows = list(run_pair(item, model["sampler"], structures=1, methods=["worst"]))
    assert [row["method"] for row in rows] == ["worst"]
    assert rows[0]["marks_after_mm"] < rows[0]["marks_before_mm"]
