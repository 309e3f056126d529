"""Errors that a person is to read: one line that says which file, in which role, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path


class DataError(ValueError):
    """Data that cannot be used as they are. The message is for the person who has to repair them."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be read, written, or does not fit; says which and why."""

    def __init__(self, path: str | Path, reason: str) -> None:
        super().__init__(f"checkpoint {path}: {reason}")


def shorten(names: list[str], limit: int = 5) -> str:
    """The first few names, and how many more there are: fits on a line however long the list is."""
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def first_line(error: BaseException) -> str:
    """What an error says in its first line, else its name."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
