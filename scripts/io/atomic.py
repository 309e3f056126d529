"""Files that are either whole or not there."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it at the end; removed if anything fails.

    Folders are made. The temporary name ends as `path` does, because most libraries choose the format by it.

    Example:
        >>> with atomic_path(tmp / "a.txt") as part:  # doctest: +SKIP
        ...     part.write_text("whole")
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part-{secrets.token_hex(4)}-{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
