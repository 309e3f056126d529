"""The dip against values by hand, and against its definition as a linear program."""

import numpy as np
import pytest
from scipy.optimize import linprog

from scripts.posterior.dip import dip


def equal(count):
    return np.full(count, 1 / count)


def by_linear_program(x, share):
    """Smallest sup |F − G| over all G that are convex before one of the points and concave after it."""
    order = np.argsort(x)
    x, after = x[order], np.cumsum(share[order])
    before, count = after - share[order], len(x)
    smallest = 1.0
    for m in range(count):
        # G at the points up to m from the left, then at those from m on from the right, then the distance d
        values = [*range(m + 1), *range(m, count)]
        rows, limits = [], []
        for n, i in enumerate(values):
            low = before[i] if n == m else after[i]  # from the left, F at m has not stepped yet
            high = after[i] if n == m + 1 else before[i]
            for sign, limit in ((1, high), (-1, -low)):
                row = np.zeros(count + 2)
                row[n], row[-1] = sign, -1
                rows.append(row)
                limits.append(limit)
        for side, sign in ((range(m + 1), 1), (range(m + 1, count + 1), -1)):
            for n in side[1:-1]:
                i = values[n]
                row = np.zeros(count + 2)
                row[n - 1], row[n + 1] = -sign / (x[i] - x[i - 1]), -sign / (x[i + 1] - x[i])
                row[n] = -row[n - 1] - row[n + 1]
                rows.append(row)
                limits.append(0.0)
        target = np.zeros(count + 2)
        target[-1] = 1
        result = linprog(target, A_ub=np.array(rows), b_ub=limits, bounds=[(None, None)] * (count + 1) + [(0, None)])
        smallest = min(smallest, result.fun)
    return smallest


@pytest.mark.parametrize("count", [3, 10, 81])
def test_equal_distances_have_the_smallest_dip(count):
    assert dip(np.arange(count, dtype=float), equal(count)) == pytest.approx(1 / (2 * count))


def test_two_heaps_have_the_largest_and_a_small_one_half_of_its_weight():
    assert dip(np.array([0.0, 0, 1, 1]), equal(4)) == pytest.approx(0.25)
    assert dip(np.array([0.0, 1.0]), np.array([0.9, 0.1])) == pytest.approx(0.05)


@pytest.mark.parametrize("seed", range(6))
def test_equals_its_definition(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=14) + 3 * (seed % 3) * (rng.random(14) < 0.5)
    share = equal(14) if seed < 3 else rng.dirichlet(np.ones(14))
    assert dip(x, share) == pytest.approx(by_linear_program(x, share), abs=1e-7)


def test_shift_scale_order_and_mirror_do_not_matter():
    rng = np.random.default_rng(0)
    x, share = rng.normal(size=40), rng.dirichlet(np.ones(40))
    expected = dip(x, share)
    order = rng.permutation(40)
    assert dip(5 + 3 * x[order], share[order]) == pytest.approx(expected)
    assert dip(-x, share) == pytest.approx(expected)


def test_copies_equal_weights():
    x = np.random.default_rng(0).normal(size=20)
    times = np.arange(20) % 3 + 1
    assert dip(np.repeat(x, times), equal(times.sum())) == pytest.approx(dip(x, times / times.sum()))


def test_a_single_number_has_one_peak():
    assert dip(np.array([3.0]), np.ones(1)) == 0
