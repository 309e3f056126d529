"""Self-similarity: images of any two contrasts are alike where the same neighbors look alike.

MIND-SSC (Heinrich et al. 2013). A voxel is described by which of the patches around it resemble each other; what makes
dark things bright does not change that. Twelve pairs of patches are compared, around those of its six neighbors that do
not face each other.

Beyond the image its border voxels are repeated: zeros there would be an edge that both images share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.registration.errors import OptionError, check_partner, check_volume
from scripts.registration.parts import GradientAtOnce, Likelihood, check_fixed, check_positive

EPS = 1e-3
"""Added to the mean distance of a voxel's patches: with intensities in [0, 1], differences below 0.03 are noise."""
SIGMA = 0.1
"""σ that ties fields as firmly as local correlation does with its window of 5 voxels and its σ of 0.5."""
CHANNELS = 12
SLAB = {"cpu": 2**17}
"""Voxels at a time by kind of device. What is computed of so few stays in a CPU's cache: a third of the time."""
SLAB_ELSEWHERE = 2**22

Place = np.ndarray
"""Three numbers: of the voxels from a volume's corner, or of those along its edges."""


class Sizes(NamedTuple):
    """What descriptors depend on, beside the image; see `MINDLikelihood`."""

    radius: int
    dilation: int
    eps: float

    @property
    def reach(self) -> int:
        """Voxels from one to the farthest that its descriptor looks at."""
        return self.radius + self.dilation


class FixedDescriptors(NamedTuple):
    """A fixed image's descriptors; computed once a pair, used for all its samples."""

    channels: Tensor  # [1 or B, 12, X, Y, Z], in (0, 1]
    sizes: Sizes


class MINDLikelihood(Likelihood):
    """log p(fixed | warped) = −(1/2σ²) · sum over voxels of the mean squared difference of their twelve descriptors.

    Args:
        radius: of a patch, which has 2·radius + 1 voxels along its edge; the defaults are for 2 mm.
        dilation: distance of the six neighbors whose patches are compared, in voxels.
        sigma: σ; smaller means more trust in the images.
        eps: ε, in squared units of intensity. It is added, where others cut v off, to leave no kink in the gradient.
    """

    kind = "mind"

    def __init__(self, radius: int = 1, dilation: int = 1, sigma: float = SIGMA, eps: float = EPS) -> None:
        super().__init__()
        if radius < 0:
            raise OptionError("radius", "at least 0", radius)
        if dilation < 1:
            raise OptionError("dilation", "at least 1", dilation)
        self.radius, self.dilation = radius, dilation
        self.sigma, self.eps = check_positive("sigma", sigma), check_positive("eps", eps)
        self.sizes = Sizes(radius, dilation, eps)
        self.window = 2 * self.sizes.reach + 1

    def precompute(self, fixed: Tensor) -> FixedDescriptors:
        """Self-similarity context of every voxel of the fixed image, [B, 1, X, Y, Z]; errors as `check_fixed`'s.

        s_c = exp(−d_c/v), with d_c the mean squared difference between the patches of pair c, and v the mean of all
        twelve, plus ε. It does not change with brightness or contrast (up to ε), and is 1 where the image is constant.
        """
        fixed = check_fixed(fixed)
        out = fixed.new_empty(fixed.shape[0], CHANNELS, *fixed.shape[2:])
        for one, channels in zip(fixed, out, strict=True):
            padded = _padded(one[0], self.sizes.reach)
            for planes, slab in _slabs(padded, self.sizes.reach):
                channels[:, planes] = _similarity(_distances(padded[slab], self.sizes), self.sizes)[1]
        return FixedDescriptors(out, self.sizes)

    def forward(self, fixed: Tensor | FixedDescriptors, moving: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `Likelihood.forward`; the fixed image may also be given as it is."""
        check_volume("moving", moving, 1)
        if not isinstance(fixed, FixedDescriptors):
            fixed = self.precompute(fixed)
        if fixed.sizes != self.sizes:
            raise OptionError("the descriptors' radius, dilation and eps", str(tuple(self.sizes)), tuple(fixed.sizes))
        channels = fixed.channels
        check_partner("fixed", channels, moving, CHANNELS)
        if mask is not None:
            check_partner("mask", mask, moving, 1)
            mask = mask.as_subclass(Tensor)

        def of_one(b: int, image: Tensor, gradient: Tensor | None) -> Tensor:
            weights = None if mask is None else mask[b % len(mask), 0]
            return _squared_difference(image, channels[b % len(channels)], weights, self.sizes, gradient)

        return GradientAtOnce.apply(moving.as_subclass(Tensor), of_one) / (-2 * self.sigma**2)

    @property
    def evidence_weight(self) -> float:
        """Voxels whose patches overlap share what they say: each independent piece counts window³ times.

        More at small σ. At the default, the sum pulls as hard as a local correlation of the same window does at its
        own σ, and counts what is beside it as often.
        """
        return float(self.window) ** 3 * (SIGMA / self.sigma) ** 2

    def finer(self) -> MINDLikelihood:
        """Patches and distances of the same size in mm."""
        return MINDLikelihood(2 * self.radius, 2 * self.dilation, self.sigma, self.eps)


def _squared_difference(
    image: Tensor, fixed: Tensor, weights: Tensor | None, sizes: Sizes, gradient: Tensor | None
) -> Tensor:
    """Σ_x w · mean_c (s_c − f_c)² of an image, [], float64; its gradient goes to `gradient`, if there is one.

    A slab of planes at a time: twelve channels of all of them would be too much. As s_c = exp(−d_c/v) and
    v = mean_c d_c + ε, and with q_c = (2w/12) (s_c − f_c) s_c / v, what s_c hands on:
    ∂/∂d_c = −q_c + (1/12) Σ_k q_k d_k / v.
    """
    padded = _padded(image, sizes.reach)
    collected = torch.zeros_like(padded)
    total = image.new_zeros((), dtype=torch.float64)
    for planes, slab in _slabs(padded, sizes.reach):
        weight = 1.0 if weights is None else weights[planes]
        d = _distances(padded[slab], sizes)
        v, s = _similarity(d, sizes)
        difference = s - fixed[:, planes]
        total += (difference.square().mean(0) * weight).sum(dtype=torch.float64)
        if gradient is not None:
            q = difference.mul_(s).mul_(weight * (2 / CHANNELS) / v)
            common = d.mul_(q).sum(0).div_(CHANNELS * v)
            _add_gradient(common - q, padded[slab], sizes, collected[slab])
    if gradient is not None:
        gradient.copy_(_unpadded(collected, sizes.reach))
    return total


def _similarity(distances: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """v, [X, Y, Z], and exp(−d/v), [12, X, Y, Z], of distances that are sums over a patch; then v is a sum as well."""
    v = distances.mean(0).add_(sizes.eps * (2 * sizes.radius + 1) ** 3)
    return v, (distances / -v).exp_()


def _distances(padded: Tensor, sizes: Sizes) -> Tensor:
    """Squared differences, summed over patches: [X + 2 reach, Y + 2 reach, Z + 2 reach] to [12, X, Y, Z]."""
    grid = np.array(padded.shape) - 2 * sizes.reach
    out = padded.new_empty(CHANNELS, *grid.tolist())
    for i, (size, ends, places) in enumerate(_diagonals(grid, sizes)):
        sums = _patch_sums((_cut(padded, ends[0], size) - _cut(padded, ends[1], size)).square_(), sizes.radius)
        out[2 * i], out[2 * i + 1] = (_cut(sums, place, grid) for place in places)
    return out


def _add_gradient(grad: Tensor, padded: Tensor, sizes: Sizes, out: Tensor) -> None:
    """Add to `out` what the padded image gets from its distances: the steps of `_distances`, backward.

    A sum over patches turns into one over those that a voxel is in, with nothing beyond the grid's own patches.
    """
    grid, margin = np.array(grad.shape[1:]), 2 * sizes.radius
    for i, (size, ends, places) in enumerate(_diagonals(grid, sizes)):
        sums = padded.new_zeros((size + margin).tolist())
        for j, place in enumerate(places):
            _cut(sums, place + margin, grid).add_(grad[2 * i + j])
        change = _cut(padded, ends[0], size) - _cut(padded, ends[1], size)
        change.mul_(_patch_sums(sums, sizes.radius)).mul_(2)
        _cut(out, ends[0], size).add_(change)
        _cut(out, ends[1], size).sub_(change)


def _diagonals(grid: Place, sizes: Sizes) -> Iterator[tuple[Place, tuple[Place, Place], tuple[Place, Place]]]:
    """The twelve pairs of neighbors, two at a time.

    A pair on two axes are the ends of a diagonal of a square, `dilation` along its edge, and x is a corner between
    them. As there are two such corners, the patch distances along a diagonal serve two of the pairs of x.

    Yields:
        size of the volume of voxel pairs; where it starts in the padded image, for both ends of the diagonal; where the
        grid starts in the volume's patch sums, with x at either corner.
    """
    steps, nowhere = sizes.dilation * np.eye(3, dtype=int), np.zeros(3, dtype=int)
    for a, b, across in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        # Padding is for the neighbors, of which there are none across the square: their distance is left out there.
        along, up, left_out = steps[a], steps[b], steps[across]
        size = grid + 2 * sizes.radius + along + up
        for first, last in ((nowhere, up), (up, nowhere)):
            yield size, (left_out + first, left_out + along + last), (last, along + first)


def _patch_sums(volume: Tensor, radius: int) -> Tensor:
    """Sums over the patches that lie inside: [X + 2r, Y + 2r, Z + 2r] to [X, Y, Z]."""
    for axis in range(3 if radius else 0):
        size = volume.shape[axis] - 2 * radius
        total = volume.narrow(axis, 0, size) + volume.narrow(axis, 1, size)
        for i in range(2, 2 * radius + 1):
            total += volume.narrow(axis, i, size)
        volume = total
    return volume


def _cut(volume: Tensor, start: Place, size: Place) -> Tensor:
    """A view of the part of a volume that starts there."""
    return volume[tuple(slice(first, first + length) for first, length in zip(start, size, strict=True))]


def _padded(volume: Tensor, reach: int) -> Tensor:
    """[X, Y, Z] to [X + 2 reach, …], border voxels repeated."""
    return F.pad(volume[None, None], [reach] * 6, mode="replicate")[0, 0]


def _unpadded(gradient: Tensor, reach: int) -> Tensor:
    """The image's gradient from that of the padded one, which is used up: repeated voxels add up at the border."""
    for axis in range(3):
        size = gradient.shape[axis] - 2 * reach
        inner = gradient.narrow(axis, reach, size)
        for border, beyond in ((0, 0), (size - 1, reach + size)):
            inner.narrow(axis, border, 1).add_(gradient.narrow(axis, beyond, reach).sum(axis, keepdim=True))
        gradient = inner
    return gradient


def _slabs(padded: Tensor, reach: int) -> Iterator[tuple[slice, slice]]:
    """Planes of the image that go together, and those of the padded one that they need."""
    voxels = SLAB.get(padded.device.type, SLAB_ELSEWHERE)
    planes, count = padded.shape[0] - 2 * reach, max(voxels // padded[0].numel(), 2 * reach)
    for start in range(0, planes, count):
        stop = min(start + count, planes)
        yield slice(start, stop), slice(start, stop + 2 * reach)
