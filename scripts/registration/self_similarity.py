"""Self-similarity: images of any two contrasts are alike where the same neighbors look alike.

MIND-SSC (Heinrich et al. 2013). A voxel is described by which of the patches around it resemble each other; what makes
dark things bright does not change that. Twelve pairs of patches are compared, around those of its six neighbors that do
not face each other.

Beyond the image its border voxels are repeated: zeros there would be an edge that both images share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from scripts.registration.errors import OptionError, RegistrationError, check_partner, check_volume
from scripts.registration.parts import Likelihood, check_positive

EPS = 1e-3
"""Added to the mean distance of a voxel's patches: with intensities in [0, 1], differences below 0.03 are noise."""
SIGMA = 0.1
"""σ that ties fields as firmly as local correlation does with its window of 5 voxels and its σ of 0.5."""
CHANNELS = 12
SLAB = {"cpu": 2**17}
"""Voxels at a time by kind of device. What is computed of so few stays in a CPU's cache: a third of the time."""
SLAB_ELSEWHERE = 2**22

Place = list[int]
"""Three numbers: of the voxels from a volume's corner, or of those along its edges."""


class FixedDescriptors(NamedTuple):
    """A fixed image's descriptors; computed once a pair, used for all its samples."""

    channels: Tensor  # [1 or B, 12, X, Y, Z], in (0, 1]
    radius: int
    dilation: int
    eps: float


def descriptors(image: Tensor, radius: int = 1, dilation: int = 1, eps: float = EPS) -> Tensor:
    """Self-similarity context of every voxel.

    s_c = exp(−d_c/v), with d_c the mean squared difference between the patches of pair c, and v the mean of all twelve,
    plus ε. It does not change with brightness or contrast (up to ε), and is 1 where the image is constant.

    Args:
        image: shape [B, 1, X, Y, Z].
        radius: of a patch, which has 2·radius + 1 voxels along its edge.
        dilation: distance of the six neighbors, in voxels.
        eps: ε, in squared units of intensity. It is added, where others cut v off, to leave no kink in the gradient.

    Returns:
        shape [B, 12, X, Y, Z], in (0, 1].

    Raises:
        ShapeError: for another shape.
        OptionError: for sizes that make no patches.
    """
    check_volume("image", image, 1)
    _check_sizes(radius, dilation)
    image = image.as_subclass(Tensor)  # MONAI's metadata would be copied in every operation
    out = image.new_empty(image.shape[0], CHANNELS, *image.shape[2:])
    for one, channels in zip(image, out, strict=True):
        padded = _padded(one, radius + dilation)
        for planes, slab in _slabs(padded, radius + dilation):
            channels[:, planes] = _similarity(_distances(padded[slab], radius, dilation), radius, eps)[1]
    return out


class MINDLikelihood(Likelihood):
    """log p(fixed | warped) = −(1/2σ²) · sum over voxels of the mean squared difference of their twelve descriptors.

    Args:
        radius: of a patch, in voxels, see :func:`descriptors`; the defaults are for 2 mm.
        dilation: distance of the neighbors whose patches are compared.
        sigma: σ; smaller means more trust in the images.
        eps: see :func:`descriptors`.

    Raises:
        OptionError: for settings that make no likelihood.
    """

    kind = "mind"

    def __init__(self, radius: int = 1, dilation: int = 1, sigma: float = SIGMA, eps: float = EPS) -> None:
        super().__init__()
        _check_sizes(radius, dilation)
        self.radius, self.dilation = radius, dilation
        self.sigma, self.eps = check_positive("sigma", sigma), check_positive("eps", eps)
        self.window = 2 * (radius + dilation) + 1

    def precompute(self, fixed: Tensor) -> FixedDescriptors:
        """Descriptors of the fixed image, [B, 1, X, Y, Z].

        Raises:
            ShapeError: for another shape.
            RegistrationError: if a gradient is asked for, which is given to the moving image only.
        """
        check_volume("fixed", fixed, 1)
        if fixed.requires_grad:
            raise RegistrationError("expected a fixed image without gradient, got one that has it; swap the images")
        sizes = (self.radius, self.dilation, self.eps)
        return FixedDescriptors(descriptors(fixed, *sizes), *sizes)

    def forward(self, fixed: Tensor | FixedDescriptors, moving: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `Likelihood.forward`; the fixed image may also be given as it is."""
        check_volume("moving", moving, 1)
        if not isinstance(fixed, FixedDescriptors):
            fixed = self.precompute(fixed)
        sizes = (self.radius, self.dilation, self.eps)
        if fixed[1:] != sizes:
            raise OptionError("the descriptors' radius, dilation and eps", str(sizes), fixed[1:])
        check_partner("fixed", fixed.channels, moving, CHANNELS)
        if mask is not None:
            check_partner("mask", mask, moving, 1)
            mask = mask.as_subclass(Tensor)
        return _SquaredDifference.apply(moving.as_subclass(Tensor), fixed.channels, mask, sizes) / (-2 * self.sigma**2)

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


class _SquaredDifference(torch.autograd.Function):
    """Sum over voxels of the mean squared difference of their descriptors; [B], float64.

    One sample after the other and a slab of planes at a time: twelve channels of all of them would be too much. The
    gradient is found along with the value, so that it is all that is kept for the backward.
    """

    @staticmethod
    def forward(ctx: Any, moving: Tensor, fixed: Tensor, mask: Tensor | None, sizes: tuple[int, int, float]) -> Tensor:
        reach = sizes[0] + sizes[1]
        values = moving.new_zeros(moving.shape[0], dtype=torch.float64)
        gradients = torch.empty_like(moving) if ctx.needs_input_grad[0] else None
        for b, one in enumerate(moving):
            padded = _padded(one, reach)
            gradient = None if gradients is None else torch.zeros_like(padded)
            channels = fixed[b % len(fixed)]
            weights = None if mask is None else mask[b % len(mask), 0]
            for planes, slab in _slabs(padded, reach):
                values[b] += _squared_difference(
                    padded[slab],
                    channels[:, planes],
                    None if weights is None else weights[planes],
                    sizes,
                    None if gradient is None else gradient[slab],
                )
            if gradients is not None and gradient is not None:
                gradients[b, 0] = _unpadded(gradient, reach)
        ctx.save_for_backward(gradients)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (gradients,) = ctx.saved_tensors
        return grad[:, None, None, None, None].to(gradients.dtype) * gradients, None, None, None


def _squared_difference(
    padded: Tensor, fixed: Tensor, weights: Tensor | None, sizes: tuple[int, int, float], gradient: Tensor | None
) -> Tensor:
    """Σ_x w · mean_c (s_c − f_c)² of one slab; its gradient is added to `gradient`, which is padded as the image.

    As s_c = exp(−d_c/v) and v = mean_c d_c + ε, and with q_c = (2w/12) (s_c − f_c) s_c / v, what s_c hands on:
    ∂/∂d_c = −q_c + (1/12) Σ_k q_k d_k / v.
    """
    radius, dilation, eps = sizes
    d = _distances(padded, radius, dilation)
    v, s = _similarity(d, radius, eps)
    difference = s - fixed
    squares = difference.square().mean(0)
    if gradient is not None:
        share = 2 / CHANNELS if weights is None else weights * (2 / CHANNELS)
        q = difference.mul_(s).mul_(share / v)
        common = d.mul_(q).sum(0).div_(CHANNELS * v)
        _add_gradient(common - q, padded, radius, dilation, gradient)
    return (squares if weights is None else squares * weights).sum(dtype=torch.float64)


def _similarity(distances: Tensor, radius: int, eps: float) -> tuple[Tensor, Tensor]:
    """v, [X, Y, Z], and exp(−d/v), [12, X, Y, Z], of distances that are sums over a patch; then v is a sum as well."""
    v = distances.mean(0).add_(eps * (2 * radius + 1) ** 3)
    return v, (distances / -v).exp_()


def _distances(padded: Tensor, radius: int, dilation: int) -> Tensor:
    """Squared differences, summed over patches: [X + 2R, Y + 2R, Z + 2R] to [12, X, Y, Z], R = radius + dilation."""
    grid = [n - 2 * (radius + dilation) for n in padded.shape]
    out = padded.new_empty(CHANNELS, *grid)
    for i, (size, ends, places) in enumerate(_diagonals(grid, radius, dilation)):
        sums = _patch_sums((_cut(padded, ends[0], size) - _cut(padded, ends[1], size)).square_(), radius)
        out[2 * i], out[2 * i + 1] = (_cut(sums, place, grid) for place in places)
    return out


def _add_gradient(grad: Tensor, padded: Tensor, radius: int, dilation: int, out: Tensor) -> None:
    """Add to `out` what the padded image gets from its distances: the steps of `_distances`, backward.

    A sum over patches turns into one over those that a voxel is in, with nothing beyond the grid's own patches.
    """
    grid = list(grad.shape[1:])
    for i, (size, ends, places) in enumerate(_diagonals(grid, radius, dilation)):
        sums = padded.new_zeros([n + 2 * radius for n in size])
        for j, place in enumerate(places):
            _cut(sums, [n + 2 * radius for n in place], grid).add_(grad[2 * i + j])
        change = (_cut(padded, ends[0], size) - _cut(padded, ends[1], size)).mul_(_patch_sums(sums, radius)).mul_(2)
        _cut(out, ends[0], size).add_(change)
        _cut(out, ends[1], size).sub_(change)


def _diagonals(
    grid: Sequence[int], radius: int, dilation: int
) -> Iterator[tuple[Place, tuple[Place, Place], tuple[Place, Place]]]:
    """The twelve pairs of neighbors, two at a time.

    A pair on two axes are the ends of a diagonal of a square, `dilation` along its edge, and x is a corner between
    them. As there are two such corners, the patch distances along a diagonal serve two of the pairs of x.

    Yields:
        size of the volume of voxel pairs; where it starts in the padded image, for both ends of the diagonal; where the
        grid starts in the volume's patch sums, with x at either corner.
    """
    d = dilation
    for axes in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):  # a, b and the one across the square
        size = [n + 2 * radius + (0 if axis == axes[2] else d) for axis, n in enumerate(grid)]
        for first, last in ((0, d), (d, 0)):
            # Padding is for the neighbors, of which there are none across the square: d of it is left out there.
            ends = _along(axes, 0, first, d), _along(axes, d, last, d)
            yield size, ends, (_along(axes, 0, last, 0), _along(axes, d, first, 0))


def _along(axes: tuple[int, int, int], *steps: int) -> Place:
    """The place that is so many steps along these axes."""
    return [steps[axes.index(axis)] for axis in range(3)]


def _patch_sums(volume: Tensor, radius: int) -> Tensor:
    """Sums over the patches that lie inside: [X + 2r, Y + 2r, Z + 2r] to [X, Y, Z]."""
    for axis in range(3 if radius else 0):
        size = volume.shape[axis] - 2 * radius
        total = volume.narrow(axis, 0, size) + volume.narrow(axis, 1, size)
        for i in range(2, 2 * radius + 1):
            total += volume.narrow(axis, i, size)
        volume = total
    return volume


def _cut(volume: Tensor, start: Sequence[int], size: Sequence[int]) -> Tensor:
    """A view of the part of a volume that starts there."""
    for axis in range(3):
        volume = volume.narrow(axis, start[axis], size[axis])
    return volume


def _padded(volume: Tensor, reach: int) -> Tensor:
    """[1, X, Y, Z] to [X + 2 reach, …], border voxels repeated."""
    return F.pad(volume[None], [reach] * 6, mode="replicate")[0, 0]


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


def _check_sizes(radius: int, dilation: int) -> None:
    if radius < 0:
        raise OptionError("radius", "at least 0", radius)
    if dilation < 1:
        raise OptionError("dilation", "at least 1", dilation)
