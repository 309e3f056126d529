"""Label maps as part of the likelihood in training: overlap of a few structures, by a soft Dice score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scripts.core.described import Described
from scripts.registration.errors import OptionError
from scripts.registration.parts import check_positive
from scripts.registration.warp import warp


class OverlapLikelihood(Described, nn.Module):
    """weight · voxels · mean soft Dice of structures: what known labels add to log p(I_f | I_m ∘ Z) in training.

    Labels are not there at inference, but in training they shape the proposal. A few structures are drawn for each
    step, because each one costs a warp for every sample.

    Args:
        labels: values of the structures.
        weight: relative to the image likelihood, whose largest value is the number of voxels / σ².
        structures: how many are drawn a step.
    """

    kind = "overlap"

    def __init__(self, labels: Sequence[int], weight: float = 0.1, structures: int = 4) -> None:
        super().__init__()
        if not len(labels):
            raise OptionError("labels", "at least one", list(labels))
        self.labels, self.weight = list(labels), check_positive("weight", weight)
        self.structures = min(structures, len(labels))

    def choose(self, seed: int) -> list[int]:
        """The structures of a step."""
        order = torch.randperm(len(self.labels), generator=torch.Generator().manual_seed(seed % 2**63))
        return [self.labels[i] for i in order[: self.structures].tolist()]

    def forward(self, fixed_label: Tensor, moving_label: Tensor, ddf: Tensor, chosen: Sequence[int]) -> Tensor:
        """Log-likelihoods [N], float64.

        Args:
            fixed_label, moving_label: shape [1, 1, X, Y, Z].
            ddf: displacements in voxels, shape [N, 3, X, Y, Z].
            chosen: structures to compare; those in neither image are passed over.
        """
        scores = []
        for label in chosen:
            truth, moving = (fixed_label == label).to(ddf.dtype), (moving_label == label).to(ddf.dtype)
            warped = warp(moving, ddf)
            overlap = (truth * warped).sum(dim=(1, 2, 3, 4), dtype=torch.float64)
            total = (truth.sum() + warped.sum(dim=(1, 2, 3, 4))).double()
            scores.append(torch.where(total > 0, 2 * overlap / total.clamp_min(1.0), torch.ones_like(total)))
        return self.weight * fixed_label.numel() * torch.stack(scores).mean(0)
