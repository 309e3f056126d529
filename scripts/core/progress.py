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
        logger.info("%s: 0 of %d", title, total)
    with tqdm(total=total, desc=title, disable=how is not True, leave=False) as bar:
        before = 0

        def advance(done: int) -> None:
            nonlocal before
            bar.update(done - before)
            if how == "log" and LINES * done // total > LINES * before // total:
                logger.info("%s: %d of %d", title, done, total)
            before = done

        yield advance
