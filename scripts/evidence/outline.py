"""A label map that an expert corrected: where a structure's outline is, as evidence about the displacement.

A point b of the corrected outline in the fixed image has to land on the outline of the same structure in the moving
image: the signed distance d of φ(b) = A(b + u(b)) to it is 0, up to the outline's error:

    log p(E | z) = Σ_b log N(0; d(φ_z(b)), s²),   s² = std² + (h_f² + h_m²)/12,

std being what the expert states and the rest the rounding to voxels of both maps. Neighbors along an outline err alike,
so it is thinned to points that are `APART_MM` from each other and count as independent.

d is not linear in z. Around a field z₀ it is nearly: d(φ_z(b)) ≈ d₀ + ∇dᵀA₃W (z(b) − z₀(b)), one observation a point,
along the outline's normal and silent about what slides along it. The proposal is conditioned on that (z₀ = its own
mean, found in a few steps), and the difference between the evidence and its linear form goes into the weights.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import distance_transform_edt, map_coordinates
from torch import Tensor

from scripts.core.checked import Length, check
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.gaussian import StructuredGaussian
from scripts.inference.discrepancy import Conditioned, condition
from scripts.inference.observations import Observations
from scripts.registration.space import PairSpace

APART_MM = 4.0
MOST_POINTS = 150
"""In all; a structure with more is thinned further. Each takes a field of memory."""
_STEPS = 6
_STILL_MM = 0.02
_MARGIN_MM = 30.0
"""Around a structure: where its distance map is computed."""


class Outline:
    """Evidence of a corrected label map.

    Args:
        corrected: label map on the fixed file's grid, [X, Y, Z], integers.
        moving_label: on the moving file's grid, [X', Y', Z'], integers.

    Raises:
        DataError: for a structure that one of the maps lacks, or an error that is not positive.
    """

    def __init__(
        self,
        corrected: np.ndarray,
        moving_label: np.ndarray,
        structures: Sequence[int],
        space: PairSpace,
        std: float = 1.0,
    ) -> None:
        check("outline_std", std, Length)
        self.space, self.structures = space, list(structures)
        rounding = float((space.fixed.spacing**2).mean() + (space.moving.spacing**2).mean()) / 12
        self.std = math.sqrt(std**2 + rounding)
        self._maps = []
        points = []
        for value in self.structures:
            for name, labels in (("corrected_label", corrected), ("moving_label", moving_label)):
                if not (labels == value).any():
                    raise DataError(f"{name}: it has no structure {value}")
            self._maps.append(_DistanceMap(moving_label == value, space.moving))
            found = outline_points(corrected == value, space.fixed)
            found = found[_inside(found, space)]
            points.append(thin(found, APART_MM, max(MOST_POINTS // len(self.structures), 4)))
            if len(points[-1]) == 0:
                raise DataError(f"corrected_label: the outline of structure {value} lies outside of the brain's box")
        self._counts = [len(part) for part in points]
        self.points = np.concatenate(points)  # (P, 3), RAS mm
        self._matrix = space.alignment[:3, :3] @ space.work.affine[:3, :3]  # A₃W
        self._places = self._field_places()
        self._observations: Observations | None = None

    def in_space(self, space: PairSpace) -> Outline:
        """The same outline in a space of the same files with another field grid or detail."""
        other = copy.copy(self)
        other.space, other._observations = space, None
        other._places = other._field_places()
        return other

    def condition(
        self, proposal: StructuredGaussian, others: Sequence[Observations] = (), lengths: Sequence[float] = ()
    ) -> Conditioned:
        """A proposal given all that is known, with the outline linear around the mean that it has then.

        Args:
            others: what else is known, such as landmarks.
            lengths: of a discrepancy, see :func:`~scripts.inference.discrepancy.condition`.
        """
        mean = condition(proposal, Observations.join(others), lengths).gaussian.mean if others else proposal.mean
        for _ in range(_STEPS):
            given = condition(proposal, Observations.join([*others, self.around(mean)]), lengths)
            step = given.gaussian.mean
            moved = np.linalg.norm((self._at(step) - self._at(mean))[0] @ self._matrix.T, axis=1).max()
            mean = step
            if moved < _STILL_MM:
                break
        return given

    def log_correction(self, z: Tensor) -> Tensor:
        """log p(E | z) less its linear form, which the proposal knows already; z [N, 3, x, y, z], shape (N,)."""
        if self._observations is None:
            raise ValueError("the proposal has to be conditioned first")
        linear = (self._observations.values - self._observations.apply(z)).cpu().numpy()
        squares = self.distances(z) ** 2 - linear**2
        return torch.from_numpy(-0.5 * squares.sum(1) / self.std**2).to(z.device)

    def distances(self, z: Tensor) -> np.ndarray:
        """Signed distances d(φ_z(b)) in mm for fields [N, 3, x, y, z]; (N, P)."""
        return self._look(self._at(z))[0]

    def around(self, mean: Tensor) -> Observations:
        """The outline as observations that are linear around a field [1, 3, x, y, z]; corrections are to these."""
        at = self._at(mean)
        (distance,), (normal,) = self._look(at)
        directions = normal @ self._matrix  # (A₃W)ᵀ∇d
        values = (directions * at[0]).sum(1) - distance
        std = torch.full((len(values),), self.std, dtype=torch.float64)
        self._observations = Observations(self._places, torch.from_numpy(directions), torch.from_numpy(values), std)
        return self._observations

    def _field_places(self) -> Tensor:
        """The points in field voxels, (P, 3)."""
        return torch.from_numpy((self.space.work.to_indices(self.points) + 0.5) / self.space.factor - 0.5)

    def _at(self, z: Tensor) -> np.ndarray:
        """The spline of fields [N, 3, x, y, z] at the outline's points, in work voxels, (N, P, 3)."""
        count = len(self.points)
        axes = torch.eye(3, dtype=torch.float64).repeat(count, 1)
        probe = Observations(
            self._places.repeat_interleave(3, 0), axes, torch.zeros(3 * count).double(), torch.ones(3 * count).double()
        )
        return probe.apply(z).reshape(len(z), count, 3).cpu().numpy()

    def _look(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances (N, P) and their gradients (N, P, 3) in the moving space, for displacements (N, P, 3)."""
        moved = at @ self._matrix.T + self.space.align(self.points + self.space.detail_at(self.points))
        parts = np.split(moved, np.cumsum(self._counts)[:-1], axis=1)
        seen = [known(part) for known, part in zip(self._maps, parts, strict=True)]
        return np.concatenate([part[0] for part in seen], 1), np.concatenate([part[1] for part in seen], 1)


class _DistanceMap:
    """Signed distance to a structure's outline (negative inside), and its gradient, at any places."""

    def __init__(self, inside: np.ndarray, grid: Grid) -> None:
        margin = np.ceil(_MARGIN_MM / grid.spacing).astype(int)
        where = np.argwhere(inside)
        low = np.maximum(where.min(0) - margin, 0)
        high = np.minimum(where.max(0) + margin + 1, inside.shape)
        crop = inside[tuple(slice(a, b) for a, b in zip(low, high, strict=True))]
        # Distances are between centers of voxels: the outline is half a voxel before the first one beyond it. That is
        # the same in all directions only if voxels are about cubes, so those of thick slices are cut into such.
        cuts = np.maximum(np.round(grid.spacing / grid.spacing.min()), 1).astype(int)
        for axis, count in enumerate(cuts):
            crop = np.repeat(crop, count, axis=axis)
        spacing = grid.spacing / cuts
        outer, inner = (distance_transform_edt(part, sampling=spacing) for part in (~crop, crop))
        half = 0.5 * float(spacing.min())
        self._distance = np.where(crop, half - inner, outer - half)
        steps = np.stack(np.gradient(self._distance)) if min(crop.shape) > 1 else np.zeros((3, *crop.shape))
        per_mm = np.linalg.inv(grid.affine[:3, :3] / cuts)
        self._gradient = np.einsum("ij,j...->i...", per_mm.T, steps)
        self._grid, self._low, self._cuts = grid, low, cuts

    def __call__(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of places (N, P, 3), RAS mm: (N, P) and (N, P, 3)."""
        where = (self._grid.to_indices(points.reshape(-1, 3)) - self._low + 0.5) * self._cuts - 0.5
        values = [map_coordinates(part, where.T, order=1, mode="nearest") for part in (self._distance, *self._gradient)]
        return values[0].reshape(points.shape[:2]), np.stack(values[1:], axis=1).reshape(points.shape)


def outline_points(inside: np.ndarray, grid: Grid) -> np.ndarray:
    """Middles of the faces between a structure's voxels and others, RAS mm, (P, 3); the image's border is none."""
    found = []
    for axis in range(3):
        before, after = (np.moveaxis(inside, axis, 0)[part] for part in (slice(None, -1), slice(1, None)))
        where = np.moveaxis(np.argwhere(before != after).astype(np.float64), 1, 0)
        first, *others = where
        others.insert(axis, first + 0.5)
        found.append(np.stack(others, axis=1))
    return grid.to_world(np.concatenate(found))


def thin(points: np.ndarray, apart: float, most: int) -> np.ndarray:
    """Points at least `apart` mm from each other, at most this many, spread evenly: always the farthest next."""
    if len(points) == 0:
        return points
    distance = np.linalg.norm(points - points.mean(0), axis=1)
    chosen: list[int] = []
    nearest = np.full(len(points), np.inf)
    index = int(distance.argmax())
    while len(chosen) < most and nearest[index] >= apart:
        chosen.append(index)
        nearest = np.minimum(nearest, np.linalg.norm(points - points[index], axis=1))
        index = int(nearest.argmax())
    return points[chosen]


def _inside(points: np.ndarray, space: PairSpace) -> np.ndarray:
    indices = space.work.to_indices(points)
    return np.all((indices >= -0.5) & (indices <= np.array(space.work.shape) - 0.5), axis=1)
