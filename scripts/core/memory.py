"""How much memory is left, so that a request that cannot be met fails with a figure instead of a crash."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from scripts.core.cgroup import ROOT, left_in_groups


def free_bytes(device: torch.device, root: Path = ROOT) -> int | None:
    """Bytes that a new tensor on this device may take, within a container's limits; None where it cannot be known."""
    if device.type == "cpu":
        machine, container = int(psutil.virtual_memory().available), left_in_groups(root)
        return machine if container is None else min(machine, container)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds in its cache is free for us, too.
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return None
