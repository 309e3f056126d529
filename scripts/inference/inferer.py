"""The network's part of a registration, as a MONAI inferer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from monai.inferers import SimpleInferer
from torch import Tensor, nn

from scripts.networks.weight_scale import calibrated_temperature, trained_scale


class ProposalInferer(SimpleInferer):
    """Raw parameters of the proposal, with what training and calibration left in the network about its weights.

    Scale and temperature belong to the weights: whoever draws from the proposal later has the network no more.
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
            `raw`, shape [B, C, X/2, Y/2, Z/2]; `scale` and `temperature`, shape [B, 1], NaN where nothing was left.
        """
        raw = super().__call__(inputs, network, *args, **kwargs)
        known = isinstance(network, nn.Module)
        left = {
            "scale": trained_scale(network) if known else None,  # type: ignore[arg-type]
            "temperature": calibrated_temperature(network) if known else None,  # type: ignore[arg-type]
        }
        nan = float("nan")
        columns = {
            key: torch.full((len(raw), 1), nan if value is None else value, dtype=torch.float64)
            for key, value in left.items()
        }
        return {"raw": raw, **columns}
