"""The result of registering one pair, as arrays on the fixed image's grid: what is written, reported and returned."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scripts.core.grid import Grid


@dataclass
class StructureVolume:
    """Volume of one structure in the fixed image, in mm³, with 95 % intervals.

    `lower` and `upper` are for the volume that another rater would find, `registration` is for the registration's error
    alone. Without a calibration both are what the samples say.
    """

    label: int
    name: str
    mean: float
    lower: float
    upper: float
    fixed: float | None = None  # the volume in the fixed image's own label map, if there is one
    dice: float | None = None  # of the most probable labels against that map
    registration: tuple[float, float] | None = None


@dataclass
class LabelResult:
    """Propagated labels; arrays [X, Y, Z]."""

    label: np.ndarray  # most probable label, integer
    probability: np.ndarray  # its probability, float32
    entropy: np.ndarray  # nats, float32
    volumes: list[StructureVolume]
    fixed_label: np.ndarray | None = None


@dataclass
class Mode:
    """One group of samples, represented by the sample nearest to its center."""

    weight: float  # share of the samples, modes add up to 1
    sample: int  # index of the representative among the proposals
    displacement: np.ndarray  # [3, X, Y, Z], RAS mm, without the alignment, float32
    warped: np.ndarray  # [X, Y, Z]


@dataclass
class RegistrationResult:
    """Everything that one registration found. Arrays are [X, Y, Z] on `grid`, float32 unless said otherwise."""

    moving_name: str
    fixed_name: str
    grid: Grid  # of the fixed image
    alignment: np.ndarray  # (4, 4), from fixed RAS mm to moving RAS mm; identity if nothing was aligned
    fixed: np.ndarray
    moving: np.ndarray  # the moving image after the alignment alone
    warped: np.ndarray  # by the alignment and the posterior's mean
    displacement: np.ndarray  # posterior mean, [3, X, Y, Z], RAS mm, without the alignment
    std: np.ndarray  # of the displacement's length, mm: √(sum of the three variances)
    std_axes: np.ndarray  # [3, X, Y, Z], mm, along RAS
    log_jacobian: np.ndarray  # posterior mean of log det
    fold_probability: np.ndarray
    brain: np.ndarray  # bool: where the fixed image has a brain
    labels: LabelResult | None = None
    modes: list[Mode] = field(default_factory=list)
    diagnostics: dict[str, Any] = field(default_factory=dict)  # as in diagnostics.json
    warnings: list[str] = field(default_factory=list)  # in words, for people
