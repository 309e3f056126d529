"""Measuring: best of several runs, peak memory, and a table for people beside JSON for machines."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.core.threads import usable_cores


def clock() -> float:
    """Seconds; with a single thread, those in which this process had the core: others on it do not count."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def best_time(function: Callable[[], Any], repeats: int = 5, warmup: int = 1) -> float:
    """Seconds of the fastest of several calls: on a shared machine the least disturbed one."""
    for _ in range(warmup):
        function()
    times = []
    for _ in range(repeats):
        start = clock()
        function()
        times.append(clock() - start)
    return min(times)


def best_times(functions: Sequence[Callable[[], Any]], repeats: int = 5) -> list[float]:
    """`best_time` of several functions to be compared: they take turns, so that a busy spell hits all of them."""
    for function in functions:
        function()
    times = [[best_time(function, repeats=1, warmup=0) for function in functions] for _ in range(repeats)]
    return [min(column) for column in zip(*times, strict=True)]


def matmul_rate(size: int = 2048) -> float:
    """Floating-point operations a second of torch's float32 matrix product on this machine, now."""
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / best_time(lambda: a @ b, repeats=7, warmup=2)


def copy_rate(megabytes: int = 512) -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.zeros(megabytes * 2**18)
    target = torch.zeros_like(source)
    return 2 * source.nbytes / best_time(lambda: target.copy_(source), repeats=5)


def peak_memory(program: str) -> tuple[int, int]:
    """Peak resident bytes of a Python program in a process of its own: before its marked part, and in all.

    The program calls `mark()` once, after the imports and the warm-up.
    """
    prologue = (
        # VmHWM, not ru_maxrss: the latter starts with what the parent process had.
        "def _peak():\n"
        "    line = next(l for l in open('/proc/self/status') if l.startswith('VmHWM'))\n"
        "    return int(line.split()[1]) * 1024\n"
        "def mark():\n    global _before\n    _before = _peak()\n"
    )
    epilogue = "\nprint('PEAK', _before, _peak())\n"
    done = subprocess.run([sys.executable, "-c", prologue + program + epilogue], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("PEAK")]
    if done.returncode or not lines:
        raise RuntimeError(f"the measured program failed:\n{done.stderr}")
    before, peak = map(int, lines[0].split()[1:])
    return before, peak


def peak_of(function: Callable[[], Any]) -> int | None:
    """Bytes that a call takes at its peak beyond what the process holds before; None where Linux does not tell.

    Within this process, so without the cost of a new one; what an earlier call left to the allocator counts for less.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
        before = _resident("VmRSS")
        function()
        return max(_resident("VmHWM") - before, 0)
    except OSError:
        return None


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Aligned columns under a title."""
    cells = [[str(cell) for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        line = "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  " + line)
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def verdict(name: str, value: float, bar: float, at_least: bool = True) -> dict[str, Any]:
    """Compare a figure with its bar."""
    return {"name": name, "value": value, "bar": bar, "reached": value >= bar if at_least else value <= bar}


def print_verdicts(verdicts: Sequence[dict[str, Any]]) -> None:
    """One line for each bar."""
    rows = [
        [v["name"], f"{v['value']:.2f}", f"{v['bar']:g}", "reached" if v["reached"] else "MISSED"] for v in verdicts
    ]
    print_table("Bars", ["what", "measured", "bar", ""], rows)


def save(name: str, result: dict[str, Any], folder: Path = Path("output/benchmark")) -> Path:
    """Write a result as JSON; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2))
    return path
