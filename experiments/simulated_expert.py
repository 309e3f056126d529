"""An expert who sees both label maps and marks points: what stands in for a person in the conditioning experiment."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from scripts.evidence.landmarks import Landmarks
from scripts.evidence.outline import outline_points
from scripts.registration.space import PairSpace

STD_MM = 1.0
APART_MM = (6.0, 4.0, 2.0)
"""Between any two of the points, given or held out: the largest of these for which the structure has room."""


class Marks(NamedTuple):
    """Points that the expert gives, and points of the same kind that are kept to check."""

    given: Landmarks
    held_out: Landmarks


def marks_where_worst(
    fixed: np.ndarray, moving: np.ndarray, control_points: np.ndarray, space: PairSpace, count: int = 5
) -> Marks:
    """Points of a structure's outline that the registration takes farthest from its outline in the moving image.

    Each is matched with the nearest point of the moving outline, as one drags a contour to where it belongs. The worst
    is given, the second worst held out, and so on, all of them some way apart.

    Args:
        fixed: the structure in the fixed image, [X, Y, Z], bool.
        moving: the structure in the moving image, [X', Y', Z'], bool.
        control_points: of the registration's mean field, [3, x, y, z].
        space: the grids.
        count: points of each kind.
    """
    outline, other = outline_points(fixed, space.fixed), outline_points(moving, space.moving)
    carried = space.align(outline + space.displacement_at(control_points, outline))
    distance, nearest = cKDTree(other).query(carried)
    order = np.argsort(-distance, kind="stable")
    chosen = order[_choose(outline[order], 2 * count)]
    return _split(outline[chosen], other[nearest[chosen]])


def marks_at_tips(fixed: np.ndarray, moving: np.ndarray, space: PairSpace, count: int = 5) -> Marks:
    """The structure's extreme points in both images, in the same directions: right, left, anterior … and between.

    Args:
        fixed: the structure in the fixed image, [X, Y, Z], bool.
        moving: the structure in the moving image, [X', Y', Z'], bool.
        space: the grids.
        count: points of each kind.
    """
    directions = [np.array(d, dtype=float) for d in itertools.product((-1, 0, 1), repeat=3) if any(d)]
    directions.sort(key=lambda d: (np.abs(d).sum(), *d))  # along the axes first
    outline, other = outline_points(fixed, space.fixed), outline_points(moving, space.moving)
    # Directions of the fixed image, seen in the moving one.
    turned = [space.alignment[:3, :3] @ d for d in directions]
    here, there = np.array([_tip(outline, d) for d in directions]), np.array([_tip(other, t) for t in turned])
    chosen = _choose(here, 2 * count)
    return _split(here[chosen], there[chosen])


def _choose(points: np.ndarray, count: int) -> list[int]:
    """The first points that keep their distance from all before them."""
    chosen: list[int] = []
    for apart in APART_MM:
        chosen = []
        for index, point in enumerate(points):
            if all(np.linalg.norm(point - points[i]) >= apart for i in chosen):
                chosen.append(index)
            if len(chosen) == count:
                return chosen
    return chosen


def _tip(points: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The middle of the points that reach farthest: the last millimeter."""
    reach = points @ direction / np.linalg.norm(direction)
    return points[reach >= reach.max() - 1.0].mean(0)


def _split(fixed: np.ndarray, moving: np.ndarray) -> Marks:
    parts = []
    for part in (slice(0, None, 2), slice(1, None, 2)):
        names = [str(i + 1) for i in range(len(fixed[part]))]
        parts.append(Landmarks(names, fixed[part], moving[part], np.full(len(names), STD_MM)))
    return Marks(*parts)
