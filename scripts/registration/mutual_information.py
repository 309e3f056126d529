"""Mutual information: images of any two contrasts explain each other as far as one's intensity tells the other's.

Of a joint histogram after Mattes et al. (2003): each voxel of the moving image is spread over four bins by a cubic
B-spline, so that the histogram changes smoothly with its intensity. The fixed image's bins are hard, as it stays.

Without a mask, the fixed image's foreground counts, and a rim around it. Skull-stripped images are exactly 0 outside of
the brain. If all of that counted, the histogram would say above all where the brain is; if none of it did, nothing
would hold the brain's outline.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.registration.errors import OptionError, check_partner, check_volume
from scripts.registration.parts import GradientAtOnce, Likelihood, check_fixed, check_positive

TAPS = 4
"""Bins that an intensity of the moving image is spread over."""
CHUNK = {"cpu": 2**15}
"""Voxels at a time by kind of device. What is computed of so few stays in a CPU's cache."""
CHUNK_ELSEWHERE = 2**22
TINY = torch.finfo(torch.float64).tiny
"""In place of an empty bin's 0: its logarithm is multiplied by 0, and must be finite for that."""


class FixedBins(NamedTuple):
    """What a fixed image contributes to every joint histogram; computed once a pair, used for all its samples."""

    indices: Tensor  # the bin of each voxel, [1 or B, 1, X, Y, Z], int32
    weights: Tensor  # of the voxels where no mask is given, the same shape
    bins: int


class MutualInformationLikelihood(Likelihood):
    """log p(fixed | warped) = weight · N · MI, with N the number of the fixed image's voxels that count.

    N · MI = Σ_v log p(f_v | m_v) − Σ_v log p(f_v), with the densities that the joint histogram gives: the likelihood of
    the fixed image where the moving one is known, and where how they belong together is read from the pair itself. The
    second sum is the same for all fields.

    Args:
        bins: of each image, for intensities in [0, 1]; what lies beyond counts as 0 or 1.
        weight: how often each voxel counts. 2 ties fields as firmly as local correlation does with its window of 5
            voxels and its σ of 0.5.
        rim: voxels around the fixed image's foreground that count as well, where there is no mask.
    """

    kind = "mi"

    def __init__(self, bins: int = 32, weight: float = 2.0, rim: int = 2) -> None:
        super().__init__()
        if bins < TAPS:
            raise OptionError("bins", f"at least {TAPS}", bins)
        if rim < 0:
            raise OptionError("rim", "at least 0", rim)
        self.bins, self.weight, self.rim = bins, check_positive("weight", weight), rim

    def precompute(self, fixed: Tensor) -> FixedBins:
        """The bins of the fixed image's voxels, [B, 1, X, Y, Z], and which of them count; errors as `check_fixed`'s."""
        fixed = check_fixed(fixed)
        indices = (fixed * self.bins).nan_to_num_(0.0).clamp_(0, self.bins - 1).int()
        weights = (fixed > 0).to(fixed.dtype)
        for axis in range(3):  # the largest value in a cube, one axis after the other
            edge, around = [1, 1, 1], [0, 0, 0]
            edge[axis], around[axis] = 2 * self.rim + 1, self.rim
            weights = F.max_pool3d(weights, edge, stride=1, padding=around)
        return FixedBins(indices, weights, self.bins)

    def forward(self, fixed: Tensor | FixedBins, moving: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `Likelihood.forward`; the fixed image may also be given as it is."""
        check_volume("moving", moving, 1)
        if not isinstance(fixed, FixedBins):
            fixed = self.precompute(fixed)
        if fixed.bins != self.bins:
            raise OptionError("the fixed image's bins", str(self.bins), fixed.bins)
        check_partner("fixed", fixed.indices, moving, 1)
        weights = fixed.weights if mask is None else mask.as_subclass(Tensor)
        check_partner("mask", weights, moving, 1)

        def information(b: int, image: Tensor, gradient: Tensor | None) -> Tensor:
            index, weight = fixed.indices[b % len(fixed.indices), 0], weights[b % len(weights), 0]
            return _information(image, index, weight, self.bins, gradient)

        return self.weight * GradientAtOnce.apply(moving.as_subclass(Tensor), information)

    @property
    def evidence_weight(self) -> float:
        """The weight: each voxel is one observation, looked at without its neighbors, and counts as often as that."""
        return self.weight

    def finer(self) -> MutualInformationLikelihood:
        """The rim of the same size in mm."""
        return MutualInformationLikelihood(self.bins, self.weight, 2 * self.rim)


def _information(moving: Tensor, indices: Tensor, weights: Tensor, bins: int, gradient: Tensor | None) -> Tensor:
    """N · MI of one pair, from volumes to []; its gradient goes to `gradient`, zeros of their shape, if there is one.

    H(f, k) = Σ_v w_v [f_v = f] β(k − u_v), with u the moving image's intensities in bins. N · MI is
    Σ H(f, k) log(H(f, k) N / (H(f) H(k))), and its derivative by H(f, k) is log(H(f, k)/H(k)) = log p(f | k), as
    neither N nor H(f) depends on the moving image.
    """
    moving, indices, weights = moving.reshape(-1), indices.reshape(-1), weights.reshape(-1)
    counted = None
    if moving.device.type in CHUNK:  # elsewhere, asking how many voxels count would wait for the device
        counted = weights.nonzero()[:, 0]
        moving, indices, weights = (part.index_select(0, counted) for part in (moving, indices, weights))
    intervals = bins - TAPS + 1  # between 0 and 1: the splines of both need a bin more beyond
    step = CHUNK.get(moving.device.type, CHUNK_ELSEWHERE)
    chunks = [slice(start, start + step) for start in range(0, len(moving), step)]
    table = torch.zeros(TAPS, bins * intervals, dtype=torch.float64, device=moving.device)
    for chunk in chunks:
        cell, t = _cells(moving[chunk], indices[chunk], intervals)
        table.index_add_(1, cell, _splines(t).mul_(weights[chunk]))
    joint = table.new_zeros(bins, bins)
    for tap in range(TAPS):
        joint[:, tap : tap + intervals] += table[tap].view(bins, intervals)
    logs, fixed_logs, moving_logs, log_count = (
        part.clamp_min(TINY).log() for part in (joint, joint.sum(1, keepdim=True), joint.sum(0), joint.sum())
    )
    conditional = logs - moving_logs  # log p(f | k), [f, k]
    if gradient is not None:
        gradient = gradient.view(-1)
        # A cubic spline's slope is the quadratic spline of the differences between its coefficients.
        rises = conditional.diff(dim=1)
        table = torch.stack([rises[:, tap : tap + intervals].reshape(-1) for tap in range(TAPS - 1)])
        for chunk in chunks:
            cell, t = _cells(moving[chunk], indices[chunk], intervals)
            first, second, third = table.index_select(1, cell)
            left = 1 - t
            slope = (first * left * left + second * (1 + 2 * t * left) + third * t * t) * (intervals / 2)
            slope *= weights[chunk] * ((moving[chunk] >= 0) & (moving[chunk] <= 1))
            if counted is None:
                gradient[chunk] = slope.to(gradient.dtype)
            else:
                gradient.index_copy_(0, counted[chunk], slope.to(gradient.dtype))
    return (joint * (conditional - fixed_logs + log_count)).sum()


def _cells(moving: Tensor, indices: Tensor, intervals: int) -> tuple[Tensor, Tensor]:
    """Each voxel's pair of fixed bin and moving interval, as one number, and how far it is into the interval; [V]."""
    u = moving.double().clamp(0, 1).mul_(intervals)
    interval = u.floor().nan_to_num_(0.0).clamp_max_(intervals - 1)
    return indices * intervals + interval.long(), u.sub_(interval)


def _splines(t: Tensor) -> Tensor:
    """Shares of the four bins around an intensity: β(t + 1), β(t), β(t − 1), β(t − 2) of the cubic B-spline; [4, V]."""
    left = 1 - t
    before, after = left.pow(3).div_(6), t.pow(3).div_(6)
    first = 2 / 3 - t * t * (1 - t / 2)
    return torch.stack([before, first, 1 - before - first - after, after])
