"""The Dockerfile cannot be built in a test; a linter can read it, and what it copies can be looked for."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.pack import FILES, FOLDERS, ROOT

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
KNOWN = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """(name, arguments) of each instruction, lines joined, comments left out."""
    lines = [line for line in TEXT.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines())]


def arguments(name: str) -> list[str]:
    return [rest for found, rest in instructions() if found == name]


def test_hadolint_finds_nothing():
    linter = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if linter is None:
        pytest.skip("hadolint has no wheel for this machine")
    found = subprocess.run([linter, str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_every_line_is_an_instruction():
    assert {name for name, _ in instructions()} <= KNOWN
    assert [name for name, _ in instructions()][:2] == ["ARG", "FROM"]


def test_bases_have_exact_versions():
    bases = re.findall(r"BASE=(\S+)", TEXT)
    assert len(bases) == 2
    assert any(base.startswith("nvidia/cuda:") for base in bases)
    for base in bases:
        assert re.search(r":\d+\.\d+", base), base
    assert arguments("FROM") == ["${BASE}"]


def test_installing_leaves_nothing_behind():
    (install,) = [run for run in arguments("RUN") if "apt-get" in run]
    assert "apt-get update" in install
    assert "--yes --no-install-recommends" in install
    assert install.endswith("rm -rf /var/lib/apt/lists/*")
    assert not re.search(r"sudo|curl|wget|apt-get upgrade|pip install", " ".join(arguments("RUN")))


def test_python_packages_come_by_the_makefile():
    assert any("make setup" in run for run in arguments("RUN"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^setup:", makefile, flags=re.M)
    needed = set(re.findall(r"^\$\(READY\): (.*)$", makefile, flags=re.M)[0].split())
    before = TEXT[: TEXT.index("make setup")]
    assert all(name in before for name in needed)


def test_everything_that_is_copied_exists_and_the_bundle_is_complete():
    copied = [word for rest in arguments("COPY") for word in shlex.split(rest)[:-1] if not word.startswith("--")]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert set(FOLDERS) | set(FILES) <= set(copied)
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[0] == "*"
    assert {f"!{name}" for name in copied} <= set(ignored)


def test_it_does_not_run_as_root():
    names = [name for name, _ in instructions()]
    assert arguments("USER") == ["1000:1000"]
    assert names.index("USER") > max(i for i, name in enumerate(names) if name in ("RUN", "COPY"))


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD"])
def test_commands_are_lists(name):
    (words,) = arguments(name)
    assert all(isinstance(word, str) for word in json.loads(words))


def test_the_default_command_is_the_demo():
    words = json.loads(arguments("ENTRYPOINT")[0]) + json.loads(arguments("CMD")[0])
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert " ".join(words[1:]) in makefile
    assert (ROOT / words[-1]).is_file()
