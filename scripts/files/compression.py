"""Compressing what is written: gzip files and zlib streams, by ISA-L where it is installed.

Compression used to take most of the time of writing. ISA-L (the package `isal`) makes files of the same format and
about the same size in a fifth of the time; without it Python's own modules do the same, more slowly.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_LEVEL = 1
_gzip_file: Callable[..., gzip.GzipFile] = gzip.GzipFile
_compressor: Callable[[int], Any] = zlib.compressobj
with suppress(ImportError):
    from isal import igzip, isal_zlib

    # ISA-L counts from 0 to 3. Its 2 makes fields as large as zlib's 1 does; 1 is hardly faster, 3 hardly smaller.
    _LEVEL, _gzip_file, _compressor = 2, igzip.IGzipFile, isal_zlib.compressobj


@contextmanager
def gzip_writer(path: Path) -> Iterator[gzip.GzipFile]:
    """A gzip file to be written; the same content gives the same bytes, whatever the file's name and the time."""
    with path.open("wb") as file, _gzip_file("", "wb", _LEVEL, file, mtime=0) as compressed:
        yield compressed


def deflated(pieces: Iterable[Any]) -> bytes:
    """Buffers, each of numbers that are alike, as one zlib stream: the code (Huffman's) starts anew with each."""
    compressor = _compressor(_LEVEL)
    out = []
    for piece in pieces:
        out += [compressor.compress(piece), compressor.flush(zlib.Z_SYNC_FLUSH)]
    return b"".join([*out, compressor.flush()])
