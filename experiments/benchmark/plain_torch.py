"""Weighing a proposal as one writes it first, in plain torch: what `experiments.benchmark.inference` compares with.

Nothing here is made slow on purpose. Where there was a choice, the faster of the obvious ways was taken: the spline as
sums of shifted slices instead of transposed convolutions, means over windows an axis at a time, the fixed image's
statistics once a pair, log q from the noise. The solver is the wavefront, `scripts.gaussian.backends.torch_wavefront`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_SPLINE = (1 / 384, 121 / 384, 235 / 384, 27 / 384)
"""The cubic B-spline's weights of the controls k − 2 … k + 1 at k − ¼; at k + ¼ they are those of k + 2 … k − 1."""


def upsample(field: Tensor) -> Tensor:
    """The cubic B-spline with the control points [N, C, x, y, z] on a grid twice as fine, [N, C, 2x, 2y, 2z]."""
    for axis in (2, 3, 4):
        size = field.shape[axis]
        padded = field.index_select(axis, torch.arange(-2, size + 2).clamp(0, size - 1))
        controls = [padded.narrow(axis, start, size) for start in range(5)]
        lower = sum(weight * control for weight, control in zip(_SPLINE, controls[:4], strict=True))
        upper = sum(weight * control for weight, control in zip(_SPLINE, controls[:0:-1], strict=True))
        field = torch.stack([lower, upper], dim=axis + 1).flatten(axis, axis + 1)  # type: ignore[list-item]
    return field


def warp(image: Tensor, ddf: Tensor) -> Tensor:
    """image(i + ddf(i)) by `grid_sample`: image [1, 1, X, Y, Z], ddf [N, 3, X, Y, Z] in voxels; [N, 1, X, Y, Z]."""
    shape = image.shape[2:]
    identity = torch.stack(torch.meshgrid(*(torch.arange(size) for size in shape), indexing="ij"))
    last = torch.tensor(shape).reshape(3, 1, 1, 1) - 1
    places = 2 * (identity + ddf) / last - 1  # from 0 … size − 1 to −1 … 1
    grid = places.flip(1).permute(0, 2, 3, 4, 1)  # grid_sample counts axes from the last
    return F.grid_sample(image.expand(ddf.shape[0], -1, -1, -1, -1), grid, padding_mode="border", align_corners=True)


class LocalCorrelation(NamedTuple):
    """Squared local correlation with a fixed image by `avg_pool3d`, windows cut off at the border."""

    fixed: Tensor  # [1, 1, X, Y, Z]
    mean: Tensor  # of its windows
    variance: Tensor
    window: int
    eps: float

    @classmethod
    def with_fixed(cls, fixed: Tensor, window: int, eps: float) -> LocalCorrelation:
        """Take the fixed image's statistics, once a pair."""
        mean = _pool(fixed, window)
        return cls(fixed, mean, _pool(fixed * fixed, window) - mean * mean, window, eps)

    def __call__(self, warped: Tensor) -> Tensor:
        """Sums over the voxels of [N, 1, X, Y, Z]; shape [N], float64."""
        mean = _pool(warped, self.window)
        variance = _pool(warped * warped, self.window) - mean * mean
        covariance = _pool(self.fixed * warped, self.window) - self.mean * mean
        ncc = covariance * covariance / ((self.variance + self.eps) * (variance + self.eps))
        return ncc.sum(dim=(1, 2, 3, 4), dtype=torch.float64)


def _pool(volume: Tensor, window: int) -> Tensor:
    """Means over the window, an axis at a time: a single `avg_pool3d` gives the same and adds window³ numbers."""
    for axis in range(3):
        size, padding = [1, 1, 1], [0, 0, 0]
        size[axis], padding[axis] = window, window // 2
        volume = F.avg_pool3d(volume, size, stride=1, padding=padding, count_include_pad=False)
    return volume


def diffusion_energy(z: Tensor) -> Tensor:
    """½ Σ of squared differences between neighbors, [N, 3, x, y, z] to [N], float64."""
    squares = [z.diff(dim=axis).square().sum(dim=(1, 2, 3, 4), dtype=torch.float64) for axis in (2, 3, 4)]
    return 0.5 * functools.reduce(torch.add, squares)


def moments(fields: Sequence[Tensor], counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance of the displacements [1, 3, 2x, 2y, 2z] of fields [1, 3, x, y, z], each drawn n times.

    By sums and sums of squares: the fewest operations, though float32 loses digits where the mean is large.
    """
    total, squares = torch.zeros(()), torch.zeros(())
    for field, count in zip(fields, counts, strict=True):
        ddf = upsample(field)
        total = total + count * ddf
        squares = squares + count * ddf * ddf
    number = sum(counts)
    mean = total / number
    return mean, (squares - number * mean * mean) / max(number - 1, 1)
