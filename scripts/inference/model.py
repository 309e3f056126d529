"""A model that knows itself: network, posterior, resolution, objective, and what was fitted after training.

A file of weights is the network's `state_dict`, as MONAI's tools expect it, and in its metadata all that these numbers
mean, as plain data. It is all that inference needs; a config that says otherwise is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import nn

from scripts.core.checkpoint import DESCRIPTION, described_state, save_atomically
from scripts.core.described import Described, make
from scripts.core.errors import DataError
from scripts.inference.objectives import Objective, SIRObjective
from scripts.networks.layout import Layout
from scripts.networks.weight_scale import trained_scale
from scripts.registration.target import Target

FORMAT, VERSION = "structured-sir model", 1
FACTS: dict[str, tuple[str, ...]] = {
    "voxel_mm": ("voxel_mm",),
    "channels": ("network", "backbone", "channels"),
    **{name: ("network", name) for name in ("coarse_mean", "factor_level", "column_rate")},
    **{name: ("network", "layout", name) for name in ("cross_channel", "rank", "initial_std", "dominance")},
    "sigma": ("target", "likelihood", "sigma"),
    "ncc_window": ("target", "likelihood", "window"),
    "prior_weight": ("target", "prior", "weight"),
    "mean_prior_weight": ("target", "mean_prior", "weight"),
}
"""Where a description has what configs/train.yaml has under these names."""


class Weighting(NamedTuple):
    """How log-weights become weights (decision 10)."""

    temperature: float
    scale: float | None  # σ_α; None for the spread of the pair's own log-weights


@dataclass(frozen=True)
class Fitted:
    """What `run calibration` has found out after training, and with what."""

    temperature: float
    scale: float | None  # None for the spread of each pair's own log-weights
    notes: dict[str, Any] = field(default_factory=dict)  # criterion, pairs, refinement …


class Model:
    """A network and what its output means.

    Args:
        network: from image pairs [B, 2, X, Y, Z] to raw output; its `layout` reads that.
        objective: of its training, with the posterior.
        voxel_mm: edge of the voxels that it works on.
        fitted: what was fitted after training; None for nothing.
        calibration: what was fitted on people with labels, as plain data, see :mod:`scripts.posterior.calibration`.
        path: of the file that it is from, for people; None for none.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        voxel_mm: float = 2.0,
        fitted: Fitted | None = None,
        path: str | Path | None = None,
        calibration: Mapping[str, Any] | None = None,
    ) -> None:
        if not voxel_mm > 0:
            raise DataError(f"--voxel_mm must be positive, got {voxel_mm!r}")
        self.network, self.objective, self.voxel_mm = network, objective, float(voxel_mm)
        self.fitted, self.path, self.calibration = fitted, path, dict(calibration or {})
        self.measured = True  # σ_α in the network's weights is one of this posterior

    @property
    def layout(self) -> Layout:
        """How the network's output is read."""
        return self.network.layout  # type: ignore[return-value]

    @property
    def target(self) -> Target:
        """The posterior."""
        return self.objective.target

    @property
    def stride(self) -> int:
        """Image sizes must be multiples of it."""
        return int(self.network.stride)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """What it is called in files and messages."""
        return str(self.path or type(self.network).__name__)

    def to(self, device: torch.device | str) -> Self:
        """Move it, and get it ready for inference."""
        self.network.to(device).eval()
        self.objective.to(device)
        return self

    def weighting(self, temperature: float | None = None) -> Weighting:
        """How samples are weighed: as asked for, else as fitted, else as the training's objective has it.

        σ_α is the fitted one or what a training by SIR left in the weights. The other objectives have none: their
        samples are weighed, if at all, by the spread of the pair's own log-weights.
        """
        known = self.measured and isinstance(self.objective, SIRObjective)
        scale = trained_scale(self.network) if known else None
        if self.fitted is not None:
            scale = self.fitted.scale
        if temperature is None:
            temperature = self.objective.temperature if self.fitted is None else self.fitted.temperature
        return Weighting(temperature, scale)

    def with_target(self, **parts: Any) -> Model:
        """The same network with another likelihood or prior; what was fitted with the old one is forgotten."""
        changed = {name: part for name, part in parts.items() if part is not None}
        if not changed:
            return self
        old = self.target
        target = Target(**{"likelihood": old.likelihood, "prior": old.prior, "transform": old.transform, **changed})
        objective = make(self.objective.settings(), Objective, target=target, layout=self.layout)  # type: ignore[type-abstract]
        model = Model(self.network, objective, self.voxel_mm, path=self.path, calibration=self.calibration)
        model.measured = False
        return model

    def description(self) -> dict[str, Any]:
        """All that the weights' meaning depends on, as plain data. Raises DataError if a part cannot be stored."""
        if not isinstance(self.network, Described):
            raise DataError(f"{type(self.network).__name__} cannot be stored with what its output means")
        return {
            "format": FORMAT,
            "version": VERSION,
            "voxel_mm": self.voxel_mm,
            "network": self.network.settings(),
            "target": self.target.settings(),
            "objective": self.objective.settings(),
            "fitted": None if self.fitted is None else asdict(self.fitted),
            "calibration": self.calibration,
        }

    def check(self, given: Mapping[str, Any]) -> None:
        """Refuse facts of a config or a command line that contradict the weights. Raises DataError with both values."""
        facts = self._facts()
        for name, value in given.items():
            if name not in facts:
                continue
            known = facts[name]
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, known))
            if not (math.isclose(value, known, rel_tol=1e-6) if numbers else value == known):
                raise DataError(f"--{name} {value}: the weights {self.name} were trained with {known}")

    def _facts(self) -> dict[str, Any]:
        """What the weights were trained with, by the names of configs/train.yaml, as far as they have it."""
        described, found = self.description(), {}
        for name, place in FACTS.items():
            value: Any = described
            for key in place:
                value = value.get(key) if isinstance(value, Mapping) else None
            found[name] = value
        return found

    def save(self, path: str | Path, **more: Any) -> None:
        """Write weights and description, atomically. Raises CheckpointError if it cannot be written."""
        if more:
            content = {"model": dict(self.network.state_dict()), DESCRIPTION: self.description(), **more}
            save_atomically(content, path)
        else:
            save_atomically(described_state(self.network, self.description()), path)
