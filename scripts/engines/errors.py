"""Named errors of training."""

from __future__ import annotations

from collections.abc import Sequence


class NonFiniteTrainingError(RuntimeError):
    """A loss or gradient is NaN or infinite; the weights on disk are from before it."""

    def __init__(self, what: str, iteration: int, pairs: Sequence[str]) -> None:
        super().__init__(
            f"{what} became NaN or infinite in iteration {iteration}, at the pair {'; '.join(pairs)}. "
            "The checkpoints on disk are finite and from before; look at these images, or lower the learning rate"
        )


class ProcessError(RuntimeError):
    """Several processes cannot work together; says what is wrong with how they were started."""
