"""Mutual information against values known beforehand."""

import numpy as np
import pytest

from scripts.alignment.similarity import MutualInformation
from scripts.alignment.working import WorkingImage
from tests.alignment.brains import disturbance


def image(values: np.ndarray, known: np.ndarray | None = None) -> WorkingImage:
    brain = np.ones(values.shape, dtype=bool)
    return WorkingImage(
        values.astype(np.float32), brain, np.zeros(3), 1.0, brain if known is None else known, np.zeros(3)
    )


def halves(low: float = 0.0, high: float = 0.9) -> np.ndarray:
    """A step along the last axis; without a slope between voxels far from it."""
    values = np.full((60, 6, 6), low)
    values[30:] = high
    return values


def test_identical_halves_have_one_bit():
    found = MutualInformation(image(halves()), image(halves()))(np.eye(4))
    # log 2, but for the interpolated voxels at the step and at the edge, which tell even more.
    assert found == pytest.approx(np.log(2), rel=0.25)
    assert found > np.log(2)


def test_contrast_does_not_matter():
    same = MutualInformation(image(halves()), image(halves()))(np.eye(4))
    assert MutualInformation(image(halves()), image(halves(0.9, 0.3)))(np.eye(4)) > 0.7 * same


def test_out_of_sight_is_worth_nothing():
    score = MutualInformation(image(halves()), image(halves()))
    assert score(disturbance((0, 500, 0), (0, 0, 0))) == pytest.approx(0.0, abs=1e-12)
    assert score(disturbance((15, 0, 0), (0, 0, 0))) < score(np.eye(4))


def test_what_is_not_known_is_left_out():
    rng = np.random.default_rng(0)
    values = rng.random((20, 20, 20))
    garbled = values.copy()
    garbled[12:] = rng.random((8, 20, 20))
    known = np.arange(20)[:, None, None] * np.ones((20, 20, 20)) < 11
    clean = MutualInformation(image(values), image(values))(np.eye(4))
    assert MutualInformation(image(values), image(garbled))(np.eye(4)) < 0.6 * clean
    assert MutualInformation(image(values), image(garbled, known))(np.eye(4)) == pytest.approx(clean, rel=0.1)
    # Most of the fixed image would be looked up where nothing is known.
    assert MutualInformation(image(values), image(garbled, known))(disturbance((10, 0, 0), (0, 0, 0))) == 0.0
