"""The numbers behind the report's words: where the result is least certain, where it folds, how its modes differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import center_of_mass, gaussian_filter

from scripts.core.grid import Grid
from scripts.posterior.result import LabelResult, Mode, RegistrationResult
from scripts.report.names import direction, plain_names

CERTAIN = 0.95
"""A label with at least this probability counts as certain."""

_SMALLEST = 100.0
"""Structures below this volume (mm³) are not ranked: a mean over a few voxels says little."""

_SMOOTHING = 3.0
"""Standard deviation in mm of the filter before a maximum is sought, so that a single voxel does not decide."""


@dataclass(frozen=True)
class Place:
    """A voxel of interest: array index, RAS mm, a name for people, and the value there."""

    index: tuple[int, ...]
    world: tuple[float, ...]
    name: str
    value: float

    @property
    def coordinates(self) -> str:
        """Where it lies, in whole millimeters."""
        return f"({', '.join(f'{round(value):d}' for value in self.world)}) mm RAS".replace("-", "−")


@dataclass(frozen=True)
class Region:
    """A structure or a part of the brain with its mean uncertainty in mm."""

    name: str
    std: float


@dataclass(frozen=True)
class Findings:
    """What the arrays of a result say, as numbers; None where there is nothing to measure."""

    center: tuple[int, ...]  # index of the brain's center of mass
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
    brain = brain_of(result)
    std = np.nan_to_num(result.std)
    median, high = (float(value) for value in np.percentile(std[brain], [50, 95]))
    spread = bool(std[brain].max() > 0)
    folds = np.where(brain, np.nan_to_num(result.fold_probability), 0)
    difference = mode_difference(result.modes)
    seen = in_view(brain)
    return Findings(
        center=tuple(round(float(middle)) for middle in center_of_mass(brain)),
        std_median=median if spread else None,
        std_high=high if spread else None,
        most_uncertain=_highest(std, seen, result) if spread else None,
        regions=_least_certain_regions(result) if spread else (),
        likely_folds=int(np.count_nonzero(folds > 0.5)),
        fold_place=_highest(folds, folds > 0, result) if folds.any() else None,
        uncertain_labels=_uncertain_share(result.labels),
        mode_place=_highest(difference, seen, result) if difference is not None else None,
    )


def brain_of(result: RegistrationResult) -> np.ndarray:
    """Where the fixed image has a brain, bool [X, Y, Z]; everywhere if none was found."""
    return result.brain if result.brain.any() else np.ones_like(result.brain)


def in_view(brain: np.ndarray) -> np.ndarray:
    """The brain without its ends: each slice through a place cuts at least a third of the largest one's area there.

    At the ends, where there is little image to go by, uncertainty is often largest, and a picture shows nothing.
    Both are bool [X, Y, Z] and not empty.
    """
    kept = brain.copy()
    for others in ((1, 2), (0, 2), (0, 1)):
        areas = brain.sum(axis=others, keepdims=True)
        kept &= areas >= areas.max() / 3
    return kept if kept.any() else brain


def mode_difference(modes: Sequence[Mode]) -> np.ndarray | None:
    """How far the modes lie apart, [X, Y, Z] in mm: the weighted spread of their displacements about the mean."""
    if len(modes) < 2:
        return None
    mean = sum(np.float32(mode.weight) * mode.displacement for mode in modes)
    squares = [mode.weight * np.square(np.linalg.norm(mode.displacement - mean, axis=0)) for mode in modes]
    return np.sqrt(np.sum(squares, axis=0)).astype(np.float32)


def _least_certain_regions(result: RegistrationResult) -> tuple[Region, ...]:
    """The three structures with the largest mean uncertainty; without labels, the parts of the brain by direction."""
    std = np.nan_to_num(result.std.astype(np.float64))
    if result.labels is not None and result.labels.volumes:
        regions = _structures(result.labels, std, result.grid.voxel_volume)
    else:
        regions = _parts(brain_of(result), std, result.grid)
    return tuple(sorted(regions, key=lambda region: -region.std)[:3])


def _structures(labels: LabelResult, std: np.ndarray, voxel_volume: float) -> list[Region]:
    names = plain_names(labels.volumes)
    voxels = np.bincount(labels.label.ravel(), minlength=max(names) + 1)
    sums = np.bincount(labels.label.ravel(), weights=std.ravel())
    large = (number for number in sorted(names) if number != 0 and voxels[number] * voxel_volume >= _SMALLEST)
    return [Region(names[number], float(sums[number] / voxels[number])) for number in large]


def _parts(brain: np.ndarray, std: np.ndarray, grid: Grid) -> list[Region]:
    """The brain in 27 blocks, three along each RAS axis, as far as each holds a hundredth of it."""
    world, values = grid.to_world(np.argwhere(brain)), std[brain]
    center, half = _extent(world)
    blocks = np.digitize((world - center) / half, (-1 / 3, 1 / 3))  # (N, 3), each 0, 1 or 2
    codes = blocks @ np.array([9, 3, 1])
    regions = []
    for code in np.unique(codes):
        chosen = codes == code
        if chosen.mean() >= 0.01:
            middle = (blocks[chosen][0] - 1) * (2 / 3)
            regions.append(Region(_part_name(middle), float(values[chosen].mean())))
    return regions


def _highest(values: np.ndarray, mask: np.ndarray, result: RegistrationResult) -> Place:
    """The maximum in the mask after a little smoothing inside of it, as a place with a name."""
    sigma = _SMOOTHING / result.grid.spacing
    weight = gaussian_filter(mask.astype(np.float32), sigma)
    smooth = gaussian_filter(np.where(mask, values, 0).astype(np.float32), sigma) / np.maximum(weight, 1e-6)
    highest = np.where(mask, smooth, -np.inf).argmax()
    index = tuple(int(i) for i in np.unravel_index(highest, mask.shape))
    world = result.grid.to_world(np.array([index]))[0]
    return Place(index, tuple(world.tolist()), _place_name(index, world, result), float(values[index]))


def _place_name(index: tuple[int, ...], world: np.ndarray, result: RegistrationResult) -> str:
    """The structure at a place, else the direction from the brain's middle."""
    if result.labels is not None:
        name = plain_names(result.labels.volumes).get(int(result.labels.label[index]))
        if name is not None:
            return name
    center, half = _extent(result.grid.to_world(np.argwhere(brain_of(result))))
    return _part_name((world - center) / half)


def _part_name(offset: np.ndarray) -> str:
    return f"{direction(offset.tolist())} part of the brain"


def _extent(world: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Middle and half size (3,) of the box around points (N, 3)."""
    low, high = world.min(0), world.max(0)
    return (low + high) / 2, np.maximum((high - low) / 2, 1e-3)


def _uncertain_share(labels: LabelResult | None) -> float | None:
    if labels is None:
        return None
    labeled = labels.label != 0
    return float(np.mean(labels.probability[labeled] < CERTAIN)) if labeled.any() else None
