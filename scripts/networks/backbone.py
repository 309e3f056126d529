"""Feature extractors: from an image pair [B, 2, X, Y, Z] to features at half and at quarter resolution."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scripts.networks.convolution import Conv3d

SLOPE = 0.2


def _convolution(in_channels: int, out_channels: int, stride: int = 1) -> nn.Module:
    """3x3x3 convolution and leaky ReLU, no bias, no normalization."""
    block = nn.Sequential()
    block.add_module("conv", Conv3d(in_channels, out_channels, stride))
    block.add_module("activation", nn.LeakyReLU(SLOPE))
    # Without normalization, torch's default would shrink the features by half in every layer.
    nn.init.kaiming_normal_(block.get_parameter("conv.weight"), a=SLOPE)
    return block


class UNetBackbone(nn.Module):
    """The paper's U-Net (decision 2): no biases, 4 resolution levels, 16 then 24 channels.

    The decoder stops at half the image's resolution, where the field lives.

    Args:
        channels: channels of each level, finest (full resolution) first; at least three levels.
        in_channels: 2, moving and fixed.
    """

    def __init__(self, channels: Sequence[int] = (16, 24, 24, 24), in_channels: int = 2) -> None:
        super().__init__()
        if len(channels) < 3:
            raise ValueError(f"channels must name at least 3 levels, got {list(channels)}")
        self.stem = _convolution(in_channels, channels[0])
        self.down = nn.ModuleList()
        for above, here in itertools.pairwise(channels):
            self.down.append(nn.Sequential(_convolution(above, here, stride=2), _convolution(here, here)))
        # From the coarsest level back to half resolution: upsample, join with the encoder's features, convolve.
        self.up = nn.ModuleList(
            nn.Sequential(_convolution(below + here, here), _convolution(here, here))
            for below, here in zip(channels[:1:-1], channels[-2:0:-1], strict=True)
        )
        self.out_channels = (channels[1], channels[2])
        self.stride = 2 ** (len(channels) - 1)

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Features at half resolution [B, C₁, X/2, …] and at quarter resolution [B, C₂, X/4, …]."""
        features = self.stem(pair)
        encoded = []
        for block in self.down:
            features = block(features)
            encoded.append(features)
        decoded = [encoded.pop()]
        for block in self.up:
            skip = encoded.pop()
            upsampled = nn.functional.interpolate(decoded[-1], scale_factor=2.0, mode="nearest")
            decoded.append(block(torch.cat([upsampled, skip], dim=1)))
        return decoded[-1], decoded[-2]


class MonaiBackbone(nn.Module):
    """Any MONAI network from [B, 2, X, Y, Z] to features [B, F, X, Y, Z] as backbone (the paper is model-agnostic).

    Args:
        network: for instance `monai.networks.nets.SegResNet(in_channels=2, out_channels=F)`.
        features: F, its output channels.
        channels: channels at half and at quarter resolution, which two strided convolutions make of its output.
        stride: image sizes must be multiples of it for `network`.
    """

    def __init__(self, network: nn.Module, features: int, channels: Sequence[int] = (24, 24), stride: int = 16) -> None:
        super().__init__()
        self.network = network
        self.to_half = _convolution(features, channels[0], stride=2)
        self.to_quarter = _convolution(channels[0], channels[1], stride=2)
        self.out_channels = (channels[0], channels[1])
        self.stride = stride

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Features at half and at quarter resolution."""
        half = self.to_half(self.network(pair))
        return half, self.to_quarter(half)
