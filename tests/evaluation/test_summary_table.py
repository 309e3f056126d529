"""Summaries whose numbers can be worked out by hand, and the tables as text."""

import json
import math

import pytest

from scripts.evaluation.results import ResultsError, ResultStore, read_results
from scripts.evaluation.summary_table import format_tables, summarize_results, to_json
from tests.evaluation.brains import made_up


def results():
    """Four pairs and two structures: entropy falls with Dice in the first, and rises in the second."""
    dice = [[0.5, 0.9], [0.6, 0.8], [0.7, 0.7], [0.8, 0.6]]
    entropy = [[0.4, 0.4], [0.3, 0.3], [0.2, 0.2], [0.1, 0.1]]
    return [
        made_up(f"f{k}", "m", dice_mean=dice[k], label_entropy=entropy[k], ece=[0.1, math.nan], seed=k)
        for k in range(4)
    ]


def test_numbers_by_hand():
    summary = summarize_results(results())
    assert summary["num_pairs"] == 4
    dice = summary["structures"]["dice_mean"]
    # Structures 0.65 and 0.75, every pair 0.7.
    assert dice["mean"] == pytest.approx(0.7)
    assert dice["std_structures"] == pytest.approx(0.1 / math.sqrt(2))
    assert dice["std_pairs"] == pytest.approx(0)
    assert summary["spearman"]["label_entropy"] == pytest.approx({"mean": 0.0, "std_structures": math.sqrt(2)})
    left, right = summary["per_structure"].values()
    assert (left["spearman_label_entropy"], right["spearman_label_entropy"]) == pytest.approx((-1, 1))
    assert right["dice_mean"] == pytest.approx(0.75)
    assert list(summary["per_structure"]) == ["Left-Lateral-Ventricle", "Right-Lateral-Ventricle"]


def test_missing_structures_are_left_out():
    summary = summarize_results(results())
    assert summary["structures"]["ece"]["mean"] == pytest.approx(0.1)
    assert math.isnan(summary["structures"]["ece"]["std_structures"])
    assert math.isnan(summary["per_structure"]["Right-Lateral-Ventricle"]["ece"])
    assert json.loads(to_json(summary))["per_structure"]["Right-Lateral-Ventricle"]["ece"] is None


def test_seconds_are_added_up():
    summary = summarize_results(results())["pairs"]
    parts = [summary[f"seconds_{part}"]["mean"] for part in ("network", "proposals", "evaluation")]
    assert summary["seconds"]["mean"] == pytest.approx(sum(parts))


def test_tables_have_the_papers_columns():
    text = format_tables({"V+D": summarize_results(results()), "S+LC 10L": summarize_results(results()[:1])})
    accuracy, calibration, displacement, *_, sampling = text.split("\n\n")
    header, rule, first, second = accuracy.splitlines()[1:]
    assert header.split("  ")[0] == "Model"
    assert [c for c in ("μ (DSC)", "mean (DSC)", "Oracle (DSC)", "μ fold %", "Oracle fold %") if c not in header] == []
    assert len(rule) == max(len(header), len(rule))
    assert "0.700 (0.00)" in first
    assert second.startswith("S+LC 10L")
    assert "AUSE_label" in calibration
    assert "0.1000 (-)" in calibration
    assert "AUSE_disp" in displacement
    assert "k-hat" in sampling
    # A single pair has neither a deviation over pairs nor a rank correlation.
    assert "0.700 (-)" in second
    assert calibration.splitlines()[-1].endswith(" -")


def test_folders_side_by_side(tmp_path):
    for name, count in (("a", 4), ("b", 3)):
        store = ResultStore(tmp_path / name)
        for result in results()[:count]:
            store.add(result)
    summaries = [summarize_results(read_results(tmp_path / name)) for name in ("a", "b")]
    assert to_json(summaries[0]) == to_json(summarize_results(results()))
    assert summaries[1]["num_pairs"] == 3
    with pytest.raises(ResultsError, match="there are no pairs"):
        summarize_results(read_results(tmp_path / "c"))


def test_refuses_different_labels():
    with pytest.raises(ResultsError, match="different labels"):
        summarize_results([made_up("a", "b"), made_up("b", "a", labels=(1, 2))])
