"""What was found out on people with labels, and what it makes of a registration: intervals, errors of points.

It was fitted, not derived: it holds for people and scans like those it was fitted on, and is called calibrated for
that, not guaranteed. A model file keeps it as plain data under `calibration`; without it there is what samples say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np

LEVELS = (50, 80, 95)
"""Of intervals, in percent."""
NORMAL = {50: 0.6745, 80: 1.2816, 95: 1.96}
"""Half widths of the intervals of a normal distribution, in standard deviations."""


class Interval(NamedTuple):
    """Of a volume, in mm³."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Kind:
    """Errors of one kind of structure, as differences of logarithms of volumes.

    Attributes:
        bias: mean of log(true / expected).
        slope: of that error per log(expected / moving): a registration does not change volumes as much as it should.
        floor: standard deviation beside the samples'.
        rater: standard deviation of another labeling of the same person.
    """

    bias: float = 0.0
    slope: float = 0.0
    floor: float = 0.0
    rater: float = 0.0


@dataclass(frozen=True)
class VolumeErrors:
    """How far volumes are from their expectation under the samples.

    With v the expected volume, m that of the moving person's structure (in the fixed person's space) and s the standard
    deviation of its logarithm over the samples,

        log V ~ log v + bias + slope · log(v / m) + q · √(s² + floor²),

    q being the quantiles of the standardized errors that were seen. `floor` includes the differences between raters;
    the interval of the registration alone leaves them out.

    Attributes:
        kinds: by the name of the structure without its side.
        other: of structures that were not among those.
        quantiles: of |standardized error|, by level in percent.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    other: Kind = field(default_factory=Kind)
    quantiles: Mapping[int, float] = field(default_factory=lambda: dict(NORMAL))

    def center(self, name: str, expected: float, moving: float) -> float:
        """The volume that is to be expected, mm³."""
        kind = self._kind(name)
        change = math.log(expected / moving) if expected > 0 and moving > 0 else 0.0
        return expected * math.exp(kind.bias + kind.slope * change)

    def deviation(self, name: str, log_std: float, rater: bool) -> float:
        """Standard deviation of the volume's logarithm, of another rater's or of the registration alone."""
        kind = self._kind(name)
        square = log_std**2 + kind.floor**2
        # What raters differ by cannot be all of it: at least the samples' own spread remains.
        return math.sqrt(square if rater else max(square - kind.rater**2, log_std**2, 0.09 * square))

    def interval(self, name: str, center: float, log_std: float, level: int = 95, rater: bool = True) -> Interval:
        """Where the volume lies with a probability of `level` percent."""
        factor = math.exp(self.quantiles[level] * self.deviation(name, log_std, rater))
        return Interval(center / factor, center * factor)

    def _kind(self, name: str) -> Kind:
        return self.kinds.get(without_side(name), self.other)


@dataclass(frozen=True)
class PointErrors:
    """How far points are from where the samples put them: covariance = scale² · samples' + floor² · 1, mm²."""

    scale: float = 1.0
    floor_mm: float = 0.0

    def covariance(self, samples: np.ndarray) -> np.ndarray:
        """Covariances (P, 3, 3) of points of those of the samples."""
        return self.scale**2 * samples + self.floor_mm**2 * np.eye(3)


@dataclass(frozen=True)
class Calibration:
    """All of it, and with whom.

    Attributes:
        spread: settings of the :class:`~scripts.posterior.spread.Spread` that it belongs to.
        notes: people, pairs, commands: for those who ask.
    """

    spread: Mapping[str, Any] = field(default_factory=dict)
    volumes: VolumeErrors | None = None
    points: PointErrors | None = None
    failure: Mapping[str, Any] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """From the plain data of a model file."""
        parts = dict(content)
        if volumes := parts.get("volumes"):
            kinds = {name: Kind(**kind) for name, kind in volumes["kinds"].items()}
            quantiles = {int(level): value for level, value in volumes["quantiles"].items()}
            parts["volumes"] = VolumeErrors(kinds, Kind(**volumes["other"]), quantiles)
        if points := parts.get("points"):
            parts["points"] = PointErrors(**points)
        return cls(**parts)

    def for_spread(self, kind: str) -> Calibration:
        """Itself for samples of the spread that it was fitted with; nothing for others."""
        return self if self.spread.get("kind") == kind else Calibration()

    def plain(self) -> dict[str, Any]:
        """As a model file keeps it."""
        content = asdict(self)
        if self.volumes is not None:
            quantiles = {str(level): value for level, value in self.volumes.quantiles.items()}
            content["volumes"] = {**asdict(self.volumes), "quantiles": quantiles}
        return content


def without_side(name: str) -> str:
    """A structure's name without left or right, in one way of writing: `Left-Hippocampus` is `hippocampus`."""
    words = name.lower().replace("_", "-").replace(" ", "-").split("-")
    return "-".join(word for word in words if word not in ("left", "right", "lh", "rh", "ctx"))
