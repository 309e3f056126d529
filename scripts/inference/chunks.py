"""Work on many samples a few at a time: as many as memory holds, and fewer if it turns out to hold less."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from scripts.core.memory import free_bytes

logger = logging.getLogger(__name__)

CHUNK = 32
"""Samples at a time by default: a block of the numba solver."""

T = TypeVar("T")


def run_in_chunks(count: int, size: int, work: Callable[[range], T]) -> Iterator[tuple[range, T]]:
    """Call `work` on consecutive ranges that cover 0 … count − 1; out of memory, go on with half as many.

    Yields:
        The range and what `work` made of it.

    Raises:
        ValueError: for a size below 1.
        MemoryError, torch.OutOfMemoryError, RuntimeError: what `work` raised, when even a single one does not fit.
    """
    if size < 1:
        raise ValueError(f"the chunk must be positive, got {size}")
    start = 0
    while start < count:
        part = range(start, min(start + size, count))
        try:
            result = work(part)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error) or len(part) == 1:
                raise
            size = len(part) // 2
            logger.warning("out of memory with %d samples at a time: going on with %d", len(part), size)
        else:
            yield part, result
            start = part.stop
            continue
        # Outside of the handler: the traceback of the error holds the tensors that did not fit.
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, in torch's words for CUDA or for the CPU, or in Python's."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "alloc" in str(error) and "memory" in str(error)


def chunk_that_fits(voxels: int, device: torch.device, largest: int = CHUNK) -> int:
    """How many samples may be in work at a time.

    On a GPU a sample in work takes at most 13 float32 volumes of the image's size (measured: displacement 3, its
    spline's intermediate steps 4, the warped image, the correlation and its sums). On a CPU only the field is kept of
    each, 3/8 of a volume and its noise, and two at a time are on the image grid (`Target.log_likelihood`). Half of what
    is free is left to others.
    """
    free = free_bytes(device)
    if free is None:
        return largest
    shared, each = (2 * 13, 1) if device.type == "cpu" else (0, 13)
    return max(1, min(largest, int((free // 2 - shared * 4 * voxels) // (each * 4 * voxels))))
