"""Parts and holes of masks."""

import numpy as np
import pytest
from scipy import ndimage

from scripts.alignment.foreground import background_level, fill_slices, largest_component


def test_slices_close_a_tube_that_the_volume_cuts():
    tube = np.zeros((5, 9, 9), dtype=bool)
    tube[:, 2:7, 2:7] = True
    tube[:, 3:6, 3:6] = False
    assert np.array_equal(ndimage.binary_fill_holes(tube), tube)
    assert fill_slices(tube).sum() == 5 * 5 * 5


def test_largest_component():
    two = np.zeros((8, 8, 8), dtype=bool)
    two[:2, :2, :2] = True
    two[4:7, 4:7, 4:7] = True
    two[3, 3, 3] = True  # touches the large one by a corner only
    assert np.array_equal(np.argwhere(largest_component(two)).min(0), [4, 4, 4])
    assert largest_component(two).sum() == 27
    assert not largest_component(np.zeros((3, 3, 3), dtype=bool)).any()


def test_background_is_the_most_frequent_value_of_the_faces():
    values = np.full((6, 6, 6), 7.0)
    values[:3, 0] = 1.0
    values[2:4, 2:4, 2:4] = 100.0
    faces = 6 * 36
    # The face y = 0 has 18 voxels of value 1; of them, the edges z = 0, z = 5 (3 each) and x = 0 (6) count twice.
    assert background_level(values) == (7.0, pytest.approx(1 - (18 + 3 + 3 + 6) / faces))


def test_background_of_noise_is_its_median():
    values = np.random.default_rng(0).normal(5, 1, (20, 20, 20))
    level, share = background_level(values)
    assert level == pytest.approx(5, abs=0.1)
    assert share < 0.01
