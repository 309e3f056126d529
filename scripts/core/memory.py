"""How much memory is left, so that a request that cannot be met fails with a figure instead of a crash."""

from __future__ import annotations

import psutil
import torch


def free_bytes(device: torch.device) -> int | None:
    """Bytes that a new tensor on this device may take; None where it cannot be known."""
    if device.type == "cpu":
        return int(psutil.virtual_memory().available)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds in its cache is free for us, too.
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return None
