"""A Gaussian proposal times one number."""

from __future__ import annotations

from torch import Tensor

from scripts.core.errors import DataError
from scripts.gaussian import StructuredGaussian
from scripts.networks.layout import Layout, Proposal


class ScaledLayout(Layout):
    """Raw output as another layout reads it, with all standard deviations multiplied by `scale`."""

    kind = "scaled"

    def __init__(self, layout: Layout, scale: float) -> None:
        self.layout, self.scale = layout, scale

    @property
    def out_channels(self) -> int:
        """Channels in all."""
        return self.layout.out_channels

    @property
    def mean_channels(self) -> int:
        """Of these, the fields."""
        return self.layout.mean_channels

    def proposal(self, raw: Tensor) -> Proposal:
        """See `Layout.proposal`: R times the scale, L divided by it."""
        plain = self.layout.proposal(raw)
        if not isinstance(plain, StructuredGaussian):
            raise DataError("the model's proposal is an ensemble of fields, which has no width to be scaled")
        return StructuredGaussian(plain.mean, plain.stencil_parameters / self.scale, plain.cov_factor * self.scale)
