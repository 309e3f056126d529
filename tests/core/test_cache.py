"""Where numba keeps what it compiles."""

import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numba
import pytest

from scripts.core import cache

REPOSITORY = Path(cache.__file__).parents[2]
KERNEL = """
from numba import njit
from scripts.registration.backends.helper import helper

@njit(cache=True)
def kernel(x):
    return helper(x)
"""
HELPER = """
from numba import njit

@njit
def helper(x):
    return x + {}
"""


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A user's cache and a folder for temporary files, and nothing chosen."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)
    monkeypatch.setenv(cache.VARIABLE, "")
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


@pytest.fixture
def no_home(home, monkeypatch):
    (home / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "file/none"))
    return home


@pytest.fixture
def scripts(tmp_path):
    """Sources of kernels in the folders of the real ones."""
    for part in ("gaussian", "registration"):
        shutil.copytree(REPOSITORY / "scripts" / part / "backends", tmp_path / "scripts" / part / "backends")
    return tmp_path / "scripts"


def given(*args) -> Path:
    cache.give_numba_a_cache(*args)
    return Path(os.environ[cache.VARIABLE])


class TestKey:
    """What was compiled belongs to the sources of all kernels."""

    def test_the_same_sources_share_a_folder(self, home, scripts):
        assert given(scripts) == given() == given()
        assert given().parent == home / "home/structured-sir-numba"
        assert str(given()) == numba.config.CACHE_DIR  # it was loaded before

    @pytest.mark.parametrize(
        "helper", ["gaussian/backends/numba_simd.py", "registration/backends/lanes.py", "registration/backends/new.py"]
    )
    def test_other_sources_have_another_folder(self, home, scripts, helper):
        before = given(scripts)
        with (scripts / helper).open("a") as file:
            file.write("# changed\n")
        assert given(scripts) != before
        assert given(scripts).parent == before.parent

    def test_a_line_that_moves_to_another_file_makes_another_folder(self, home, scripts):
        first, second = (scripts / "registration/backends" / name for name in ("a.py", "b.py"))
        first.write_text("x = 1\n")
        second.write_text("y = 1\n")
        before = given(scripts)
        first.write_text("")
        second.write_text("x = 1\ny = 1\n")
        assert given(scripts) != before

    def test_a_kernel_runs_the_new_code_of_what_it_inlines(self, home):
        root = home / "project"
        for name in ("core", "gaussian/backends", "registration/backends"):
            (root / "scripts" / name).mkdir(parents=True)
        for name in ("__init__.py", "core/cache.py"):
            shutil.copy(REPOSITORY / "scripts" / name, root / "scripts" / name)
        folder = root / "scripts/registration/backends"
        (folder / "kernel.py").write_text(KERNEL)
        program = textwrap.dedent("""
            from scripts.registration.backends.kernel import kernel
            print(kernel(1), sum(kernel.stats.cache_hits.values()))
        """)
        said = []
        for number in (1, 1, 2):
            (folder / "helper.py").write_text(HELPER.format(number))
            command = [sys.executable, "-B", "-c", program]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
            said.append(done.stdout.split())
        assert said == [["2", "0"], ["2", "1"], ["3", "0"]]
        assert not list(root.rglob("*.nb*"))


class TestPlace:
    """The user's cache, else a folder of the user's own among the temporary ones; nothing in the repository."""

    def test_without_a_home(self, no_home):
        folder = given()
        assert folder.is_dir()
        assert folder.parent.parent == no_home / "temporary"
        assert folder.parent.stat().st_mode & 0o077 == 0

    def test_a_folder_of_somebody_else_is_not_used(self, no_home, monkeypatch):
        own = no_home.stat().st_uid
        monkeypatch.setattr(cache.os, "getuid", lambda: own + 1, raising=False)
        folder = given()
        assert folder.is_dir()
        assert folder.parent.name != f"structured-sir-numba-{own + 1}"

    def test_where_users_have_no_numbers(self, no_home, monkeypatch):
        monkeypatch.delattr(os, "getuid", raising=False)
        assert given().parent == no_home / "temporary/structured-sir-numba-user"

    def test_what_cannot_be_written_is_passed_over(self, home, monkeypatch):
        access = os.access
        monkeypatch.setattr(cache.os, "access", lambda path, mode: "home" not in str(path) and access(path, mode))
        assert given().parent.parent == home / "temporary"

    def test_without_any_place_numba_is_left_to_itself(self, no_home, monkeypatch):
        monkeypatch.setattr(cache.os, "access", lambda path, mode: False)
        cache.give_numba_a_cache()
        assert cache.VARIABLE not in os.environ

    def test_one_that_was_chosen_is_used(self, home, monkeypatch, scripts):
        monkeypatch.setenv(cache.VARIABLE, str(home / "chosen"))
        before = given(scripts)
        assert before.parent.parent == home / "chosen"
        # What a process gives to those that it starts is no choice: their sources may be newer.
        (scripts / "registration/backends/lanes.py").write_text("")
        assert given(scripts) != before
        assert given(scripts).parent == before.parent


class TestSweep:
    """Folders of sources that are gone are taken away, those that may still be in use are not."""

    def put(self, folder, days, name="x.nbi"):
        (folder / "backends_1").mkdir(parents=True)
        (folder / "backends_1" / name).write_text("x")
        then = time.time() - days * 86_400
        for path in (folder / "backends_1", folder):
            os.utime(path, (then, then))
        return folder

    def test_those_that_nobody_has_used_for_long_go(self, home):
        root = given().parent
        old, lately = self.put(root / ("0" * 16), 31), self.put(root / ("1" * 16), 29)
        half_swept = self.put(root / f"{'2' * 16}.old-7", 31)
        foreign = self.put(root / "something else", 400)
        given()
        assert [folder.exists() for folder in (old, lately, half_swept, foreign)] == [False, True, False, True]

    def test_use_counts_as_well_as_compiling(self, home):
        folder = given()
        os.utime(folder, (0, 0))
        given()
        assert time.time() - folder.stat().st_mtime < 60
        compiled = self.put(folder.parent / ("3" * 16), 31)
        os.utime(compiled / "backends_1")
        given()
        assert compiled.exists()

    def test_several_at_once(self, home):
        root = given().parent
        for number in range(40):
            self.put(root / f"{number:016x}", 31)
        program = f"import sys; sys.path.insert(0, {str(REPOSITORY)!r}); import scripts"
        running = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(4)]
        assert [process.communicate()[1] for process in running] == [b""] * 4
        assert [folder.name for folder in root.iterdir()] == [given().name]
