"""Compressed streams: plain zlib and gzip to any reader, with ISA-L and without it."""

import gzip
import importlib.util
import sys
import zlib

import numpy as np
import pytest

from scripts.files import compression


@pytest.fixture(params=["isal", "zlib"])
def module(request, monkeypatch):
    """The module, also as it is where `isal` is not installed."""
    if request.param == "isal":
        pytest.importorskip("isal")
        return compression
    monkeypatch.setitem(sys.modules, "isal", None)
    spec = importlib.util.spec_from_file_location("compression_without_isal", compression.__file__)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    assert found._gzip_file is gzip.GzipFile
    return found


def test_isal_is_used_where_it_is_installed():
    igzip = pytest.importorskip("isal.igzip")
    assert compression._gzip_file is igzip.IGzipFile


@pytest.mark.parametrize("sizes", [(), (0,), (1,), (70_000, 3, 200_000)])
def test_pieces_become_one_stream(module, sizes):
    pieces = [np.random.default_rng(size).integers(0, 9, size).astype(np.uint8) for size in sizes]
    assert zlib.decompress(module.deflated(pieces)) == b"".join(piece.tobytes() for piece in pieces)


def test_alike_numbers_apart_take_less_space(module):
    few, many = (np.random.default_rng(0).integers(0, high, 50_000).astype(np.uint8) for high in (2, 200))
    assert len(module.deflated([few, many])) < 60_000


def test_a_gzip_file_has_neither_name_nor_time(module, tmp_path):
    content = np.random.default_rng(0).normal(size=100_000).astype(np.float16).tobytes()
    for name in ("a.gz", "b.gz"):
        with module.gzip_writer(tmp_path / name) as file:
            file.write(content[:7])
            file.write(content[7:])
    written = (tmp_path / "a.gz").read_bytes()
    assert written == (tmp_path / "b.gz").read_bytes()
    assert gzip.decompress(written) == content
    assert written[3:8] == bytes(5)  # flags: no name; the time
