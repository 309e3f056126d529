"""The network's part of a registration, as a MONAI inferer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from monai.inferers import SimpleInferer
from torch import Tensor, nn

from scripts.networks.weight_scale import trained_scale


class ProposalInferer(SimpleInferer):
    """Raw parameters of the proposal, with the scale of the log-weights that training left in the network.

    The scale belongs to the weights: whoever draws from the proposal later has the network no more.
    """

    def __call__(  # type: ignore[override]
        self, inputs: Tensor, network: Callable[..., Tensor], *args: Any, **kwargs: Any
    ) -> dict[str, Tensor]:
        """Run the network.

        Args:
            inputs: shape [B, 2, X, Y, Z], moving and fixed.
            network: the trained network.
            args: passed on to it.
            kwargs: passed on to it.

        Returns:
            `raw`, shape [B, C, X/2, Y/2, Z/2], and `scale`, shape [B, 1], NaN where training left none.
        """
        raw = super().__call__(inputs, network, *args, **kwargs)
        scale = trained_scale(network) if isinstance(network, nn.Module) else None
        value = torch.full((len(raw), 1), float("nan") if scale is None else scale, dtype=torch.float64)
        return {"raw": raw, "scale": value}
