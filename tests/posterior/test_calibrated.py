"""Intervals from what was seen on other people, by hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from scripts.posterior.calibrated import Calibration, Kind, PointErrors, VolumeErrors, without_side

ERRORS = VolumeErrors(
    {"hippocampus": Kind(bias=0.05, slope=0.2, floor=0.04, rater=0.03)}, Kind(floor=0.1), {50: 0.7, 80: 1.3, 95: 2.0}
)


def test_the_center_is_moved_by_bias_and_by_a_share_of_the_change():
    expected = 1000 * math.exp(0.05 + 0.2 * math.log(1000 / 800))
    assert ERRORS.center("Left-Hippocampus", 1000, 800) == pytest.approx(expected)
    assert ERRORS.center("Right Hippocampus", 1000, 800) == pytest.approx(expected)
    assert ERRORS.center("left_thing", 1000, 800) == 1000
    assert ERRORS.center("Left-Hippocampus", 1000, 0) == pytest.approx(1000 * math.exp(0.05))


def test_intervals_are_quantiles_of_the_error_about_the_center():
    deviation = math.hypot(0.03, 0.04)
    lower, upper = ERRORS.interval("Left-Hippocampus", 1000, 0.03, 80)
    assert (math.log(upper / 1000), math.log(1000 / lower)) == pytest.approx((1.3 * deviation, 1.3 * deviation))


def test_the_registrations_own_interval_leaves_raters_out_but_not_the_samples():
    assert ERRORS.deviation("Left-Hippocampus", 0.03, rater=False) == pytest.approx(0.04)
    wide = VolumeErrors({"a": Kind(floor=0.01, rater=0.5)})
    assert wide.deviation("a", 0.2, rater=False) == pytest.approx(0.2)


def test_plain_data_and_back():
    whole = Calibration({"kind": "curvature"}, ERRORS, PointErrors(1.5, 0.5), {"bias": 0.0}, {"people": 11})
    again = Calibration.of(json.loads(json.dumps(whole.plain())))
    assert again == whole
    assert Calibration.of({}) == Calibration()


def test_it_is_for_the_spread_that_it_was_fitted_with():
    whole = Calibration({"kind": "curvature"}, ERRORS)
    assert whole.for_spread("curvature").volumes is ERRORS
    assert whole.for_spread("network").volumes is None


def test_points_get_more_room():
    samples = np.diag([1.0, 2.0, 3.0])[None]
    found = PointErrors(2.0, 0.5).covariance(samples)
    np.testing.assert_allclose(found[0], np.diag([4.25, 8.25, 12.25]))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("Left-Lateral-Ventricle", "lateral-ventricle"), ("3rd-Ventricle", "3rd-ventricle"), ("label 7", "label-7")],
)
def test_names_without_sides(name, expected):
    assert without_side(name) == expected
