"""How many cores there are to use."""

import os
import subprocess
import sys

from scripts.core import threads


def test_cores_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda process: {0, 3, 5}, raising=False)
    assert threads.usable_cores() == 3


def test_where_the_system_does_not_tell_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 6)
    assert threads.usable_cores() == 6
    monkeypatch.setattr(threads.os, "cpu_count", lambda: None)
    assert threads.usable_cores() == 1


def test_counting_loads_neither_torch_nor_numba():
    """Their numbers of threads are settled when they are loaded, by what the tests' configuration counts before."""
    program = (
        "import sys; from scripts.core.threads import usable_cores; usable_cores(); "
        "print(sorted({'torch', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
