"""Several workers (pytest-xdist) share the cores: each takes its part of them, before torch is loaded.

numba follows torch; its own variable would forbid tests with more threads.
"""

from __future__ import annotations

import os

from scripts.core.threads import usable_cores

workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
if workers > 1:
    threads = max(usable_cores() // workers, 1)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, str(threads))
