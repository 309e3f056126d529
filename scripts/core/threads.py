"""How many threads there can be, one setting for those of torch and numba, and one door to numba's thread pool."""

from __future__ import annotations

import os
import threading

LOCK = threading.Lock()
"""numba's default thread pool must not be entered by two Python threads at once (a server does that)."""


def usable_cores() -> int:
    """Cores that this process may run on, where the system tells (not on macOS and Windows), else the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def use_torch_threads() -> int:
    """Give numba as many threads as torch has; returns how many."""
    # Here, because both settle their number of threads when they are loaded, by variables that need `usable_cores`.
    import numba
    import torch

    wanted = torch.get_num_threads()
    threads = min(wanted, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    # On first use this starts numba's pool, which resets OpenMP's number of threads, and torch's with it.
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return threads
