"""Smooth noise around a mean as a proposal: the simplest spread there is."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from scripts.gaussian.noise import standard_normal
from scripts.gaussian.stencil import CHANNELS
from scripts.networks.layout import Layout


class NoiseLayout(Layout):
    """Raw output [B, 3, x, y, z]: the mean, to which white noise through a Gaussian filter is added.

    Args:
        std: standard deviation along each axis, in image voxels.
        length: standard deviation of the filter, in field voxels.
    """

    kind = "noise_layout"

    def __init__(self, std: float, length: float) -> None:
        self.std, self.length = std, length

    @property
    def out_channels(self) -> int:
        """Channels in all."""
        return CHANNELS

    def proposal(self, raw: Tensor) -> SmoothNoise:
        """See `Layout.proposal`."""
        self._check(raw)
        return SmoothNoise(raw, self.std, self.length)


class SmoothNoise:
    """A :class:`~scripts.networks.layout.Proposal` of smooth noise, without a density to weigh it by: log q is 0."""

    limit: int | None = None

    def __init__(self, mean: Tensor, std: float, length: float) -> None:
        self.mean, self.std, self.length = mean, std, length

    def sample(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Tensor:
        """Samples of a seed, [n, 1, 3, x, y, z]."""
        which = range(n) if n is not None else list(indices or [])
        shape = self.mean.shape[1:]
        white = standard_normal(shape, seed, which, dtype=torch.float32, device=torch.device("cpu"))
        lengths = (0, 0, self.length, self.length, self.length)
        smooth = torch.from_numpy(gaussian_filter(white.numpy(), lengths, mode="nearest", truncate=4.0))
        gain = self.std / _remaining(tuple(shape[1:]), self.length)
        return self.mean + (gain * smooth)[:, None].to(self.mean)

    def draw(self, indices: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples, and 0 for their log-densities, [n, 1] float64."""
        return self.sample(indices=indices, seed=seed), torch.zeros(len(indices), 1, dtype=torch.float64)

    def average(self, indices: Sequence[int], weights: Tensor, seed: int = 0) -> Tensor:
        """The weighted mean of some samples, [1, 3, x, y, z]."""
        fields = self.sample(indices=indices, seed=seed)
        return torch.einsum("n,n...->...", weights.to(fields), fields)


@functools.lru_cache(maxsize=4)
def _remaining(grid: tuple[int, ...], length: float) -> float:
    """Standard deviation that the filter leaves of white noise, in the middle of a grid: the root of its energy."""
    impulse = torch.zeros(grid)
    impulse[tuple(size // 2 for size in grid)] = 1
    response = gaussian_filter(impulse.numpy(), length, mode="nearest", truncate=4.0)
    return float((response**2).sum() ** 0.5)
