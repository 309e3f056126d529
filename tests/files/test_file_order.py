"""Copies in the order of files hold the same numbers."""

import numpy as np
import pytest

from scripts.files.file_order import copy_rounded, copy_volume, in_file_order

NOISE = np.random.default_rng(0).normal(scale=9.0, size=(4, 5, 6)).astype(np.float32)


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5, 6, 2), (4, 5, 6, 1, 3), (1, 1, 1), (0, 5, 6)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_the_first_axis_becomes_the_fastest(shape, dtype):
    array = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    found = in_file_order(array)
    assert found.flags.f_contiguous
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, array)


def test_what_is_in_order_is_not_copied():
    array = np.asfortranarray(NOISE)
    assert in_file_order(array) is array


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_are_rounded_to_steps(order, sign):
    target = np.empty(NOISE.shape, np.float32, order=order)
    copy_rounded(NOISE, target, sign)
    np.testing.assert_array_equal(target, np.rint(sign * NOISE * np.float32(4096)) / np.float32(4096))


def test_a_channel_is_written_in_place():
    target = np.zeros((6, 5, 4, 2), np.float32)
    copy_volume(NOISE, np.swapaxes(target, 0, 2)[..., 1])
    np.testing.assert_array_equal(target[..., 1], NOISE.T)
    assert not target[..., 0].any()


def test_numbers_that_are_none_stay():
    given = np.array([np.nan, np.inf, -np.inf, 0.0], np.float32).reshape(2, 1, 2)
    target = np.empty_like(given)
    copy_rounded(given, target)
    np.testing.assert_array_equal(target, given)
