"""Which of several processes this is, and what they tell each other. Alone, nothing is sent and nothing waits.

What is told is small (numbers, names, a row of a table) and goes over the CPU, so that it does not matter where a
process computes.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, distributed


class Processes(NamedTuple):
    """This process among those that work together; `Processes()` is one that works alone."""

    rank: int = 0  # number of this process
    size: int = 1  # number of processes

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
        texts = [""] * self.size
        distributed.all_gather_object(texts, text)
        return texts

    def from_first(self, text: str = "") -> str:
        """The text of the first process."""
        return self.gather(text if self.is_first else "")[0]


ALONE = Processes()
"""The only process."""
