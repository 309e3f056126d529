"""Several processes that train or evaluate together: how they find each other, and whose GPU is whose.

Started by `torchrun` (see docs/distributed.md), which sets the environment variables that are read here. GPUs talk by
NCCL; processes without a GPU, and all small messages (`scripts.core.processes`), by Gloo.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

from scripts.core.processes import Processes

logger = logging.getLogger(__name__)
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class ProcessError(RuntimeError):
    """Several processes cannot work together; says what is wrong with how they were started."""


def process_device() -> torch.device:
    """This process's GPU, by its number on this machine, or the CPU where there is none; ProcessError for too few."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if local >= gpus:
        raise ProcessError(f"process {local} of this machine has no GPU, there are {gpus}: lower --nproc_per_node")
    return torch.device("cuda", local)


def start(device: torch.device | str, timeout_minutes: float = 10.0) -> Processes:
    """Join the other processes; waits until all are there.

    Args:
        timeout_minutes: how long a process waits for the others, here and at every later meeting, before it ends with
            an error. Longer than the longest thing that one of them does alone.

    Raises:
        ProcessError: if this process was not started by `torchrun`.
    """
    device = torch.device(device)
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        raise ProcessError(
            f"{', '.join(missing)} not set: start the command by torchrun, "
            "for example torchrun --nproc_per_node=2 -m monai.bundle run …"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes))
        atexit.register(stop)
    processes = Processes.current()
    logger.info("process %d of %d on %s", processes.rank, processes.size, device)
    if not processes.is_first:
        logging.disable(logging.INFO)  # the first one speaks for all
    return processes


def stop() -> None:
    """Leave the group of processes, if there is one."""
    logging.disable(logging.NOTSET)
    if not distributed.is_initialized():
        return
    if distributed.get_backend() == "gloo":
        # Together: the first process keeps the store that the others still talk to, and one that left while they did
        # was once seen to abort. Whoever waits for a process that is gone does so for a few seconds only.
        with contextlib.suppress(RuntimeError):
            distributed.monitored_barrier(timeout=timedelta(seconds=5))
    distributed.destroy_process_group()


def distribute(network: nn.Module, device: torch.device | str) -> nn.Module:
    """The network on this process's device, its gradients averaged over all processes.

    All start from the first process's weights. Buffers are left alone: σ_α, the only one, is kept equal by its own
    average over the processes.
    """
    network = network.to(device)
    if Processes.current().size == 1:
        return network
    return DistributedDataParallel(network, forward_sync_buffers=False)


def summary_writer(log_dir: str) -> SummaryWriter | None:
    """TensorBoard's writer in the first process, none in the others."""
    return SummaryWriter(log_dir) if Processes.current().is_first else None


def check_agreement(what: str, value: Any, advice: str) -> None:
    """Make sure that all processes have the same value of something; else all raise ProcessError."""
    values = Processes.current().gather(str(value))
    if len(set(values)) > 1:
        raise ProcessError(f"the processes disagree about {what}: {', '.join(values)}; {advice}")
