"""Which items of a dataset of pairs this process takes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


class EpochSampler(Sampler[int]):
    """Item numbers of a ``RandomPairDataset``, one epoch each time it is iterated, divided among processes.

    Process r of w takes the items r, r + w, r + 2w ... of an epoch. The last few that do not go round are left out, so
    that all processes take the same number of steps. To resume, call :meth:`set_epoch` with the epoch to do next.

    Args:
        dataset: whose length is that of an epoch.
        rank: number of this process; None asks ``torch.distributed``, 0 if it is not in use.
        world_size: number of processes; None likewise.

    Raises:
        ValueError: when rank and world_size do not fit, or an epoch has fewer pairs than there are processes.
    """

    def __init__(self, dataset: Sized, rank: int | None = None, world_size: int | None = None) -> None:
        self.rank, self.world_size = _process(rank, world_size)
        self.epoch_length = len(dataset)
        self.epoch = 0
        if self.epoch_length < self.world_size:
            raise ValueError(f"an epoch of {self.epoch_length} pairs is too short for {self.world_size} processes")

    def __len__(self) -> int:
        return self.epoch_length // self.world_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch (from 0) of the next iteration; it goes on from there by itself."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        start = self.epoch * self.epoch_length + self.rank
        self.epoch += 1
        return iter(range(start, start + len(self) * self.world_size, self.world_size))


class ShardSampler(Sampler[int]):
    """This process's share of a fixed list: every item is in exactly one share, none is repeated to fill up.

    Args:
        dataset: to divide.
        rank: number of this process; None asks ``torch.distributed``, 0 if it is not in use.
        world_size: number of processes; None likewise.
    """

    def __init__(self, dataset: Sized, rank: int | None = None, world_size: int | None = None) -> None:
        rank, world_size = _process(rank, world_size)
        self.items = range(rank, len(dataset), world_size)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


def _process(rank: int | None, world_size: int | None) -> tuple[int, int]:
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world_size is None:
        world_size = torch.distributed.get_world_size() if distributed else 1
    if rank is None:
        rank = torch.distributed.get_rank() if distributed else 0
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, got {rank} instead")
    return rank, world_size
