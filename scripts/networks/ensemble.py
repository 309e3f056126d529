"""An ensemble of weights as a proposal: as many fields as there are members, each as likely as the others.

No Gaussian: the proposal is the uniform distribution over K fields, so what weighs them is the posterior alone. With
`--ckpt_path "['a.pt','b.pt']"`, or any deterministic variant, this is what fields are drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from scripts.core.described import Described
from scripts.core.errors import DataError
from scripts.gaussian.stencil import CHANNELS
from scripts.networks.fields import Fields
from scripts.networks.layout import Layout
from scripts.networks.proposal import ProposalNetwork


class EnsembleLayout(Layout):
    """K fields side by side: raw output [B, 3 K, x, y, z]."""

    kind = "ensemble"

    def __init__(self, count: int) -> None:
        if count < 1:
            raise DataError(f"an ensemble needs at least one member, got {count}")
        self.count = count

    @property
    def out_channels(self) -> int:
        """Channels in all; all of them are fields."""
        return CHANNELS * self.count

    mean_channels = out_channels

    def proposal(self, raw: Tensor) -> Fields:
        """The proposal of one pair's raw output."""
        return Fields(self.means(raw))


class EnsembleNetwork(Described, nn.Module):
    """Several networks of one stride as one, whose output is the mean field of each; DataError for others."""

    kind = "ensemble_network"

    def __init__(self, members: Sequence[ProposalNetwork]) -> None:
        super().__init__()
        if len({member.stride for member in members}) != 1:
            raise DataError(f"expected networks with the same stride, got {[member.stride for member in members]}")
        self.members = nn.ModuleList(members)
        self.layout = EnsembleLayout(len(members))
        self.stride = members[0].stride

    def settings(self) -> dict[str, Any]:
        """See :class:`~scripts.core.described.Described`."""
        return {"kind": self.kind, "members": [member.settings() for member in self.members]}  # type: ignore[operator]

    def forward(self, pair: Tensor) -> Tensor:
        """Image pairs [B, 2, X, Y, Z] to the members' fields [B, 3 K, x, y, z]."""
        return torch.cat([member(pair)[:, :CHANNELS] for member in self.members], dim=1)
