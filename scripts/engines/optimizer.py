"""The paper's optimizer and schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import heavyball
import torch
from torch import nn


def soap(
    params: Iterable[nn.Parameter],
    lr: float = 2e-3,
    betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.0,
    precondition_frequency: int = 20,
    max_precond_dim: int = 700,
) -> torch.optim.Optimizer:
    """heavyball's SOAP (decision 14).

    On the CPU its steps are not compiled: autotuning would take minutes before the first one. Preconditioning every
    20th step and only matrices of up to 700 rows makes a step several times cheaper than the package's defaults, with
    the same learning curve in a short trial.

    Args:
        params: the network's parameters; compilation is switched on where they are on CUDA.
        lr: learning rate.
        betas: as in Adam.
        weight_decay: decoupled decay; the paper mentions none.
        precondition_frequency: steps between updates of the preconditioner.
        max_precond_dim: largest matrix that gets one.
    """
    params = list(params)
    on_cuda = any(parameter.is_cuda for parameter in params)
    heavyball.utils.compile_mode = "max-autotune-no-cudagraphs" if on_cuda else None
    return heavyball.SOAP(
        params,
        lr=lr,
        betas=tuple(betas),
        weight_decay=weight_decay,
        precondition_frequency=precondition_frequency,
        max_precond_dim=max_precond_dim,
    )


def cosine_decay(
    optimizer: torch.optim.Optimizer, decay_steps: int = 30_000, final_factor: float = 0.1, warmup_steps: int = 0
) -> torch.optim.lr_scheduler.LambdaLR:
    """Cosine from the learning rate to `final_factor` of it over `decay_steps` iterations, constant after that.

    Over the first `warmup_steps` iterations the rate rises linearly: fresh heads on trained features would leap
    otherwise.
    """
    if decay_steps < 1 or warmup_steps < 0:
        raise ValueError(
            f"decay_steps must be positive and warmup_steps not negative, got {decay_steps}, {warmup_steps}"
        )

    def factor(step: int) -> float:
        progress = min(step / decay_steps, 1.0)
        warm = min((step + 1) / (warmup_steps + 1), 1.0)
        return warm * (final_factor + (1 - final_factor) * 0.5 * (1 + math.cos(math.pi * progress)))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
