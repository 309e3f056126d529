"""Corrected outlines: signed distances of balls, thinning, and a shift that is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.evidence.outline import Outline, _DistanceMap, outline_points, thin
from scripts.gaussian import Stencil, StructuredGaussian
from scripts.inference.observations import Observations
from scripts.registration.space import PairSpace

GRID = Grid((32, 32, 32), np.array([[2.0, 0, 0, -31], [0, 2, 0, -31], [0, 0, 2, -31], [0, 0, 0, 1]]))


def ball(center=(0.0, 0, 0), radius=14.0, value=5, grid=GRID) -> np.ndarray:
    indices = np.stack(np.meshgrid(*[np.arange(n) for n in grid.shape], indexing="ij"), -1).reshape(-1, 3)
    inside = np.linalg.norm(grid.to_world(indices) - center, axis=1) <= radius
    return (value * inside).reshape(grid.shape).astype(np.int32)


def proposal(std=2.0) -> StructuredGaussian:
    """Smooth fields: all control points move together, and each a little on its own."""
    shape = tuple(n // 2 for n in GRID.shape)
    entries = Stencil("none", 0.3).entries(torch.zeros(1, 3, *shape))
    factor = torch.zeros(1, 3, 3, *shape)
    for axis in range(3):
        factor[0, axis, axis] = std
    return StructuredGaussian(torch.zeros(1, 3, *shape), entries, factor)


def space(alignment=None) -> PairSpace:
    return PairSpace(GRID, GRID, GRID, np.eye(4) if alignment is None else alignment)


def test_outline_points_lie_between_inside_and_outside():
    points = outline_points(ball() == 5, GRID)
    radius = np.linalg.norm(points, axis=1)
    assert abs(radius.mean() - 14) < 0.7
    assert np.abs(radius - 14).max() < 1.8  # faces of 2 mm voxels
    edge = np.zeros((4, 4, 4), bool)
    edge[0] = True
    np.testing.assert_allclose(outline_points(edge, Grid((4, 4, 4), np.eye(4)))[:, 0], 0.5)


def test_thinned_points_keep_their_distance():
    points = outline_points(ball() == 5, GRID)
    few = thin(points, 5.0, 1000)
    apart = np.linalg.norm(few[:, None] - few[None], axis=2) + 1e9 * np.eye(len(few))
    assert apart.min() >= 5.0
    assert np.linalg.norm(points[:, None] - few[None], axis=2).min(1).max() < 5.0
    assert len(thin(points, 5.0, 7)) == 7


def test_distances_are_those_of_a_ball():
    """A field that moves everything by t: the ball's outline lands |t + 14 n| from the center."""
    outline = Outline(ball(), ball(), [5], space())
    z = torch.zeros(2, 3, 16, 16, 16)
    z[1, 0] = 3.0  # work voxels: 6 mm along x
    distances = outline.distances(z)
    assert np.abs(distances[0]).mean() < 0.8
    expected = np.linalg.norm(outline.points + np.array([6.0, 0, 0]), axis=1) - 14
    assert np.abs(distances[1] - expected).mean() < 0.8


@pytest.mark.parametrize("aligned", [False, True])
def test_a_shifted_ball_is_found(aligned):
    alignment = np.eye(4)
    if aligned:
        alignment[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
        alignment[:3, 3] = [2, -1, 3]
    shift = np.array([5.0, -3, 2])
    center = alignment[:3, :3] @ shift + alignment[:3, 3]  # where φ takes the fixed ball's center
    outline = Outline(ball(), ball(center), [5], space(alignment), std=0.5)
    gaussian = proposal()
    conditioned = outline.condition(gaussian).gaussian
    middle = conditioned.mean[0, :, 8, 8, 8].numpy() * 2
    np.testing.assert_allclose(middle, shift, atol=0.7)
    samples = conditioned.sample(16, seed=0)[:, 0]
    assert np.abs(outline.distances(samples)).mean() < 1.5
    assert np.abs(outline.distances(gaussian.sample(16, seed=0)[:, 0])).mean() > 2


def test_the_correction_is_the_evidence_less_its_linear_form():
    outline = Outline(ball(), ball((3.0, 0, 0)), [5], space(), std=1.0)
    with pytest.raises(ValueError, match="conditioned first"):
        outline.log_correction(torch.zeros(1, 3, 16, 16, 16))
    seen = outline.condition(proposal()).plain.observations
    z = torch.randn(3, 3, 16, 16, 16, generator=torch.Generator().manual_seed(0))
    variance = 1.0 + 2 * 4 / 12
    assert outline.std**2 == pytest.approx(variance)
    exact = -0.5 * (outline.distances(z) ** 2).sum(1) / variance
    linear = -0.5 * ((seen.values - seen.apply(z)) ** 2).sum(1).numpy() / variance
    np.testing.assert_allclose(outline.log_correction(z).numpy(), exact - linear, rtol=1e-9)


def test_landmarks_and_outline_go_together():
    outline = Outline(ball(), ball((4.0, 0, 0)), [5], space())
    at = torch.tensor([[8.0, 8, 8]]).double().repeat(3, 1)
    marks = Observations(at, torch.eye(3).double(), torch.tensor([2.0, 0, 0]).double(), torch.full((3,), 0.1).double())
    mean = outline.condition(proposal(), [marks]).gaussian.mean
    assert float(marks.apply(mean)[0, 0]) == pytest.approx(2.0, abs=0.1)


def test_what_cannot_be_used_is_named():
    with pytest.raises(DataError, match="corrected_label: it has no structure 9"):
        Outline(ball(), ball(), [9], space())
    with pytest.raises(DataError, match="moving_label: it has no structure 5"):
        Outline(ball(), ball(value=6), [5], space())
    with pytest.raises(DataError, match="--outline_std"):
        Outline(ball(), ball(), [5], space(), std=0)


def test_distances_to_thick_slices_are_those_to_their_faces():
    grid = Grid((30, 30, 20), np.diag([1.0, 1.0, 3.0, 1.0]))
    box = np.zeros(grid.shape, bool)
    box[8:22, 8:22, 5:15] = True  # ends at 21.5 mm along x, at 43.5 mm along z
    known = _DistanceMap(box, grid)
    steps = np.array([-4, -1.5, 0, 1, 4, 7.5])
    for axis, face in ((0, 21.5), (2, 43.5)):
        points = np.tile([15.0, 15.0, 28.0], (len(steps), 1))
        points[:, axis] = face + steps
        (distance,), (gradient,) = known(points[None])
        np.testing.assert_allclose(distance, steps, atol=1e-6)
        np.testing.assert_allclose(gradient, np.eye(3)[[axis] * len(steps)], atol=1e-6)
