"""Figures: drawn for one model and for several, with structures that are missing."""

import math

import matplotlib.image
import numpy as np
import pytest

from scripts.evaluation.plots import draw_figures, merged_scores
from scripts.evaluation.results import ResultStore, read_results
from tests.evaluation.brains import made_up

NAMES = {
    "ladder",
    "dice",
    "oracle",
    "ece",
    "ause",
    "ause_displacement",
    "accuracy_calibration",
    "reliability",
    "sparsification",
}
# Left and right lateral ventricle, 3rd ventricle, a label without a name.
LABELS = (3, 22, 11, 99)


def results(count=3):
    return [made_up(f"f{k}", "m", LABELS, seed=k, ause_label=[0.1, 0.2, math.nan, 0.3]) for k in range(count)]


def test_sides_are_merged():
    merged = merged_scores(results(), "ause_label")
    assert list(merged) == ["Lateral Ventricle", "3rd Ventricle", "label 99"]
    assert np.array_equal(merged["Lateral Ventricle"], [0.1, 0.2] * 3)
    assert len(merged["3rd Ventricle"]) == 0


@pytest.mark.parametrize("models", [["S+LC"], [f"model {k}" for k in range(9)]], ids=["one", "more than colors"])
def test_all_figures(tmp_path, models):
    paths = draw_figures({name: results() for name in models}, tmp_path / "figures")
    assert {path.stem for path in paths} == NAMES
    for path in paths:
        picture = matplotlib.image.imread(path)
        assert picture.shape[0] > 300
        assert picture[..., :3].std() > 0.01, f"{path.stem} is empty"


def test_from_folders_with_a_single_pair(tmp_path):
    ResultStore(tmp_path / "a").add(results(1)[0])
    assert all(path.is_file() for path in draw_figures({"a": read_results(tmp_path / "a")}, tmp_path))


def test_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="got none of b"):
        draw_figures({"b": read_results(tmp_path)}, tmp_path)
