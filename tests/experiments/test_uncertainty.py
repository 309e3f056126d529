"""The fits of experiments/uncertainty on made-up errors with known answers, and its disturbances."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from experiments.results.spread_tables import coverage_table, spread_table
from experiments.uncertainty import failures, fit, people, points
from experiments.uncertainty.fit import Residual
from scripts.evaluation.landmark_scores import Errors
from scripts.posterior.failure import SIGNS, probability
from tests.evaluation.brains import made_up


def test_nobody_is_tuned_on_who_is_tested_on():
    split = json.loads(people.SPLIT.read_text())
    used = {name for pair in people.pairs(4) + people.pairs(1) for name in pair}
    assert used <= set(split["train"])
    assert not used & (set(split["test"]) | set(split["val"]))
    second = {pair[1] for pair in split["same_person"]}
    assert not used & second
    assert all(fixed != moving for fixed, moving in people.pairs(3))


def made(seed=0, people=40, bias=0.04, slope=0.3, floor=0.06):
    """Volumes whose errors follow the model."""
    rng = np.random.default_rng(seed)
    rows = []
    for fixed in range(people):
        for moving in range(4):
            change, std = rng.normal(0, 0.3), 0.02
            error = bias + slope * change + math.hypot(std, floor) * rng.normal()
            rows.append(
                Residual(
                    str(fixed),
                    f"m{moving}",
                    "Left-Putamen",
                    1000.0,
                    std,
                    1000 * math.exp(error),
                    1000 / math.exp(change),
                )
            )
    return rows


class TestVolumes:
    def test_bias_slope_and_floor_are_found(self):
        kind = fit.fit(made(), {"putamen": 0.03}).kinds["putamen"]
        assert kind.bias == pytest.approx(0.04, abs=0.02)
        assert kind.slope == pytest.approx(0.3, abs=0.06)
        assert kind.floor == pytest.approx(0.06, abs=0.012)
        assert kind.rater == 0.03

    def test_people_who_were_left_out_are_inside_as_often_as_promised(self):
        z = np.array([value for _, value in fit.held_out(made(1), {})])
        assert np.mean(z < 1.96) == pytest.approx(0.95, abs=0.04)

    def test_their_coverage_by_hand(self):
        rows = made(2)
        errors = fit.fit(rows, {})
        inside = np.mean([abs(fit.standard_error(errors, row)) <= errors.quantiles[80] for row in rows])
        assert fit.coverage(errors, rows)["in 80 %"] == pytest.approx(inside)


def test_the_scale_of_points_holds_95_percent():
    rng = np.random.default_rng(0)
    covariance = np.tile(np.diag([0.2, 0.3, 0.4]), (500, 1, 1))
    after = 2.5 * rng.normal(size=(500, 3)) * np.sqrt([0.2, 0.3, 0.4])
    found = {("a", "b"): (Errors(after, after, covariance), np.zeros(500))}
    assert points.fit(found).scale == pytest.approx(2.5, rel=0.06)


class TestFailures:
    @pytest.fixture
    def item(self):
        rng = np.random.default_rng(0)
        image = torch.from_numpy(rng.random((1, 24, 24, 24))).float()
        image[:, :4] = 0
        affine = torch.diag(torch.tensor([2.0, 2.0, 2.0, 1.0], dtype=torch.float64))
        volume = MetaTensor(image, affine=affine)
        return {"moving": volume, "moving_file": volume, "moving_label": MetaTensor((image > 0.5).int(), affine=affine)}

    @pytest.mark.parametrize("name", list(failures.DISTURBED))
    def test_each_disturbance_is_the_same_again_and_moves_image_file_and_labels_together(self, item, name):
        one, two = (failures.DISTURBED[name](dict(item), np.random.default_rng(5)) for _ in range(2))
        assert torch.equal(one["moving"].as_tensor(), two["moving"].as_tensor())
        for key in ("moving_file", "moving_label"):
            np.testing.assert_array_equal(one["moving"].affine, one[key].affine)
        changed = not torch.equal(one["moving"].as_tensor(), item["moving"].as_tensor())
        moved = not np.array_equal(one["moving"].affine, item["moving"].affine)
        assert (changed or moved) == (name not in ("as_it_is", "others_labels"))

    def test_a_fit_tells_made_up_failures_apart(self):
        rng = np.random.default_rng(0)
        values = rng.normal(size=(200, len(SIGNS)))
        failed = np.arange(200) % 2 == 0
        values[failed, 0] -= 6  # the first sign is bad when it is low
        fitted = failures._fit(values, failed, ~failed, 0.3)
        found = [probability(dict(zip(SIGNS, row, strict=True)), fitted) for row in values]
        assert min(np.array(found)[failed]) > max(np.array(found)[~failed])


def test_tables_of_spreads_by_hand():
    results = [made_up("a", "b", brier=[0.1, 0.3]), made_up("b", "a", brier=[0.2, 0.2])]
    table = spread_table({"curvature": results})
    assert "curvature and local weights (default)" in table
    assert "| 0.2000 |" in table
    volumes = {"inside_95": [1.0, 0.0], "volume": [110.0, 80.0], "volume_true": [100.0, 100.0]}
    text = coverage_table([made_up("a", "b", **volumes)])
    assert "| all 31 structures | 2 |" in text
    assert "| 50 % |" in text
    assert "| 15 % |" in text  # the median error of 10 and 20 %
    assert spread_table({}).startswith("Not measured")
