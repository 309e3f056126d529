"""The dip: how far the distribution of some numbers is from having one peak."""

from __future__ import annotations

import numpy as np
from numba import njit


def dip(values: np.ndarray, share: np.ndarray) -> float:
    """Hartigan's dip of weighted numbers.

    With one peak at m, a distribution function is convex before m and concave after it. The dip is half of its largest
    distance from its convex minorant before m or its concave majorant after m, for the best m. Hartigan also forbids
    the two to step back at m; that makes no difference, or (beyond some 50 numbers) a small one.

    Args:
        values: shape (n,).
        share: their weights, shape (n,), positive, that add up to 1.

    Returns:
        From 1/(2n), for n numbers of equal weight at equal distances, to 1/4, for two heaps.
    """
    x, position = np.unique(values, return_inverse=True)
    weights = np.bincount(position, share)
    after = np.cumsum(weights)
    before = after - weights
    return 0.5 * float(_from_one_peak(x, before, after, -x[::-1], 1 - after[::-1], 1 - before[::-1]))


@njit(cache=True)
def _from_one_peak(x, before, after, mirrored, mirrored_before, mirrored_after):  # type: ignore[no-untyped-def]
    """The smallest over m of the larger one of both distances; concave after m is convex in the mirror."""
    count = len(x)
    smallest = 1.0
    for m in range(count):
        left = _above_minorant(x, before, after, m + 1)
        right = _above_minorant(mirrored, mirrored_before, mirrored_after, count - m)
        smallest = min(smallest, max(left, right))
    return smallest


@njit
def _above_minorant(x, before, after, count):  # type: ignore[no-untyped-def]
    """Largest height of a step function over its greatest convex minorant, among its first points."""
    corners = np.empty(count, dtype=np.int64)  # of the minorant
    used = 0
    for i in range(count):
        while used > 1:
            a, b = corners[used - 2], corners[used - 1]
            if (before[i] - before[a]) * (x[b] - x[a]) > (before[b] - before[a]) * (x[i] - x[a]):
                break
            used -= 1
        corners[used] = i
        used += 1
    # The last point is the peak, where a step is no deviation.
    largest, n = 0.0, 0
    for i in range(count - 1):
        while x[i] > x[corners[n + 1]]:
            n += 1
        a, b = corners[n], corners[n + 1]
        slope = (before[b] - before[a]) / (x[b] - x[a])
        largest = max(largest, after[i] - (before[a] + slope * (x[i] - x[a])))
    return largest
