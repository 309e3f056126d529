"""How much memory is left, so that a request that cannot be met fails with a figure instead of a crash.

Linux may allow a container, or another group of processes, less than the machine has. The machine's own figures know
nothing of such a limit, and who goes beyond it is killed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import psutil
import torch

ROOT = Path("/")


def free_bytes(device: torch.device, root: Path = ROOT) -> int | None:
    """Bytes that a new tensor on this device may take, within a container's limits; None where it cannot be known."""
    if device.type == "cpu":
        machine, container = int(psutil.virtual_memory().available), _left_in_groups(root)
        return machine if container is None else min(machine, container)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds in its cache is free for us, too.
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return None


class _Files(NamedTuple):
    """Where a version of the control groups keeps its figures."""

    folder: str
    limit: str
    used: str
    reclaimable: str  # in memory.stat: what the kernel gives back before it kills, of all groups below too


_VERSION_1 = _Files("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _Files("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def _left_in_groups(root: Path) -> int | None:
    """Bytes that the process may still take, in its own group or one above it; None where no group has a limit."""
    left = [_left(root / files.folder / group, files) for files, group in _groups(root)]
    limited = [number for number in left if number is not None]
    return max(0, min(limited)) if limited else None


def _groups(root: Path) -> Iterator[tuple[_Files, PurePosixPath]]:
    """The process's own group of each version, and all above it; some of the folders may not be there."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for number, controllers, name in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        if number == "0" and not controllers:
            files = _VERSION_2
        elif "memory" in controllers.split(","):
            files = _VERSION_1
        else:
            continue
        group = PurePosixPath(name.lstrip("/"))
        # A container may be told a path that only its host has, or one outside of what it sees (..): then its own group
        # is the root of what it sees, which comes last.
        yield from ((files, one) for one in (group, *group.parents) if ".." not in one.parts)


def _left(folder: Path, files: _Files) -> int | None:
    """Bytes that one group has left; None without a limit."""
    try:
        limit, used = (int((folder / name).read_text()) for name in (files.limit, files.used))
    except (OSError, ValueError):  # no such group, or "max"
        return None
    with contextlib.suppress(OSError, ValueError):
        figures = dict(line.split(maxsplit=1) for line in (folder / "memory.stat").read_text().splitlines())
        used -= int(figures.get(files.reclaimable, 0))
    return limit - used
