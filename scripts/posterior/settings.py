"""How a pair is registered, and how long each part of it took."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

from scripts.core.errors import DataError
from scripts.inference.refine import Parts

TEMPERATURE = 3.0
"""T of training (decision 10), for weights that were not calibrated."""


@dataclass
class Settings:
    """How a pair is registered.

    Attributes:
        num_proposals: drawn and weighted (decision 13).
        num_samples: resampled of them.
        temperature: T of the weights (decision 10), 0 for all alike; None for the one that `run calibration` left in
            the network's weights, or 3 if it left none.
        seed: of the proposals and everything else that is random.
        refine_steps: gradient steps on this pair before drawing; 0 for none.
        refine_parts: `mean`, or `all` for L and R as well.
        detail_steps: gradient steps after that on images of twice the resolution, where the files have it; 0 for none.
        num_modes: groups of samples to show; 0 for none.
        chunk: proposals in memory at a time; None for what fits.
        progress: True for progress bars, `log` for lines in the log, False for silence.
    """

    num_proposals: int = 1200
    num_samples: int = 80
    temperature: float | None = None
    seed: int = 0
    refine_steps: int = 0
    refine_parts: Parts = "mean"
    detail_steps: int = 0
    num_modes: int = 2
    chunk: int | None = None
    progress: bool | Literal["log"] = True

    def __post_init__(self) -> None:
        smallest = {"num_proposals": 2, "num_samples": 1}  # of others, 0 does
        for name in ("num_proposals", "num_samples", "seed", "refine_steps", "detail_steps", "num_modes"):
            least = smallest.get(name, 0)
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise DataError(f"--{name} must be a whole number of at least {least}, got {value!r}")
        if self.seed >= 2**63:
            raise DataError(f"--seed must be below 2^63, got {self.seed}")
        known = self.temperature is not None
        if known and not (isinstance(self.temperature, int | float) and 0 <= self.temperature < math.inf):
            raise DataError(f"--temperature must be a number of at least 0, got {self.temperature!r}")
        if self.refine_parts not in get_args(Parts):
            raise DataError(f"--refine_parts must be {' or '.join(get_args(Parts))}, got {self.refine_parts!r}")


@dataclass
class Clock:
    """Seconds of each part of the work."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add what happens inside to a part."""
        start = time.perf_counter()
        yield
        self.seconds[part] = round(self.seconds.get(part, 0.0) + time.perf_counter() - start, 3)
