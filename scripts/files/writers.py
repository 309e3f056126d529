"""Several files at a time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch


class Writers:
    """Writes several files at a time: compressing them takes most of the time, and one core each.

    Used as a context; at its end all files are there, or the first error is raised.
    """

    MOST = 3
    """Files at a time; each holds a copy of its volume in memory."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max(1, min(self.MOST, torch.get_num_threads())))
        self._jobs: list[Future[None]] = []

    def __call__(self, write: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Write a file with `write(*arguments, **options)`, soon."""
        self._jobs.append(self._pool.submit(write, *arguments, **options))

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(cancel_futures=kind is not None)
        if kind is None:
            for job in self._jobs:
                job.result()
