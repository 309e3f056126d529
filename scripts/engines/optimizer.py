"""The paper's optimizer and schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import heavyball
import torch
from torch import nn

COVARIANCE_HEADS = ("stencil_head.", "factor_head.", "column_scale")


def parameter_groups(network: nn.Module, lr: float = 2e-3, covariance_rate: float = 1.0) -> list[dict[str, Any]]:
    """The network's parameters, those of the heads for L and R with a learning rate of their own.

    SOAP's steps are about as long as the learning rate whatever the gradient. Fresh heads on trained features have
    weights of a few thousandths; at the rate of the other layers noise alone makes R many times too large at once.

    Theirs is that of the others times `covariance_rate`, which is positive.
    """
    if not covariance_rate > 0:
        raise ValueError(f"covariance_rate must be positive, got {covariance_rate}")
    heads: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in network.named_parameters():
        name = name.removeprefix("module.")  # of the wrapper of several processes
        (heads if name.startswith(COVARIANCE_HEADS) else others).append(parameter)
    groups: list[dict[str, Any]] = [{"params": others, "lr": lr}, {"params": heads, "lr": lr * covariance_rate}]
    return [group for group in groups if group["params"]]


def soap(params: Iterable[nn.Parameter] | Iterable[dict[str, Any]], lr: float = 2e-3) -> torch.optim.Optimizer:
    """heavyball's SOAP (decision 14).

    On the CPU its steps are not compiled: autotuning would take minutes before the first one. Preconditioning every
    20th step and only matrices of up to 700 rows makes a step several times cheaper than the package's defaults, with
    the same learning curve in a short trial.

    The paper mentions no weight decay. Compilation is switched on where the parameters, or groups of them, are on CUDA.
    """
    given: list[Any] = list(params)
    tensors = [p for group in given for p in (group["params"] if isinstance(group, dict) else [group])]
    on_cuda = any(parameter.is_cuda for parameter in tensors)
    heavyball.utils.compile_mode = "max-autotune-no-cudagraphs" if on_cuda else None
    return heavyball.SOAP(
        given, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, precondition_frequency=20, max_precond_dim=700
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
