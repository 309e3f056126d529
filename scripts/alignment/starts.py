"""Where an alignment may start, and which start is the best."""

from __future__ import annotations

import itertools

import numpy as np
from scipy.spatial.transform import Rotation

from scripts.alignment.optimize import optimize
from scripts.alignment.score import MutualInformation
from scripts.alignment.working import WorkingImage

_TILT = 20.0
"""Degrees between the rotations that are tried about each axis; gradient descent covers more than half of that."""

_HOPELESS = 0.5
"""Part of the best start's mutual information below which another one is not followed."""


def best_start(fixed: WorkingImage, moving: WorkingImage, seed: int = 0) -> np.ndarray:
    """Find roughly how the moving image lies, from what its header and its content say at about 8 mm.

    Three shifts are possible: none (the headers are right), from the middle of one volume to that of the other, and
    between the centers of gravity of the two brains. Each is scored with 27 rotations about the fixed brain's center;
    the best of each shift is improved unless it is hopeless, and the highest mutual information wins.

    Returns:
        A rigid map (4, 4), from fixed to moving RAS mm.
    """
    similarity = MutualInformation(fixed, moving, seed)
    center = fixed.brain_points.mean(0)
    shifts = (np.zeros(3), moving.center - fixed.center, moving.brain_points.mean(0) - center)
    angles = list(itertools.product((0.0, -_TILT, _TILT), repeat=3))
    starts = []
    for shift in shifts:
        candidates = [_rigid(angle, center, shift) for angle in angles]
        scores = [similarity(candidate) for candidate in candidates]
        starts.append((max(scores), candidates[int(np.argmax(scores))]))
    most = max(score for score, _ in starts)
    best, best_score = np.eye(4), similarity(np.eye(4))
    for score, start in starts:
        if score < _HOPELESS * most:
            continue
        matrix = optimize(fixed, moving, start, False, fixed.spacing, fixed.values.size, seed=seed)
        if similarity(matrix) > best_score:
            best, best_score = matrix, similarity(matrix)
    return best


def _rigid(angles: tuple[float, ...], center: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Rotate by Euler angles in degrees about `center`, then shift. Returns (4, 4)."""
    matrix = np.eye(4)
    matrix[:3, :3] = Rotation.from_euler("xyz", angles, degrees=True).as_matrix()
    matrix[:3, 3] = center + shift - matrix[:3, :3] @ center
    return matrix
