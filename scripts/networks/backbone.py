"""Feature extractors: from an image pair [B, 2, X, Y, Z] to features at half and at quarter resolution."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from monai.networks import nets
from torch import Tensor, nn

from scripts.core.described import Described
from scripts.core.errors import DataError
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


class UNetBackbone(Described, nn.Module):
    """The paper's U-Net (decision 2): no biases, 4 resolution levels, 16 then 24 channels.

    The decoder stops at half the image's resolution, where the field lives.

    Args:
        channels: channels of each level, finest (full resolution) first; at least three levels.
    """

    kind = "unet"

    def __init__(self, channels: Sequence[int] = (16, 24, 24, 24), in_channels: int = 2) -> None:
        super().__init__()
        if len(channels) < 3:
            raise ValueError(f"channels must name at least 3 levels, got {list(channels)}")
        self.channels, self.in_channels = list(channels), in_channels
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


class MonaiBackbone(Described, nn.Module):
    """Any MONAI network from [B, 2, X, Y, Z] to features [B, F, X, Y, Z] as backbone (the paper is model-agnostic).

    Args:
        network: `name`, a class of `monai.networks.nets`, and its arguments: plain values, which a file of weights can
            hold. A network that is built already works as well, but its weights cannot be stored with what they mean.
        features: F, its output channels.
        channels: channels at half and at quarter resolution, which two strided convolutions make of its output.
        stride: image sizes must be multiples of it for `network`.

    Raises:
        DataError: for a name that `monai.networks.nets` does not have.
    """

    kind = "monai"

    def __init__(
        self,
        network: nn.Module | Mapping[str, Any],
        features: int,
        channels: Sequence[int] = (24, 24),
        stride: int = 16,
    ) -> None:
        super().__init__()
        self.features, self.channels, self.stride = features, list(channels), stride
        self._plain = None if isinstance(network, nn.Module) else dict(network)
        self.network = network if isinstance(network, nn.Module) else _of_monai(**network)
        self.to_half = _convolution(features, channels[0], stride=2)
        self.to_quarter = _convolution(channels[0], channels[1], stride=2)
        self.out_channels = (channels[0], channels[1])

    def settings(self) -> dict[str, Any]:
        """See :class:`~scripts.core.described.Described`."""
        if self._plain is None:
            raise DataError("the backbone's network must be given by name and arguments: {name: SegResNet, …}")
        values = {"features": self.features, "channels": self.channels, "stride": self.stride}
        return {"kind": self.kind, "network": self._plain, **values}

    def forward(self, pair: Tensor) -> tuple[Tensor, Tensor]:
        """Features at half and at quarter resolution."""
        half = self.to_half(self.network(pair))
        return half, self.to_quarter(half)


def _of_monai(name: str, **arguments: Any) -> nn.Module:
    """A network of `monai.networks.nets`, and nothing else: the name may come from a file."""
    found = getattr(nets, name, None)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise DataError(f"expected the name of a network of monai.networks.nets, got {name!r}")
    return found(**arguments)
