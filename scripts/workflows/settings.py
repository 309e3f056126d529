"""How a pair is registered, and how long each part of it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from scripts.data.errors import DataError
from scripts.inference.refine import Parts


@dataclass
class Settings:
    """How a pair is registered.

    Attributes:
        num_proposals: drawn and weighted (decision 13).
        num_samples: resampled of them.
        temperature: T of the weights (decision 10).
        seed: of the proposals and everything else that is random.
        refine_steps: gradient steps on this pair before drawing; 0 for none.
        refine_parts: `mean`, or `all` for L and R as well.
        num_modes: groups of samples to show; 0 for none.
        chunk: proposals in memory at a time; None for what fits.
        progress: True for progress bars, `log` for lines in the log, False for silence.
    """

    num_proposals: int = 1200
    num_samples: int = 80
    temperature: float = 3.0
    seed: int = 0
    refine_steps: int = 0
    refine_parts: Parts = "mean"
    num_modes: int = 2
    chunk: int | None = None
    progress: bool | Literal["log"] = True

    def __post_init__(self) -> None:
        if self.num_proposals < 2 or not self.num_samples >= 1:
            raise DataError(
                f"--num_proposals must be at least 2 and --num_samples at least 1, "
                f"got {self.num_proposals} and {self.num_samples}"
            )
        if self.refine_steps < 0 or self.refine_parts not in ("mean", "all"):
            raise DataError(
                f"--refine_steps must not be negative and --refine_parts must be mean or all, "
                f"got {self.refine_steps} and {self.refine_parts!r}"
            )


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
