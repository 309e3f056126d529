"""How far the work is: one line of a terminal, few lines in a log, or nothing."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, Literal

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from scripts.core.processes import Processes

logger = logging.getLogger(__name__)

LINES = 5
"""Lines that a part of the work leaves in a log, the last one at its end."""
_FORMAT = "{desc}: {percentage:3.0f}%|{bar:20}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
"""A bar of one width, so that notes of several lengths do not move it."""

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


class Progress:
    """The display of one part of the work; to be called with the number done so far.

    Parts of a part, such as the steps of a registration in a list of pairs, are noted in its line and leave nothing in
    a log. Where there is no terminal, lines in the log take the place of the bar. Of several processes, only the first
    one shows anything.

    Args:
        how: True for a bar, `log` for lines in the log, False for nothing.
        done: how many are done already; they do not count for the speed.
    """

    def __init__(self, title: str, total: int, how: bool | Literal["log"] = True, done: int = 0) -> None:
        self.title, self.total, self.done = title, max(total, 1), done
        self._before, self._began, self._note = done, time.perf_counter(), ""
        self._open = ExitStack()
        self._bar: Any = None
        self._outer = _shown.get()
        self._visible = how is not False and Processes.current().is_first
        self._logs = self._visible and self._outer is None and (how == "log" or not sys.stderr.isatty())
        if self._visible and self._outer is None:
            _shown.set(self)
            if self._logs:
                logger.info("%s: %d of %d", title, done, total)
            else:
                self._bar = tqdm(
                    total=self.total, desc=title, initial=done, bar_format=_FORMAT, dynamic_ncols=True, smoothing=0,
                    leave=False, file=sys.stderr,
                )  # fmt: skip
                self._open.enter_context(logging_redirect_tqdm())  # what is logged stands above the line
                self._open.callback(self._bar.close)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, done: int, note: str | None = None, fresh: bool = True) -> None:
        """Show how many are done, with a note; with `fresh` False the last ones were found done and took no time."""
        if not fresh:
            self._before += done - self.done
        before, self.done = self.done, done
        self._note = self._note if note is None else note
        if self._visible and self._outer is not None:
            self._outer._tell(f"{self.title} {done}/{self.total}")
        elif self._bar is not None:
            self._bar.initial = self._before
            self._tell()
            self._bar.update(done - before)
        elif self._logs and LINES * done // self.total > LINES * before // self.total:
            left = "" if done >= self.total or done <= self._before else f", {tqdm.format_interval(self._left())} left"
            logger.info("%s: %d of %d%s", self.title, done, self.total, left)

    def close(self) -> None:
        """Take the line away; also after an interruption, and more than once."""
        self._open.close()
        if self._visible and self._outer is not None:
            self._outer._tell()
        elif _shown.get() is self:
            _shown.set(None)

    def _left(self) -> float:
        """Seconds until the end, at the speed so far."""
        return (time.perf_counter() - self._began) * (self.total - self.done) / (self.done - self._before)

    def _tell(self, part: str = "") -> None:
        if self._bar is not None:
            self._bar.set_postfix_str(", ".join(filter(None, (self._note, part))), refresh=bool(part))


def say(text: str) -> None:
    """A line for the user, above what is shown of the progress."""
    tqdm.write(text, file=sys.stderr)
