"""Checks of a pair: overlap in space, skull, brain."""

import numpy as np
import pytest
import torch

from scripts.alignment.checks import brain_mask, check_overlap, looks_stripped
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from tests.alignment.brains import array, brain, displaced, disturbance, volume, whole_head, with_noise

CUBE = Grid((11, 11, 11), np.eye(4))  # 0..10 mm


def at(x: float, y: float, z: float, angle: float = 0.0) -> Grid:
    return Grid((11, 11, 11), disturbance((x, y, z), (0, 0, angle)))


class TestOverlap:
    @pytest.mark.parametrize("other", [at(0, 0, 0), at(10, -10, 10), at(5, 5, 5, 30)])
    def test_common_space(self, other):
        check_overlap(CUBE, other)
        check_overlap(other, CUBE)

    def test_one_within_the_other(self):
        check_overlap(Grid((200, 200, 200), np.eye(4)), at(100, 100, 100))

    def test_apart_with_both_boxes(self):
        message = (
            r"fixed covers R 0..10, A 0..10, S 0..10 mm, moving R 50..60, A 0..10, S -20..-10 mm; use --align affine"
        )
        with pytest.raises(DataError, match=message) as caught:
            check_overlap(CUBE, at(50, 0, -20))
        assert "\n" not in str(caught.value)

    def test_oblique_volumes_whose_boxes_overlap(self):
        # Edges of 11 mm, turned by 45 degrees about z: |x - center| + |y - center| <= 7.8 mm. The cube's corner is at
        # 10.5, so that the two touch if the center lies at 10.5 + 3.9 = 14.4.
        for center in (14.3, 14.5):
            turned = at(center, center - 5 * np.sqrt(2), 0, 45)
            assert (turned.bounds[0] < 10).all()
            if center < 14.4:
                check_overlap(CUBE, turned)
            else:
                with pytest.raises(DataError, match="do not overlap"):
                    check_overlap(CUBE, turned)

    def test_stored_in_another_orientation(self):
        flipped = Grid((11, 11, 11), np.array([[0, -1, 0, 10.0], [0, 0, 1, 0], [-1, 0, 0, 10], [0, 0, 0, 1]]))
        check_overlap(CUBE, flipped)


class TestStripped:
    @pytest.mark.parametrize(("spacing", "shape"), [(4.0, (44, 54, 60)), (3.0, (66, 78, 86))])
    def test_synthetic_brains(self, spacing, shape):
        assert looks_stripped(brain(0, spacing, shape)) == (True, "")

    @pytest.mark.parametrize("noise", [0.01, 0.05])
    def test_brain_in_a_noisy_background(self, noise):
        assert looks_stripped(with_noise(brain(), noise)) == (True, "")

    @pytest.mark.parametrize("background", [0.0, -2.5])
    def test_brain_as_a_z_score(self, background):
        values = array(brain())
        scores = np.where(values > 0, (values - 0.5) / 0.2, background)
        assert looks_stripped(volume(scores, np.asarray(brain().affine)))[0]

    def test_other_contrast(self):
        values = array(brain())  # T2-like: CSF outside is bright, white matter inside is dark
        assert looks_stripped(volume(np.where(values > 0, 1.1 - values, 0), np.asarray(brain().affine)))[0]

    @pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
    def test_whole_head(self, noise):
        stripped, reason = looks_stripped(whole_head(brain(), noise))
        assert not stripped
        assert "ml, more than a brain" in reason

    @pytest.mark.parametrize("noise", [0.0, 0.03])
    def test_small_head_by_its_skull(self, noise):
        small = displaced(whole_head(brain(0, 3.0, (66, 78, 86)), noise), np.diag([0.8, 0.8, 0.8, 1]))
        stripped, reason = looks_stripped(small)
        assert not stripped
        assert "as skull does under the scalp" in reason

    @pytest.mark.parametrize("noise", [0.0, 0.03])
    def test_head_that_the_volume_cuts(self, noise):
        head = whole_head(brain(0, 3.0, (66, 78, 86)), noise)
        upper = volume(array(head)[:, :38], np.asarray(head.affine))  # axes left, inferior, anterior
        stripped, reason = looks_stripped(upper)
        assert not stripped
        assert "as skull does under the scalp" in reason

    def test_too_small_for_a_brain(self):
        values = np.zeros((40, 40, 40))
        values[15:25, 15:25, 15:25] = 1
        assert looks_stripped(volume(values, np.diag([4, 4, 4, 1]))) == (
            False,
            "what is not background has only 64 ml, less than a brain.",
        )

    def test_no_background(self):
        values = np.random.default_rng(0).normal(1, 0.1, (20, 20, 20))
        stripped, reason = looks_stripped(volume(values, np.eye(4)))
        assert not stripped
        assert "no background" in reason


class TestBrainMask:
    def test_brain_with_its_ventricles_and_without_specks(self):
        values = array(brain()).copy()
        inside = values > 0.02
        values[18:24, 24:30, 28:34] = 0.0  # a hole
        values[1, 1, 1] = values[40, 50, 50] = 1.0  # specks
        mask = brain_mask(volume(values, np.asarray(brain().affine)))
        assert mask.dtype == torch.bool
        assert type(mask) is torch.Tensor
        assert mask.shape == brain().shape
        assert bool(mask[0, 18:24, 24:30, 28:34].all())
        assert not mask[0, 1, 1, 1]
        assert not mask[0, 40, 50, 50]
        assert np.mean(mask[0].numpy() != inside) < 0.01

    def test_background_that_is_not_0(self):
        values = array(brain())
        shifted = volume(np.where(values > 0, values + 4, -1), np.asarray(brain().affine))
        assert np.mean(brain_mask(shifted)[0].numpy() != (values > 0)) < 0.01

    def test_noisy_background(self):
        inside = array(brain(0, 3.0, (66, 78, 86))) > 0
        mask = brain_mask(with_noise(brain(0, 3.0, (66, 78, 86)), 0.03))[0].numpy()
        assert 2 * np.count_nonzero(mask & inside) / (mask.sum() + inside.sum()) > 0.95

    def test_everything_without_background(self):
        values = np.random.default_rng(0).normal(1, 0.1, (12, 12, 12))
        assert bool(brain_mask(volume(values, np.eye(4))).all())
