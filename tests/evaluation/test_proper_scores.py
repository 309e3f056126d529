"""Brier and log scores against scikit-learn and by hand; volumes in their intervals by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import brier_score_loss, log_loss

from scripts.evaluation.calibration import brier_score, log_score
from scripts.evaluation.pair_report import score_classes, score_volumes
from scripts.posterior.label_samples import LabelSamples


def test_two_classes_are_scikit_learns():
    rng = np.random.default_rng(0)
    p, y = rng.random(500), rng.integers(0, 2, 500)
    assert float(brier_score(torch.from_numpy(p), torch.from_numpy(y))) == pytest.approx(brier_score_loss(y, p))
    huge = 1e12  # of so many samples nothing is to be smoothed
    assert float(log_score(torch.from_numpy(p), torch.from_numpy(y), huge)) == pytest.approx(log_loss(y, p))


def test_what_was_never_seen_is_not_impossible():
    assert float(log_score(torch.zeros(1), torch.ones(1), 9)) == pytest.approx(-math.log(0.05))


def test_honest_probabilities_have_the_best_scores():
    truth = torch.tensor([1.0] * 3 + [0.0] * 7)
    values = [torch.full((10,), p) for p in (0.1, 0.2, 0.3, 0.4, 0.6)]
    for score in (brier_score, lambda p, y: log_score(p, y, 1e9)):
        assert min(range(5), key=lambda i: float(score(values[i], truth))) == 2


@pytest.fixture
def samples():
    truth = torch.zeros(10, 10, 10, dtype=torch.int32)
    truth[2:6, 2:8, 2:8] = 1
    truth[6:9, 2:8, 2:8] = 2
    made = LabelSamples([1, 2, 7], voxel_volume=2.0, truth=truth)
    for shift in (-1, 0, 0, 1):
        made.add(truth.roll(shift, 0))
    return made, truth


def test_all_classes_together(samples):
    made, truth = samples
    found = score_classes(made, truth, 20)  # the whole volume is ribbon
    maps = torch.stack([truth.roll(shift, 0) for shift in (-1, 0, 0, 1)])
    p = torch.stack([(maps == value).double().mean(0) for value in (0, 1, 2)])
    y = torch.stack([truth == value for value in (0, 1, 2)]).double()
    near = torch.ones_like(truth, dtype=torch.bool)
    assert found["brier_classes"] == pytest.approx(float((p - y).square().sum(0)[near].mean()))
    given = ((p * y).sum(0) * 4 + 0.5) / 5
    assert found["log_score_classes"] == pytest.approx(float(-given.log().mean()))


def test_volumes_and_their_intervals(samples):
    made, truth = samples
    columns = score_volumes(made, truth)
    assert columns["volume_true"][:2] == [2.0 * 144, 2.0 * 108]
    assert columns["inside_95"][0] == columns["inside_50"][0] == 1.0
    assert all(math.isnan(columns[name][2]) for name in columns)
    assert columns["width_95"][0] == 0.0
