"""3-D convolution that is fast on a CPU with batches of one pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

MIN_INNERMOST = 8
"""Fewer input channels than this fill no vector register, so they stay outermost."""


class Conv3d(nn.Conv3d):
    """`torch.nn.Conv3d` without bias and groups, 3x3x3, that always takes oneDNN on the CPU, channels innermost.

    torch 2.13 leaves oneDNN for its own kernel (which unfolds the volume) when batch · channels · X · Y is at most
    20,480: with a batch of one, at all coarse levels and at the first layer, whose volume is the largest. With channels
    outermost oneDNN reorders its inputs and gradients at every layer, which costs as much as the arithmetic; so the
    output has channels innermost (`torch.channels_last_3d`), and what follows keeps that order. Only the images
    themselves, two channels, are faster as they are. Results agree to rounding; in a trial at 80x88x104 on one core the
    network's forward and backward took 0.6 times as long as with channels outermost.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, in_channels, X, Y, Z] to [B, out_channels, X/stride, …]."""
        # Not while exporting: the traced or scripted network should run anywhere.
        exporting = torch.jit.is_scripting() or torch.jit.is_tracing() or torch.compiler.is_compiling()
        if exporting or not self._suits(x):
            return super().forward(x)
        order = torch.channels_last_3d if self.in_channels >= MIN_INNERMOST else torch.contiguous_format
        x, weight = x.contiguous(memory_format=order), self.weight.contiguous(memory_format=order)
        return torch.mkldnn_convolution(x, weight, None, (1, 1, 1), self.stride, (1, 1, 1), 1)

    def _suits(self, x: Tensor) -> bool:
        on_cpu = x.device.type == "cpu" and torch.backends.mkldnn.is_available()
        plain = x.dtype == self.weight.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        return on_cpu and plain and x.numel() > 0
