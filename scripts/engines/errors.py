"""Named errors of training and of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class NonFiniteTrainingError(RuntimeError):
    """A loss or gradient is NaN or infinite; the weights on disk are from before it."""

    def __init__(self, what: str, iteration: int, pairs: Sequence[str]) -> None:
        super().__init__(
            f"{what} became NaN or infinite in iteration {iteration}, at the pair {'; '.join(pairs)}. "
            "The checkpoints on disk are finite and from before; look at these images, or lower the learning rate"
        )


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, written, or does not fit; says which and why."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"checkpoint {path}: {reason}")


class ProcessError(RuntimeError):
    """Several processes cannot work together; says what is wrong with how they were started."""
