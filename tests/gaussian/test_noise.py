from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch

from scripts.gaussian import backends
from scripts.gaussian.noise import fold, mix, standard_normal


def test_splitmix64_gives_its_published_sequence():
    # First outputs of SplitMix64 with the seed 1234567, as published with the algorithm's reference code.
    gamma = 0x9E3779B97F4A7C15
    outputs = [mix(1234567 + gamma * (i + 1)) for i in range(3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sample_is_the_same_alone_and_in_any_chunk(dtype):
    shape = (3, 5, 6, 7)
    together = standard_normal(shape, 11, range(20), dtype=dtype)
    for index in (0, 7, 19):
        assert torch.equal(standard_normal(shape, 11, [index], dtype=dtype)[0], together[index])
    assert torch.equal(standard_normal(shape, 11, [19, 3], dtype=dtype), together[[19, 3]])


def test_seeds_and_samples_are_independent():
    size = 100_000
    a, b, c = (
        standard_normal((size,), 0, [0])[0],
        standard_normal((size,), 0, [1])[0],
        standard_normal((size,), 1, [0])[0],
    )
    for x, y in ((a, b), (a, c), (a[1:], a[:-1]), (a[::2], a[1::2])):
        correlation = float((x * y).mean())
        assert abs(correlation) < 5 / math.sqrt(len(x))  # five standard errors


def test_moments_and_distribution_are_normal():
    z = standard_normal((1_000_000,), 3, [0], dtype=torch.float64)[0].numpy()
    n = len(z)
    # Standard errors of the first four moments of a standard normal: 1, sqrt 2, sqrt 15, sqrt 96 over sqrt n.
    for power, expected, error in ((1, 0, 1), (2, 1, math.sqrt(2)), (3, 0, math.sqrt(15)), (4, 3, math.sqrt(96))):
        assert abs((z**power).mean() - expected) < 5 * error / math.sqrt(n)
    assert scipy.stats.kstest(z, "norm").pvalue > 1e-3


def test_numba_and_torch_make_the_same_numbers(monkeypatch):
    fast = standard_normal((3, 7, 7, 7), 5, range(4))
    monkeypatch.setattr(backends, "noise", lambda *_: None)
    plain = standard_normal((3, 7, 7, 7), 5, range(4))
    torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
    double = standard_normal((3, 7, 7, 7), 5, range(4), dtype=torch.float64)
    torch.testing.assert_close(fast.double(), double, rtol=1e-4, atol=1e-4)


def test_fast_logarithm_and_angles_are_accurate_over_their_whole_range():
    from scripts.gaussian.backends.numba_noise import _cos_sin_of_turn, _log

    for x in np.concatenate([np.geomspace(2**-32, 1, 2000), 1 - np.geomspace(1e-6, 0.4, 500)]).astype(np.float32):
        assert _log(x) == pytest.approx(math.log(x), rel=3e-6, abs=1e-7)
    for turn in np.linspace(0, 1, 2001, dtype=np.float32)[:-1]:
        c, s = _cos_sin_of_turn(turn)
        assert c == pytest.approx(math.cos(2 * math.pi * float(turn)), abs=1e-6)
        assert s == pytest.approx(math.sin(2 * math.pi * float(turn)), abs=1e-6)


def test_odd_sizes_and_empty_requests():
    assert standard_normal((1,), 0, [0]).shape == (1, 1)
    assert standard_normal((0,), 0, [0, 1]).shape == (2, 0)
    assert standard_normal((3,), 0, []).shape == (0, 3)
    assert torch.equal(standard_normal((3,), 0, [4])[0], standard_normal((4,), 0, [4])[0, :3])


def test_part_zero_keeps_the_seed_and_other_parts_differ():
    assert fold(42, 0) == 42
    assert len({fold(42, i) for i in range(1000)}) == 1000
