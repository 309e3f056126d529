"""Mutual information against values known beforehand."""

import numpy as np
import pytest
from scipy import ndimage
from scipy.interpolate import RegularGridInterpolator
from sklearn.metrics import mutual_info_score

from scripts.alignment.score import MutualInformation
from scripts.alignment.working import WorkingImage
from tests.alignment.brains import disturbance


def image(values: np.ndarray, known: np.ndarray | None = None) -> WorkingImage:
    brain = np.ones(values.shape, dtype=bool)
    return WorkingImage(
        values.astype(np.float32), brain, np.zeros(3), 1.0, brain if known is None else known, np.zeros(3)
    )


def smooth(seed: int) -> np.ndarray:
    values = ndimage.gaussian_filter(np.random.default_rng(seed).random((14, 15, 16)), 1.5)
    return (values - values.min()) / (values.max() - values.min())


def test_as_scikit_learn_counts_it():
    matrix = disturbance((1.3, -0.4, 2.2), (3, -5, 8), (1.1, 0.9, 1.0))
    score = MutualInformation(image(smooth(0)), image(smooth(1)), seed=5)
    points = score.points @ matrix[:3, :3].T + matrix[:3, 3]
    # Linear interpolation with zeros around the image, as on a padded grid.
    axes = [np.arange(-20, size + 20) for size in smooth(0).shape]
    fixed, moving = (RegularGridInterpolator(axes, np.pad(smooth(seed), 20)) for seed in (0, 1))
    bins = [np.minimum(values * 32, 31).astype(int) for values in (fixed(score.points), moving(points))]
    assert score(matrix) == pytest.approx(mutual_info_score(*bins), rel=0.01)


def test_samples_are_spread_over_their_voxels():
    offsets = MutualInformation(image(smooth(0)), image(smooth(0))).points % 1.0
    assert np.allclose(np.histogram(offsets, 4, (0, 1))[0] / offsets.size, 0.25, atol=0.02)


def test_an_image_tells_most_about_itself_in_any_contrast():
    for moving in (smooth(0), 1 - smooth(0)):
        score = MutualInformation(image(smooth(0)), image(moving))
        assert score(np.eye(4)) > 1.2 * score(disturbance((0.5, 0, 0)))


def test_out_of_sight_is_worth_nothing():
    assert MutualInformation(image(smooth(0)), image(smooth(0)))(disturbance((0, 500, 0))) == pytest.approx(
        0, abs=1e-12
    )


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
    assert MutualInformation(image(values), image(garbled, known))(disturbance((10, 0, 0))) == 0.0
