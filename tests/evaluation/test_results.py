"""Results on disk: exact, complete pairs only, never mixed."""

import csv
import json
import math

import pytest

from scripts.evaluation.pair_result import PAIR_SCORES, STRUCTURE_SCORES
from scripts.evaluation.results import (
    CURVES_FILE,
    PAIRS_FILE,
    STRUCTURES_FILE,
    ResultsError,
    ResultStore,
    read_results,
    structure_name,
)
from tests.evaluation.brains import made_up

FILES = (STRUCTURES_FILE, CURVES_FILE, PAIRS_FILE)


def fill(folder, count=3):
    store = ResultStore(folder)
    for k in range(count):
        store.add(made_up(f"fixed{k}", "moving, with comma", seed=k))
    return store


def test_reads_what_was_written(tmp_path):
    store = fill(tmp_path)
    assert read_results(tmp_path) == store.results
    assert len(store) == 3
    assert ("fixed1", "moving, with comma") in store
    assert ("moving, with comma", "fixed1") not in store


def test_files_are_tables_for_people(tmp_path):
    fill(tmp_path)
    rows = list(csv.DictReader((tmp_path / STRUCTURES_FILE).open()))
    assert len(rows) == 6
    assert [row["structure"] for row in rows[:2]] == ["Left-Lateral-Ventricle", "Right-Lateral-Ventricle"]
    assert set(STRUCTURE_SCORES) <= rows[0].keys()
    pairs = list(csv.DictReader((tmp_path / PAIRS_FILE).open()))
    assert len(pairs) == 3
    assert set(PAIR_SCORES) <= pairs[0].keys()
    assert structure_name(999) == "label-999"


def test_missing_numbers_survive(tmp_path):
    ResultStore(tmp_path).add(made_up("a", "b", ece=[math.nan, 0.5]))
    (result,) = read_results(tmp_path)
    assert math.isnan(result.structures["ece"][0])
    assert result.structures["ece"][1] == 0.5


@pytest.mark.parametrize("cut", FILES)
def test_an_unfinished_pair_is_dropped(tmp_path, cut):
    """Whatever was being written when the power failed: two pairs remain, and the third can be added again."""
    third = fill(tmp_path).results[2]
    # Files are written in this order: those after the cut one have nothing of the third pair yet.
    for name in FILES[FILES.index(cut) :]:
        path = tmp_path / name
        lines = path.read_text().splitlines(keepends=True)
        rows = 2 if name == STRUCTURES_FILE else 1
        torn = "".join(lines[-rows:])[: -len(lines[-1]) // 2] if name == cut else ""
        path.write_text("".join(lines[:-rows]) + torn)
    resumed = ResultStore(tmp_path)
    assert [result.fixed for result in resumed.results] == ["fixed0", "fixed1"]
    resumed.add(third)
    complete = tmp_path / "complete"
    fill(complete)
    for name in FILES:
        assert (tmp_path / name).read_text() == (complete / name).read_text()


def test_start_over(tmp_path):
    fill(tmp_path)
    assert len(ResultStore(tmp_path, resume=False)) == 0
    assert read_results(tmp_path) == []


def test_refuses_to_mix_settings(tmp_path):
    store = fill(tmp_path)
    store.check_settings({"temperature": 3.0, "labels": (1, 2)})
    again = ResultStore(tmp_path)
    again.check_settings({"temperature": 3.0, "labels": [1, 2]})
    with pytest.raises(ResultsError, match=r"holds 3 pairs of other settings: temperature was 3.0, now 2.0"):
        again.check_settings({"temperature": 2.0, "labels": [1, 2]})
    fresh = ResultStore(tmp_path, resume=False)
    fresh.check_settings({"temperature": 2.0})
    assert json.loads((tmp_path / "settings.json").read_text()) == {"temperature": 2.0}


def test_other_columns_are_an_error(tmp_path):
    fill(tmp_path)
    path = tmp_path / PAIRS_FILE
    path.write_text(path.read_text().replace("khat", "other", 1))
    with pytest.raises(ResultsError, match="other columns"):
        read_results(tmp_path)
