"""Working images: the same however an image is stored, 0 in the background, unknown beyond a cut."""

import numpy as np
import pytest

from scripts.alignment.working import working_image
from tests.alignment.brains import SPACING, array, brain, brain_points, displaced, disturbance, reoriented, volume


@pytest.mark.parametrize("codes", ["RAS", "PIR", "SLA"])
def test_storage_does_not_matter(codes):
    one, other = working_image(brain(), 4.0), working_image(reoriented(brain(), codes), 4.0)
    assert np.allclose(one.values, other.values, atol=1e-4)
    assert np.allclose(one.origin, other.origin, atol=1e-3)
    assert np.array_equal(one.brain, other.brain)
    assert np.allclose(one.center, other.center)


def test_values_are_those_of_the_image():
    # Oblique, and four times finer than the image: nothing is smoothed, and hardly anything interpolated away.
    oblique = displaced(brain(), disturbance((5, -7, 9), (10, 20, -15)))
    working = working_image(oblique, SPACING / 4)
    points = brain_points(oblique)
    expected = array(brain())[array(brain()) > 0][::10]
    assert np.abs(np.corrcoef(working.sample(points), expected)[0, 1]) > 0.98


@pytest.mark.parametrize("background", [0.0, -2.5, 10.0])
def test_background_is_0_whatever_it_was(background):
    values = np.where(array(brain()) > 0, (array(brain()) - 0.5) / 0.2, background)
    working = working_image(volume(values, np.asarray(brain().affine)), 4.0)
    assert working.values.min() >= 0
    assert working.values.max() == pytest.approx(1, abs=0.05)
    assert not working.values[:3].any()
    assert not working.values[:, :, -3:].any()


def test_coarser_lies_in_the_same_place():
    fine = working_image(brain(), 4.0)
    coarse = fine.coarser(2)
    assert coarse.spacing == 8.0
    assert coarse.values.sum() * 8 == pytest.approx(fine.values.sum(), rel=0.03)
    assert np.allclose(coarse.brain_points.mean(0), fine.brain_points.mean(0), atol=1.0)


def test_nothing_is_known_beyond_a_face_that_cuts_the_brain():
    assert working_image(brain(), 4.0).known.all()
    part = volume(array(brain())[:, :34], np.asarray(brain().affine))  # axis 1 goes down
    working = working_image(part, 4.0)
    lowest = float((np.asarray(part.affine) @ [0, 33, 0, 1])[2])
    heights = working.origin[2] + 4.0 * np.arange(working.known.shape[2])
    assert np.array_equal(working.known[3, 3], heights >= lowest)
    assert np.array_equal(working.known.all((0, 1)), working.known.any((0, 1)))
    below = np.array([[0.0, 0.0, lowest - 500], [0.0, 0.0, lowest + 500]])
    assert working.sample_known(below).tolist() == [False, True]


def test_a_mask_of_a_single_voxel():
    mask = np.zeros(brain().shape[1:])
    mask[20, 25, 30] = 1
    working = working_image(brain(), 4.0, volume(mask, np.asarray(brain().affine)))
    point = np.asarray(brain().affine) @ [20, 25, 30, 1]
    for image in (working, working.coarser(2), working.coarser(4)):
        assert np.linalg.norm(image.brain_points.mean(0) - point[:3]) < image.spacing
