"""Where numba may keep what it compiles."""

import os
from pathlib import Path

import pytest

from scripts.core import cache


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """Neither the code's folder nor the user's can be written."""
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cache.os, "access", lambda path, mode: Path(path).is_relative_to(tmp_path))
    return tmp_path


def test_a_folder_is_named_only_if_there_is_none(nowhere, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(nowhere / "home/cache"))
    cache.give_numba_a_cache()
    assert cache.VARIABLE not in os.environ
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    cache.give_numba_a_cache()
    folder = Path(os.environ[cache.VARIABLE])
    assert folder.is_dir()
    assert folder.parent == nowhere
    assert folder.stat().st_mode & 0o077 == 0


def test_one_that_was_chosen_stays(nowhere, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, "/chosen")
    cache.give_numba_a_cache()
    assert os.environ[cache.VARIABLE] == "/chosen"


def test_a_folder_of_somebody_else_is_not_used(nowhere, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    own = os.getuid()
    monkeypatch.setattr(cache.os, "getuid", lambda: own + 1)
    cache.give_numba_a_cache()
    folder = Path(os.environ[cache.VARIABLE])
    assert folder.is_dir()
    assert folder.name != f"structured-sir-numba-{own + 1}"
