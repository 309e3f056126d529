"""Which of several processes this is, and what they tell each other. Alone, nothing is sent and nothing waits.

What is told is small (numbers, names, a row of a table) and goes over the CPU, so that it does not matter where a
process computes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, distributed


class Processes(NamedTuple):
    """This process among those that work together; `Processes()` is one that works alone.

    Attributes:
        rank: number of this process.
        size: number of processes.

    Examples:
        >>> Processes(rank=1, size=3).share(8)
        range(1, 8, 3)
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> Processes:
        """As ``torch.distributed`` knows it; alone if it is not in use."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return cls()
        return cls(distributed.get_rank(), distributed.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes files and speaks to the user."""
        return self.rank == 0

    def share(self, length: int) -> range:
        """This process's items of a list: every item is in exactly one share."""
        return range(self.rank, length, self.size)

    def place(self, item: int) -> int:
        """Where this process's item number `item` is in the list that all of them share."""
        return item * self.size + self.rank

    def mean(self, values: Tensor) -> Tensor:
        """Element-wise mean over the processes, the same in all of them; any shape."""
        if self.size == 1:
            return values
        total = values.detach().cpu().clone()
        distributed.all_reduce(total)
        return (total / self.size).to(values.device)

    def gather(self, text: str) -> list[str]:
        """The texts of all processes, by rank."""
        if self.size == 1:
            return [text]
        own = (
            torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
        )
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = own.numel()
        distributed.all_reduce(sizes)
        room = max(int(sizes.max()), 1)
        parts = [torch.empty(room, dtype=torch.uint8) for _ in range(self.size)]
        distributed.all_gather(parts, torch.nn.functional.pad(own, (0, room - own.numel())))
        return [bytes(part[:size].tolist()).decode() for part, size in zip(parts, sizes.tolist(), strict=True)]

    def from_first(self, text: str = "") -> str:
        """The text of the first process."""
        return self.gather(text if self.is_first else "")[0]


ALONE = Processes()
"""The only process."""
