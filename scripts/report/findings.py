"""The numbers behind the report's words: where the result is least certain, where it folds, how its modes differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter

from scripts.core.grid import Grid
from scripts.posterior.result import LabelResult, Mode, RegistrationResult
from scripts.report.names import direction, plain_name

CERTAIN = 0.95
"""A label with at least this probability counts as certain."""

_SMALLEST = 100.0
"""Structures below this volume (mm³) are not ranked: a mean over a few voxels says little."""

_SMOOTHING = 3.0
"""Standard deviation in mm of the filter before a maximum is sought, so that a single voxel does not decide."""


@dataclass(frozen=True)
class Place:
    """A voxel of interest: array index, RAS mm, a name for people, and the value there."""

    index: tuple[int, int, int]
    world: tuple[float, float, float]
    name: str
    value: float


@dataclass(frozen=True)
class Region:
    """A structure or a part of the brain with its mean uncertainty in mm."""

    name: str
    std: float


@dataclass(frozen=True)
class Findings:
    """What the arrays of a result say, as numbers; None where there is nothing to measure."""

    center: tuple[int, int, int]  # index of the brain's center of mass
    std_median: float | None  # mm, in the brain
    std_high: float | None  # mm, 95 % of the brain lie below
    most_uncertain: Place | None
    regions: tuple[Region, ...]  # the largest mean uncertainty first
    likely_folds: int  # voxels of the brain that fold with a probability above one half
    fold_place: Place | None  # where folds are most probable
    uncertain_labels: float | None  # share of the labeled voxels whose label is not certain
    mode_place: Place | None  # where the modes differ most; value in mm


def find(result: RegistrationResult) -> Findings:
    """Measure a result once, for the words and for the choice of the slices."""
    brain = np.asarray(result.brain, dtype=bool)
    brain = brain if brain.any() else np.ones(result.grid.shape, dtype=bool)
    std = np.nan_to_num(np.asarray(result.std, dtype=np.float32))
    inside = std[brain]
    spread = bool(inside.max() > 0)
    median, high = (float(value) for value in np.percentile(inside, [50, 95]))
    folds = np.where(brain, np.nan_to_num(np.asarray(result.fold_probability, dtype=np.float32)), 0)
    difference = mode_difference(result.modes)
    seen = in_view(brain)
    return Findings(
        center=_center(brain),
        std_median=median if spread else None,
        std_high=high if spread else None,
        most_uncertain=_highest(std, seen, result) if spread else None,
        regions=rank_regions(result, brain) if spread else (),
        likely_folds=int(np.count_nonzero(folds > 0.5)),
        fold_place=_highest(folds, folds > 0, result) if bool((folds > 0).any()) else None,
        uncertain_labels=_uncertain_share(result.labels),
        mode_place=_highest(difference, seen, result) if difference is not None else None,
    )


def in_view(brain: np.ndarray) -> np.ndarray:
    """The brain without its ends: each slice through a place cuts at least a third of the largest one's area there.

    At the ends, where there is little image to go by, uncertainty is often largest, and a picture shows nothing.

    Args:
        brain: bool [X, Y, Z], not empty.

    Returns:
        bool [X, Y, Z], not empty.
    """
    kept = brain.copy()
    for axis in range(3):
        areas = brain.sum(axis=tuple(other for other in range(3) if other != axis))
        kept &= np.expand_dims(areas >= areas.max() / 3, [other for other in range(3) if other != axis])
    return kept if kept.any() else brain


def mode_distances(modes: Sequence[Mode]) -> list[np.ndarray]:
    """How far each mode's displacement lies from the weighted mean of all, [X, Y, Z] in mm; one after the other."""
    total = sum(mode.weight for mode in modes) or 1.0
    mean = sum(np.float32(mode.weight / total) * mode.displacement for mode in modes)
    return [np.linalg.norm(mode.displacement - mean, axis=0) for mode in modes]


def mode_difference(modes: Sequence[Mode]) -> np.ndarray | None:
    """How far the modes lie apart, [X, Y, Z] in mm: the weighted spread of their displacements about the mean."""
    if len(modes) < 2:
        return None
    total = sum(mode.weight for mode in modes) or 1.0
    squares = [mode.weight / total * np.square(away) for mode, away in zip(modes, mode_distances(modes), strict=True)]
    return np.sqrt(np.sum(squares, axis=0)).astype(np.float32)


def rank_regions(result: RegistrationResult, brain: np.ndarray, count: int = 3) -> tuple[Region, ...]:
    """The structures with the largest mean uncertainty; without labels, the parts of the brain by direction.

    Args:
        result: of the registration.
        brain: where to measure, bool [X, Y, Z].
        count: how many to return.
    """
    if result.labels is not None and result.labels.volumes:
        regions = _structures(result.labels, result.std, result.grid.voxel_volume)
    else:
        regions = _directions(result.std, brain, result.grid)
    return tuple(sorted(regions, key=lambda region: -region.std)[:count])


def _structures(labels: LabelResult, std: np.ndarray, voxel_volume: float) -> list[Region]:
    names = {volume.label: plain_name(volume.name) for volume in labels.volumes}
    flat = np.asarray(labels.label).ravel()
    length = max(names, default=0) + 1
    voxels = np.bincount(flat, minlength=length)
    sums = np.bincount(flat, weights=np.nan_to_num(np.asarray(std, dtype=np.float64)).ravel(), minlength=length)
    return [
        Region(name, float(sums[number] / voxels[number]))
        for number, name in sorted(names.items())
        if number != 0 and voxels[number] * voxel_volume >= _SMALLEST
    ]


def _directions(std: np.ndarray, brain: np.ndarray, grid: Grid) -> list[Region]:
    """The brain in 27 blocks, three along each RAS axis, as far as each holds a hundredth of it."""
    index = np.argwhere(brain)
    world = grid.to_world(index)
    values = np.nan_to_num(np.asarray(std, dtype=np.float64))[brain]
    center, half = _extent(world)
    blocks = np.digitize((world - center) / half, (-1 / 3, 1 / 3))  # (N, 3), each 0, 1 or 2
    codes = blocks @ np.array([9, 3, 1])
    regions = []
    for code in np.unique(codes):
        chosen = codes == code
        if chosen.mean() >= 0.01:
            middle = (blocks[chosen][0] - 1) * (2 / 3)
            name = direction((float(middle[0]), float(middle[1]), float(middle[2]))) + " part of the brain"
            regions.append(Region(name, float(values[chosen].mean())))
    return regions


def _highest(values: np.ndarray, mask: np.ndarray, result: RegistrationResult) -> Place:
    """The maximum in the mask after a little smoothing inside of it, as a place with a name."""
    grid = result.grid
    sigma = _SMOOTHING / grid.spacing
    weight = gaussian_filter(mask.astype(np.float32), sigma)
    smooth = gaussian_filter(np.where(mask, values, 0).astype(np.float32), sigma) / np.maximum(weight, 1e-6)
    x, y, z = (int(i) for i in np.unravel_index(int(np.where(mask, smooth, -np.inf).argmax()), mask.shape))
    world = grid.to_world(np.array([[x, y, z]]))[0]
    return Place(
        (x, y, z),
        (float(world[0]), float(world[1]), float(world[2])),
        _place_name((x, y, z), world, result),
        float(values[x, y, z]),
    )


def _place_name(index: tuple[int, int, int], world: np.ndarray, result: RegistrationResult) -> str:
    """The structure at a place, else the direction from the brain's middle."""
    if result.labels is not None:
        number = int(result.labels.label[index])
        for volume in result.labels.volumes:
            if volume.label == number:
                return plain_name(volume.name)
    brain = np.asarray(result.brain, dtype=bool)
    center, half = _extent(result.grid.to_world(np.argwhere(brain if brain.any() else np.ones_like(brain))))
    x, y, z = (float(value) for value in (world - center) / half)
    return direction((x, y, z)) + " part of the brain"


def _extent(world: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half size (3,) of the box around points (N, 3)."""
    low, high = world.min(0), world.max(0)
    return (low + high) / 2, np.maximum((high - low) / 2, 1e-3)


def _center(mask: np.ndarray) -> tuple[int, int, int]:
    """Center of mass of a mask, by its sums along the axes: no list of all voxels."""
    center = []
    for axis in range(3):
        counts = mask.sum(axis=tuple(other for other in range(3) if other != axis))
        center.append(round(float(np.average(np.arange(mask.shape[axis]), weights=counts))))
    return center[0], center[1], center[2]


def _uncertain_share(labels: LabelResult | None) -> float | None:
    if labels is None:
        return None
    labeled = np.asarray(labels.label) != 0
    return float(np.mean(np.asarray(labels.probability)[labeled] < CERTAIN)) if labeled.any() else None
