"""The network of the bundle: backbone and three heads, one raw parameter tensor out."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from scripts.core.described import Described
from scripts.core.truth import truth
from scripts.gaussian.errors import ShapeError
from scripts.gaussian.stencil import CHANNELS
from scripts.networks.backbone import UNetBackbone
from scripts.networks.convolution import Conv3d
from scripts.networks.layout import ProposalLayout
from scripts.networks.weight_scale import WeightScale


class ProposalNetwork(Described, nn.Module):
    """(moving, fixed) to the raw parameters of the proposal on the field grid, half the image's resolution.

    Heads for the mean and for L work at half resolution. The head for R works at a quarter, its output upsampled
    trilinearly (decision 2, the paper's setting at 1 mm), or at half: at 2 mm a quarter is 8 mm, too coarse for the
    detail that R is to hold. All without biases.

    Args:
        backbone: a feature extractor such as `UNetBackbone` or `MonaiBackbone`; None for the paper's U-Net.
        amp: compute the backbone's features in bfloat16 (which needs no scaling of gradients). The heads, and so
            displacements and densities, stay in full precision.
        compile: backend of `torch.compile` for the backbone (`inductor`); None leaves it as it is.
        mean_gain: scale of the mean head's initial weights; small, so that training starts at the identity.
        stencil_gain: the same for L; small, so that it starts at the layout's initial standard deviation.
        factor_gain: the same for R. Larger: R grows slowly, and the gain of SIR comes with it.
        factor_level: `quarter` or `half`, the resolution of R's head.
        column_rate: gives each column of R a learned scale exp(column_rate · s). The head's weights move by about the
            learning rate in a step, which finds directions but hardly a size: a column that is to vanish is left with
            the steps' noise. A scale of its own lets it shrink or grow by a factor, noise included. 0: none.
        coarse_mean: a second head for the mean at a quarter of the resolution, its output upsampled and added. What a
            network for images of half the resolution has learned goes on there; see :mod:`experiments.grow`.

    Raises:
        ValueError: for another `factor_level`, or a negative `column_rate`.
    """

    kind = "proposal_network"
    aside = ("amp", "compile", "mean_gain", "stencil_gain", "factor_gain")  # how it computes, and how training starts

    def __init__(
        self,
        layout: ProposalLayout,
        backbone: nn.Module | None = None,
        amp: bool = False,
        compile: str | None = None,
        mean_gain: float = 0.01,
        stencil_gain: float = 0.05,
        factor_gain: float = 0.5,
        factor_level: str = "quarter",
        column_rate: float = 0.0,
        coarse_mean: bool = False,
    ) -> None:
        super().__init__()
        if factor_level not in ("half", "quarter"):
            raise ValueError(f"factor_level must be 'half' or 'quarter', got {factor_level!r}")
        if column_rate < 0:
            raise ValueError(f"column_rate must not be negative, got {column_rate}")
        self.layout = layout
        self.backbone = backbone if backbone is not None else UNetBackbone()
        if compile is not None:
            self.backbone.compile(backend=compile)  # in place: the weights keep their names
        self.amp = truth("amp", amp)
        self.weight_scale = WeightScale()  # set by the SIR objective, used at inference
        half, quarter = self.backbone.out_channels  # type: ignore[misc]
        self.mean_head = _head(half, CHANNELS, mean_gain)
        self.coarse_mean = truth("coarse_mean", coarse_mean)
        self.coarse_mean_head = _head(quarter, CHANNELS, mean_gain) if self.coarse_mean else None
        self.stencil_head = None
        if layout.stencil_channels:
            self.stencil_head = _head(half, layout.stencil_channels, stencil_gain)
        self.factor_level, self.factor_at_half = factor_level, factor_level == "half"
        self.factor_head = None
        if layout.rank:
            self.factor_head = _head(half if self.factor_at_half else quarter, CHANNELS * layout.rank, factor_gain)
        self.column_rate = column_rate
        self.column_scale = nn.Parameter(torch.zeros(layout.rank)) if layout.rank and column_rate else None

    @property
    def stride(self) -> int:
        """Image sizes must be multiples of this."""
        return int(self.backbone.stride)  # type: ignore[arg-type]

    def _features(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        if not self.amp:
            return self.backbone(pair)
        with torch.autocast(pair.device.type, torch.bfloat16):
            half, quarter = self.backbone(pair)
        return half.to(pair.dtype), quarter.to(pair.dtype)

    def forward(self, pair: Tensor) -> Tensor:
        """Raw parameters.

        Args:
            pair: shape [B, 2, X, Y, Z]; channel 0 is the moving, channel 1 the fixed image, intensities in [0, 1].

        Returns:
            shape [B, layout.out_channels, X/2, Y/2, Z/2].

        Raises:
            ShapeError: for another number of channels, or sizes that are no multiples of `stride`.
        """
        if pair.ndim != 5 or pair.shape[1] != 2 or any(size % self.stride for size in pair.shape[2:]):
            raise ShapeError("the image pair", f"(B, 2, X, Y, Z) with X, Y, Z multiples of {self.stride}", pair.shape)
        half, quarter = self._features(pair)
        mean = self.mean_head(half)
        if self.coarse_mean_head is not None:
            mean = mean + _upsampled(self.coarse_mean_head(quarter), half)
        parts = [mean]
        if self.stencil_head is not None:
            parts.append(self.stencil_head(half))
        if self.factor_head is not None:
            factor = self.factor_head(half if self.factor_at_half else quarter)
            if not self.factor_at_half:
                factor = _upsampled(factor, half)
            if self.column_scale is not None:
                scale = (self.column_rate * self.column_scale).exp().repeat_interleave(CHANNELS)  # (3 r,)
                factor = factor * scale[:, None, None, None]
            parts.append(factor)
        # Channels outermost again, as the kernels of the Gaussian take it (see `Conv3d`).
        return torch.cat(parts, dim=1).contiguous()


def _upsampled(values: Tensor, like: Tensor) -> Tensor:
    """Trilinear, from a quarter to half resolution: shape [B, C, X/4, …] to [B, C, X/2, …]."""
    return nn.functional.interpolate(values, like.shape[2:], mode="trilinear", align_corners=False)


def _head(in_channels: int, out_channels: int, gain: float) -> Conv3d:
    """A 3x3x3 convolution without bias whose output has about `gain` times the features' root mean square."""
    head = Conv3d(in_channels, out_channels)
    nn.init.normal_(head.weight, std=gain / math.sqrt(27 * in_channels))
    return head
