"""A number kept with the network's weights: the usual spread of log-weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scripts.core.processes import ALONE, Processes

DECAY = 0.9
"""Weight of what was known before a step."""


class WeightScale(nn.Module):
    """σ_α: the running spread of log-weights that makes a temperature mean the same for all pairs (decision 10).

    Its buffer belongs into the checkpoint: inference divides by the last value.
    """

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.full((), math.nan, dtype=torch.float64))

    @torch.no_grad()
    def update(self, log_weights: Tensor, processes: Processes = ALONE) -> Tensor:
        """Take in the log-weights of a step; returns the new σ_α, shape ().

        Log-weights with NaN or infinite ones among them change nothing, so that they cannot get into a checkpoint. As
        long as nothing has varied yet, 1 is returned.

        Args:
            log_weights: of one pair, shape (N,), or of B pairs, shape (N, B), whose mean spread counts.
            processes: those that share the step's pairs: the mean is over all of theirs, and σ_α stays the same in all.
        """
        spread = processes.mean(log_weights.double().std(dim=0).mean()).to(self.value.device)
        known = self.value > 0  # NaN is not
        average = torch.where(known, DECAY * self.value + (1 - DECAY) * spread, spread)
        self.value.copy_(torch.where(average.isfinite() & (average > 0), average, self.value))
        return torch.where(self.value > 0, self.value, 1.0)


def trained_scale(network: nn.Module) -> float | None:
    """σ_α that training left in a network; None if it left none."""
    value = getattr(getattr(network, "weight_scale", None), "value", None)
    return float(value) if isinstance(value, Tensor) and bool(value > 0) else None
