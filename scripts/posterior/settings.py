"""How a pair is registered, and how long each part of it took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from scripts.core.checked import Number, Truth, Whole, checked
from scripts.inference.refine import Parts

Count = Annotated[Whole, Field(ge=0)]


@checked
class Settings:
    """How a pair is registered.

    Attributes:
        num_proposals: drawn and weighted (decision 13).
        num_samples: resampled of them.
        temperature: T of the weights (decision 10), 0 for all alike; None for the model's own, see
            :meth:`~scripts.inference.model.Model.weighting`.
        seed: of the proposals and everything else that is random.
        refine_steps: gradient steps on this pair before drawing; 0 for none.
        refine_parts: `mean`, or `all` for L and R as well.
        detail_steps: gradient steps after that on images of twice the resolution, where the files have it; 0 for none.
        num_modes: groups of samples to show; 0 for none.
        chunk: proposals in memory at a time; None for what fits.
        progress: True for progress bars, `log` for lines in the log, False for silence.
    """

    num_proposals: Annotated[Whole, Field(ge=2)] = 1200
    num_samples: Annotated[Whole, Field(ge=1)] = 80
    temperature: Annotated[Number, Field(ge=0)] | None = None
    seed: Annotated[Whole, Field(ge=0, le=2**63 - 1)] = 0
    refine_steps: Count = 0
    refine_parts: Parts = "mean"
    detail_steps: Count = 0
    num_modes: Count = 2
    chunk: Annotated[Whole, Field(ge=1)] | None = None
    progress: Annotated[Truth | Literal["log"], Field(description="true, false or log")] = True


@dataclass
class Clock:
    """Seconds of each part of the work."""

    seconds: dict[str, float] = field(default_factory=dict)
    start: float = field(default_factory=time.perf_counter)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add what happens inside to a part."""
        start = time.perf_counter()
        yield
        self.add(part, start)

    def add(self, part: str, start: float) -> None:
        """Add what has passed since `start` to a part."""
        self.seconds[part] = round(self.seconds.get(part, 0.0) + time.perf_counter() - start, 3)

    @property
    def since_start(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self.start
