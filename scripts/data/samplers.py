"""Which items of a dataset of pairs this process takes, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from scripts.core.processes import Processes


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
        allow_empty: whether a process may have nothing to do. MONAI's metrics wait for something from everyone.

    Raises:
        ValueError: when rank and world_size do not fit, or a process is left without items although it must not be.
    """

    def __init__(
        self, dataset: Sized, rank: int | None = None, world_size: int | None = None, allow_empty: bool = True
    ) -> None:
        rank, world_size = _process(rank, world_size)
        if not allow_empty and len(dataset) < world_size:
            raise ValueError(f"{len(dataset)} pairs are too few for {world_size} processes: each needs one at least")
        self.items = Processes(rank, world_size).share(len(dataset))

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[int]:
        return iter(self.items)


def _process(rank: int | None, world_size: int | None) -> Processes:
    current = Processes.current()
    given = Processes(current.rank if rank is None else rank, current.size if world_size is None else world_size)
    if not 0 <= given.rank < given.size:
        raise ValueError(f"rank must be in 0..{given.size - 1}, got {given.rank} instead")
    return given
