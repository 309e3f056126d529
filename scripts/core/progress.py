"""How far the work is: a bar for a terminal, lines for the log of a server, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from tqdm import tqdm

logger = logging.getLogger(__name__)

LINES = 5
"""Lines that a part of the work leaves in a log, the last one at its end."""


@contextmanager
def progress_of(title: str, total: int, how: bool | Literal["log"] = True) -> Iterator[Callable[[int], None]]:
    """Show the progress of one part of the work.

    Args:
        title: what is being done.
        total: how many there are to do.
        how: True for a bar, `log` for lines in the log, False for nothing.

    Yields:
        A function to be called with the number done so far.
    """
    if how == "log":
        yield _LogLines(title, total)
        return
    with tqdm(total=total, desc=title, disable=not how, leave=False) as bar:

        def advance(done: int) -> None:
            bar.update(done - bar.n)

        yield advance


class _LogLines:
    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self._said = title, total, 0
        logger.info("%s: 0 of %d", title, total)

    def __call__(self, done: int) -> None:
        """Say so each time that another fifth is done."""
        part = LINES * done // max(self.total, 1)
        if part > self._said:
            self._said = part
            logger.info("%s: %d of %d", self.title, done, self.total)
