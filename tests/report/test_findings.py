"""Figures measured in a result whose answers are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scripts.core.grid import Grid
from scripts.posterior.result import Mode, StructureVolume
from scripts.report.findings import find, in_view, mode_difference
from scripts.report.tables import diagnostic_rows, key_figures, time_rows, volume_rows


def test_the_peak_lies_where_it_was_put(make_result):
    findings = find(make_result())
    assert findings.most_uncertain.world == pytest.approx((-40, 45, 20), abs=10)
    assert findings.most_uncertain.name.startswith("left ")
    assert findings.regions[0].std >= findings.regions[1].std >= findings.regions[2].std
    inside = make_result().std[make_result().brain]
    assert findings.std_median == pytest.approx(np.median(inside))
    assert findings.fold_place.world == pytest.approx((-40, 45, 20), abs=10)
    assert findings.likely_folds == 0
    assert 0 < findings.uncertain_labels < 1


def test_without_labels_places_are_directions(make_result):
    findings = find(replace(make_result(), labels=None))
    assert findings.most_uncertain.name == "left anterior part of the brain"
    assert "left anterior" in findings.regions[0].name
    assert findings.uncertain_labels is None


def test_the_same_place_whatever_the_orientation(make_result):
    result = make_result()
    flip = np.diag([-1.0, 1.0, 1.0, 1.0])
    flip[0, 3] = result.grid.shape[0] - 1
    grid = Grid(result.grid.shape, result.grid.affine @ flip)
    names = ("std", "brain", "fold_probability")
    turned = replace(result, labels=None, modes=[], grid=grid, **{name: getattr(result, name)[::-1] for name in names})
    here, there = find(replace(result, labels=None, modes=[])), find(turned)
    assert there.most_uncertain.world == pytest.approx(here.most_uncertain.world)
    assert [region.name for region in there.regions] == [region.name for region in here.regions]


def test_the_most_uncertain_place_is_one_that_its_slices_show():
    """A ball of radius 10: slices at 0.8 of the radius cut a third of its area (1 - 0.8² = 0.36), the ends do not."""
    axes = np.indices((25, 25, 25)) - 12
    ball = (axes**2).sum(0) <= 100
    seen = in_view(ball)
    assert seen[12 + 7, 12, 12]
    assert not seen[12 + 9, 12, 12]
    assert not (seen & ~ball).any()
    line = np.zeros((5, 5, 5), bool)
    line[2, 2, :] = True
    assert in_view(line).sum() == 5


def test_modes_apart_by_a_known_distance():
    field = np.zeros((3, 2, 2, 2), np.float32)
    apart = field.copy()
    apart[0, 1, 1, 1], apart[1, 1, 1, 1] = 3.0, 4.0  # 5 mm
    modes = [Mode(0.75, 0, field, field[0]), Mode(0.25, 1, apart, field[0])]
    difference = mode_difference(modes)
    # Of two points at distance d with weights w and 1 - w the spread is d √(w (1 - w)).
    assert difference[1, 1, 1] == pytest.approx(5 * np.sqrt(0.75 * 0.25))
    assert np.count_nonzero(difference) == 1
    assert mode_difference(modes[:1]) is None


def test_no_spread_no_brain_no_labels(make_result):
    result = make_result()
    empty = np.zeros(result.grid.shape, bool)
    findings = find(replace(result, std=np.zeros_like(result.std), brain=empty, labels=None, modes=[]))
    assert findings.std_median is None
    assert findings.most_uncertain is None
    assert findings.regions == ()
    assert findings.mode_place is None


def test_volumes_are_placed_on_the_chart_relative_to_their_mean():
    volumes = [
        StructureVolume(1, "Left-Putamen", 1000.0, 900.0, 1100.0, fixed=1050.0, dice=0.9),
        StructureVolume(2, "Right-Putamen", 2000.0, 1900.0, 2100.0, fixed=9000.0),
        StructureVolume(3, "Gone", 0.0, 0.0, 0.0, fixed=float("nan")),
        StructureVolume(4, "Missing in the fixed labels", 500.0, 450.0, 550.0, fixed=float("nan")),
    ]
    rows, limit = volume_rows(volumes)
    assert limit == 1.0
    assert (rows[0].left, rows[0].right, rows[0].truth) == pytest.approx((45.0, 55.0, 52.5))
    assert not rows[0].outside
    assert rows[1].outside
    assert rows[1].truth == 100.0  # at the edge, not beyond
    assert (rows[2].left, rows[2].right) == (50.0, 50.0)
    assert (rows[3].fixed, rows[3].truth, rows[3].outside) == ("–", None, False)
    assert volume_rows([]) == ([], 0.05)


def test_tables_take_what_is_there(make_result):
    diagnostics = make_result().diagnostics
    rows = {
        name: value
        for name, value, _ in diagnostic_rows(
            {**diagnostics, "refined": 12, "nested": {"a": 1}, "work_shape": [80, 96, 112]}
        )
    }
    assert rows["Seed"] == "7"
    assert rows["Largest weight"] == "8\u202f%"
    assert rows["refined"] == "12"
    assert "nested" not in rows
    assert rows["Voxels inside"] == "80 × 96 × 112"
    assert [row[0] for row in time_rows(diagnostics)] == ["reading", "network", "proposals", "summary"]
    assert sum(row[1] for row in time_rows(diagnostics)) == pytest.approx(100)
    assert diagnostic_rows({}) == []
    assert time_rows({}) == []
    assert time_rows({"seconds": {"total": 8.0, "two_parts": 2.0}})[1] == ("two parts", 25.0, "2.0 s")
    assert [figure.label for figure in key_figures({}, find(make_result()))] == ["Uncertainty"]
