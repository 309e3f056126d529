"""One setting for the threads of torch and numba, and one door to numba's thread pool."""

from __future__ import annotations

import threading

import numba
import torch

LOCK = threading.Lock()
"""numba's default thread pool must not be entered by two Python threads at once (a server does that)."""


def use_torch_threads() -> int:
    """Give numba as many threads as torch has; returns how many."""
    wanted = torch.get_num_threads()
    threads = min(wanted, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    # On first use this starts numba's pool, which resets OpenMP's number of threads, and torch's with it.
    if torch.get_num_threads() != wanted:
        torch.set_num_threads(wanted)
    return threads
