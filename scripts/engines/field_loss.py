"""The usual loss of registration networks, of parts that a config names."""

from __future__ import annotations

from collections.abc import Callable

from monai.networks.blocks import Warp
from torch import Tensor, nn


class FieldLoss(nn.Module):
    """Dissimilarity of the fixed and the warped moving image, plus a price on fields that are not smooth.

    For MONAI's `SupervisedTrainer`, whose batches have the pair both under `image` and under `label`. With several
    fields a pair, as of an ensemble that is trained together, it is the mean over them: each has the gradient that it
    would have alone, divided by their number.

    Args:
        similarity: of (warped, fixed), lower is better, as `monai.losses.LocalNormalizedCrossCorrelationLoss`.
        smoothness: of a field, as `monai.losses.DiffusionLoss`.
        warp: of (image, field); MONAI's by default.
    """

    def __init__(
        self,
        similarity: Callable[[Tensor, Tensor], Tensor],
        smoothness: Callable[[Tensor], Tensor],
        weight: float = 1.0,
        warp: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.similarity, self.smoothness, self.weight = similarity, smoothness, weight
        self.warp = Warp() if warp is None else warp

    def forward(self, ddf: Tensor, pair: Tensor) -> Tensor:
        """The loss of fields [B, 3, X, Y, Z] or [B, K, 3, X, Y, Z] for pairs [B, 2, X, Y, Z], moving before fixed."""
        fields = ddf[:, None] if ddf.ndim == 5 else ddf
        pairs = pair.as_subclass(Tensor).repeat_interleave(fields.shape[1], dim=0)  # [B K, 2, X, Y, Z]
        fields = fields.flatten(0, 1)
        return self.similarity(self.warp(pairs[:, :1], fields), pairs[:, 1:]) + self.weight * self.smoothness(fields)
