"""How well the warped moving image explains the fixed one: local correlation and the likelihoods built on it.

A window around a voxel is cut off at the image's border, and its statistics are those of the voxels that remain. Zeros
outside would do two kinds of harm: they add an edge that both images share, and they make the value at the border
depend on the images' brightness, to which a correlation must be blind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from scripts.core.fusion import fused
from scripts.registration.backends import compiled
from scripts.registration.errors import OptionError, check_partner, check_volume
from scripts.registration.parts import Likelihood, check_fixed, check_positive, sum_of

EPS = 1e-5
"""Added to both local variances: with intensities in [0, 1], a contrast below 0.003 counts as none."""
SIGMA = 0.5
"""σ of decision 8."""


class FixedStatistics(NamedTuple):
    """What a fixed image contributes to every local correlation; computed once a pair, used for all its samples."""

    image: Tensor  # [B, 1, X, Y, Z]
    mean: Tensor  # local means, float64: in float32 a covariance of nearly equal numbers would be lost
    variance: Tensor  # local variances, float64
    window: int


def fixed_statistics(fixed: Tensor, window: int = 9) -> FixedStatistics:
    """Local mean and variance of the fixed image, shape [B, 1, X, Y, Z].

    Raises:
        OptionError: for a window that is not odd and positive.
        ShapeError, RegistrationError: see `check_fixed`.
    """
    _check_window(window)
    fixed = check_fixed(fixed)
    fast = compiled("numba_ncc", fixed)
    mean, variance = (fast.statistics if fast else _torch_statistics)(fixed, window)
    return FixedStatistics(fixed, mean, variance, window)


def local_ncc(fixed: Tensor | FixedStatistics, moving: Tensor, window: int = 9, eps: float = EPS) -> Tensor:
    """Squared local correlation of two images at every voxel, shape [B, 1, X, Y, Z].

    ncc² = cov(f, m)² / ((var f + ε) (var m + ε)), over the window around the voxel. It lies in [0, 1], is 0 where an
    image is constant, and does not change with brightness or contrast (up to ε). Sums are float64: with float32 images
    the map is that of a float64 computation to 10⁻⁷.

    Args:
        fixed: shape [1 or B, 1, X, Y, Z]; or its statistics.
        moving: the warped image, shape [B, 1, X, Y, Z]; the one that gets a gradient.
        window: voxels along an edge of the window, odd; taken from the statistics if they are given.
        eps: ε, in squared units of intensity.

    Raises:
        ShapeError, OptionError, RegistrationError: see :func:`fixed_statistics`.
    """
    check_volume("moving", moving, 1)
    if not isinstance(fixed, FixedStatistics):
        fixed = fixed_statistics(fixed, window)
    check_partner("fixed", fixed.image, moving, 1)
    return _LocalNCC.apply(moving.as_subclass(Tensor), fixed, eps)


class NCCLikelihood(Likelihood):
    """log p(fixed | warped) = (1/σ²) · sum over voxels of the squared local correlation (decision 8).

    Args:
        window: voxels along an edge of the window, odd: 9 at 1 mm, 5 at 2 mm.
        sigma: σ; smaller means more trust in the images.
        eps: see :func:`local_ncc`.
    """

    kind = "ncc"

    def __init__(self, window: int = 9, sigma: float = SIGMA, eps: float = EPS) -> None:
        super().__init__()
        _check_window(window)
        self.window, self.sigma, self.eps = window, check_positive("sigma", sigma), check_positive("eps", eps)

    def precompute(self, fixed: Tensor) -> FixedStatistics:
        """Local mean and variance of the fixed image."""
        return fixed_statistics(fixed, self.window)

    def forward(self, fixed: Tensor | FixedStatistics, moving: Tensor, mask: Tensor | None = None) -> Tensor:
        """See `Likelihood.forward`; the fixed image may also be given as it is."""
        if isinstance(fixed, FixedStatistics) and fixed.window != self.window:
            raise OptionError("the statistics' window", str(self.window), fixed.window)
        return sum_of(local_ncc(fixed, moving, self.window, self.eps), mask) / self.sigma**2

    @property
    def evidence_weight(self) -> float:
        """The voxels of a window share what they say: each independent piece counts window³ times, more at small σ."""
        return float(self.window) ** 3 * (SIGMA / self.sigma) ** 2

    def finer(self) -> NCCLikelihood:
        """The window of about the same size in mm."""
        return NCCLikelihood(2 * self.window - 1, self.sigma, self.eps)


class MSELikelihood(Likelihood):
    """log p(fixed | warped) = −(1/2σ²) · sum over voxels of squared differences: independent Gaussian noise.

    Args:
        sigma: the noise's standard deviation, in units of intensity.
    """

    kind = "mse"

    def __init__(self, sigma: float = 0.1) -> None:
        super().__init__()
        self.sigma = check_positive("sigma", sigma)

    def forward(self, fixed: Tensor, moving: Tensor, mask: Tensor | None = None) -> Tensor:
        """[1 or B, C, X, Y, Z] and [B, C, X, Y, Z] to log-likelihoods [B], float64."""
        check_volume("moving", moving)
        check_partner("fixed", fixed, moving, moving.shape[1])
        return sum_of((fixed - moving).square(), mask) / (-2 * self.sigma**2)


def box_sum(x: Tensor, window: int) -> Tensor:
    """Sums over the window around every voxel, cut off at the border; shapes [B, C, X, Y, Z].

    Doubling: sums of 1, 2, 4, … neighbors, added up to the window as its binary digits say. Unlike a difference of
    cumulative sums, no number is larger than the result.
    """
    radius = window // 2
    for axis in (2, 3, 4):
        size, start, length = x.shape[axis], 0, 1
        run = F.pad(x, [0, 0] * (4 - axis) + [radius, radius])  # run[i]: sum of `length` voxels from i on
        total = torch.zeros_like(x)
        while True:
            if window & length:
                total += run.narrow(axis, start, size)
                start += length
            if 2 * length > window:
                break
            count = run.shape[axis] - length
            run = run.narrow(axis, 0, count) + run.narrow(axis, length, count)
            length *= 2
        x = total
    return x


class _LocalNCC(torch.autograd.Function):
    """The map of squared correlations. Its gradient is box sums again.

    Left to autograd it took twice the time of the torch version, ten times that of the compiled one, and kept 59 MiB
    instead of 23 for the backward (80×96×112, window 9).
    """

    @staticmethod
    def forward(ctx: Any, moving: Tensor, fixed: FixedStatistics, eps: float) -> Tensor:
        fast = compiled("numba_ncc", fixed.image, moving)
        run = fast.forward if fast else _torch_forward
        out, kept = run(fixed.image, fixed.mean, fixed.variance, moving, fixed.window, eps, ctx.needs_input_grad[0])
        ctx.window, ctx.fast = fixed.window, fast
        ctx.save_for_backward(fixed.image, fixed.mean, moving, *kept)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, mean, moving, *kept = ctx.saved_tensors
        run = ctx.fast.backward if ctx.fast else _torch_backward
        return run(image, mean, moving, tuple(kept), grad, ctx.window), None, None


@fused
def _torch_statistics(image: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Local mean and variance, both of shape [B, 1, X, Y, Z] and float64."""
    share = 1 / _window_sizes(image, window)
    double = image.double()
    mean = box_sum(double, window).mul_(share)
    # Var = E m² − (E m)²; below zero is rounding
    return mean, box_sum(double.square(), window).mul_(share).addcmul_(mean, mean, value=-1).clamp_min_(0)


@fused
def _torch_forward(
    fixed: Tensor, mean: Tensor, variance: Tensor, moving: Tensor, window: int, eps: float, with_gradient: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The map, and for the gradient: the moving image's local mean, a = 2 cov/(F·M) and b = 2 ncc²/M.

    F and M are the variances with ε. All of shape [B, 1, X, Y, Z] and the moving image's dtype.
    """
    m_mean, spread = _torch_statistics(moving, window)
    spread += eps
    # cov(f, m) = E fm − E f · E m
    covariance = (box_sum(moving.double() * fixed, window) / _window_sizes(moving, window)).sub_(mean * m_mean)
    slope = covariance / ((variance + eps) * spread)
    ncc = covariance * slope
    kept = (m_mean, 2 * slope, 2 * ncc / spread) if with_gradient else ()
    return ncc.to(moving.dtype), tuple(part.to(moving.dtype) for part in kept)


@fused
def _torch_backward(
    fixed: Tensor, mean: Tensor, moving: Tensor, kept: tuple[Tensor, ...], grad: Tensor, window: int
) -> Tensor:
    """Σ over the windows w that voxel i is in: (g/n)·[a (f_i − mean_f) − b (m_i − mean_m)] at w.

    For ∂cov_w/∂m_i = (f_i − mean_f)/n, ∂var_w/∂m_i = 2 (m_i − mean_m)/n, ∂ncc²/∂cov = a, ∂ncc²/∂var = −b/2. A voxel is
    in the windows around the voxels that are in its own, so the sums are box sums.
    """
    m_mean, a, b = kept
    weight = grad.double() / _window_sizes(moving, window)
    alpha, beta = weight * a, weight * b
    out = fixed * box_sum(alpha, window) - moving * box_sum(beta, window)
    return (out - box_sum(alpha * mean - beta * m_mean, window)).to(moving.dtype)


def _window_sizes(volume: Tensor, window: int) -> Tensor:
    """Voxels in each window, fewer at the border; shape [X, Y, Z], float64."""
    radius = window // 2
    out = volume.new_ones((), dtype=torch.float64)
    for size in volume.shape[2:]:
        i = torch.arange(size, device=volume.device)
        extent = (i + radius + 1).clamp_max(size) - (i - radius).clamp_min(0)
        out = out[..., None] * extent
    return out


def _check_window(window: int) -> None:
    if window < 1 or window % 2 == 0:
        raise OptionError("window", "odd and positive", window)
