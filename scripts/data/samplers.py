"""Which items of a dataset of pairs this process takes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any

from torch.utils.data import Sampler

from scripts.core.processes import Processes


class EpochSampler(Sampler[int]):
    """Item numbers of a ``RandomPairDataset``, one epoch each time it is iterated, divided among processes.

    Process r of w takes the items r, r + w, r + 2w ... of an epoch. The last few that do not go round are left out, so
    that all processes take the same number of steps. To resume, call :meth:`set_epoch` with the epoch to do next.

    Args:
        process: this one; None asks ``torch.distributed``.

    Raises:
        ValueError: when an epoch has fewer pairs than there are processes.
    """

    def __init__(self, dataset: Sized, process: Processes | None = None) -> None:
        self.process = process or Processes.current()
        self.epoch_length = len(dataset)
        self.epoch = 0
        if self.epoch_length < self.process.size:
            raise ValueError(f"an epoch of {self.epoch_length} pairs is too short for {self.process.size} processes")

    def __len__(self) -> int:
        return self.epoch_length // self.process.size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch (from 0) of the next iteration; it goes on from there by itself."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        rank, size = self.process
        start = self.epoch * self.epoch_length + rank
        self.epoch += 1
        return iter(range(start, start + len(self) * size, size))


class ShardSampler(Sampler[int]):
    """This process's share of a fixed list: every item is in exactly one share, none is repeated to fill up.

    Args:
        dataset: to divide; its length is asked for when the share is, unless it must not be too short.
        process: this one; None asks ``torch.distributed``.
        allow_empty: whether a process may have nothing to do. MONAI's metrics wait for something from everyone.

    Raises:
        ValueError: when a process is left without items although it must not be.
    """

    def __init__(self, dataset: Sized, process: Processes | None = None, allow_empty: bool = True) -> None:
        self.dataset, self.process = dataset, process or Processes.current()
        if not allow_empty and len(dataset) < self.process.size:
            raise ValueError(
                f"{len(dataset)} pairs are too few for {self.process.size} processes: each needs one at least"
            )

    @property
    def items(self) -> range:
        """Numbers of the items of this process."""
        return self.process.share(len(self.dataset))

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


def single(items: Sequence[Any]) -> Any:
    """The one item of a batch as it is, for data loaders whose items are whole pairs."""
    (item,) = items
    return item
