"""Files that are either whole or not there: the one way in which this bundle writes."""

from __future__ import annotations

import csv
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from scripts.core.errors import DataError

PART = ".part-"
"""How names of files and folders begin that are not finished."""


@contextmanager
def atomic_path(path: str | Path, durable: bool = False) -> Iterator[Path]:
    """A temporary name beside `path`, renamed to it at the end; removed if anything fails.

    Folders are made. The temporary name ends as `path` does, because most libraries choose the format by it.

    Args:
        durable: wait until the content is on the disk before the old file goes, so that a power failure cannot take
            both. For what took hours to compute.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(path)
    try:
        yield part
        if durable:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """A name beside `path` that nobody else uses."""
    return path.with_name(f"{PART}{secrets.token_hex(4)}-{path.name}")


def put_in_place(part: Path, folder: Path, keep: Iterable[str] = ()) -> None:
    """Give a finished folder its final name.

    Args:
        part: the finished folder, beside its final name.
        folder: the final name. What has it goes.
        keep: names of entries of the earlier folder that move over, where the new one has none of that name. They move
            last: if that fails, what is left of the earlier folder stays, hidden, beside the new one.
    """
    if not folder.exists():
        part.replace(folder)
        return
    old = folder.with_name(f".old-{secrets.token_hex(4)}-{folder.name}")
    folder.replace(old)
    part.replace(folder)
    for name in keep:
        if not (folder / name).exists():
            (old / name).replace(folder / name)
    shutil.rmtree(old, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text, durably."""
    with atomic_path(path, durable=True) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """`atomic_path` for files that a person has asked for: a DataError says why the system refuses to write."""
    try:
        with atomic_path(path) as part:
            yield part
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = f"{error.filename} is a file, not a folder"
        raise DataError(
            f"{path}: could not be written ({reason}); choose another output folder or make room for it"
        ) from error


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file that a person has asked for."""
    with writing(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)


def check_writable(folder: str | Path) -> None:
    """Find out before the work why a folder cannot be made or written to (DataError); nothing is made here."""
    folder = Path(folder).absolute()
    nearest = next(place for place in (folder, *folder.parents) if place.exists() or place.is_symlink())
    if not nearest.is_dir():
        raise DataError(f"cannot write to {folder}: {nearest} is a file, not a folder; choose another --output_dir")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise DataError(f"cannot write to {folder}: no permission to write in {nearest}; choose another --output_dir")
