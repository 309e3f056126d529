"""How fields spread around the mean that was found, and how their samples are weighed: the one place of this choice.

| kind | fields | weights |
|---|---|---|
| `network` | the network's own Gaussian: the paper's | one a field, by SIR |
| `curvature` | wide where the images say little, see :mod:`scripts.networks.curvature` | one a voxel and field |
| `noise` | smooth noise of one width everywhere: what everything else has to beat | none |

A new kind is one file with a subclass, named as `spread` in the config.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from scripts.core.described import Described, make
from scripts.core.errors import DataError
from scripts.networks.curvature import COMPONENTS, CurvatureLayout
from scripts.networks.layout import Layout
from scripts.networks.noise import NoiseLayout
from scripts.networks.scaled import ScaledLayout
from scripts.posterior.pair_images import PairImages
from scripts.registration.curvature import WINDOW, curvature_weights
from scripts.registration.space import PairSpace
from scripts.registration.target import Target
from scripts.registration.warp import warp


class Spread(Described, abc.ABC):
    """How samples are made around a mean.

    Attributes:
        selects: one weight a field, by the posterior: many proposals are drawn and resampled. Otherwise as many are
            drawn as are kept, and all count alike.
        local: each voxel weighs the labels of the samples by how well they explain its own intensity, see
            :mod:`scripts.posterior.local_weights`.
        blur: width in voxels of the Gaussian by which probabilities of labels are blurred: a label map knows its
            boundaries to half a voxel, and samples do not move them by less than they all share.
    """

    selects: ClassVar[bool] = False
    local: bool = False
    blur: float = 0.0

    @abc.abstractmethod
    def around(
        self, raw: Tensor, layout: Layout, target: Target, space: PairSpace, pair: PairImages
    ) -> tuple[Tensor, Layout]:
        """Parameters of the proposal, [1, C, x, y, z], and how they are read.

        Args:
            raw: the network's output with the mean that was found, [1, C, x, y, z].
            layout: how that is read.
            space: with the detail that was found.
        """


class NetworkSpread(Spread):
    """The Gaussian that the network predicts, times one number; weighed by SIR, or not at all.

    Args:
        scale: of all standard deviations; 1 for the network's own.
        selects: weigh fields by the posterior, as the paper does.
        local: see `Spread`.
    """

    kind = "network"

    def __init__(self, scale: float = 1.0, selects: bool = True, local: bool = False) -> None:
        if not scale > 0:
            raise DataError(f"a spread needs a positive scale, got {scale}")
        self.scale, self.selects, self.local = scale, selects, local  # type: ignore[misc]

    def around(
        self, raw: Tensor, layout: Layout, target: Target, space: PairSpace, pair: PairImages
    ) -> tuple[Tensor, Layout]:
        """See `Spread.around`."""
        return raw, layout if self.scale == 1 else ScaledLayout(layout, self.scale)


class NoiseSpread(Spread):
    """Smooth noise of one width everywhere: no network, no weights. What a claim of calibration has to beat.

    Args:
        std_mm: standard deviation along each axis.
        length_mm: standard deviation of the Gaussian filter that smooths it.
        local: see `Spread`.
    """

    kind = "noise"

    def __init__(self, std_mm: float = 1.0, length_mm: float = 4.0, local: bool = False) -> None:
        if not (std_mm > 0 and length_mm >= 0):
            raise DataError(f"noise needs a positive std_mm and a length_mm, got {std_mm} and {length_mm}")
        self.std_mm, self.length_mm, self.local = std_mm, length_mm, local

    def around(
        self, raw: Tensor, layout: Layout, target: Target, space: PairSpace, pair: PairImages
    ) -> tuple[Tensor, Layout]:
        """See `Spread.around`."""
        voxel = float(space.work.spacing.mean())
        return _mean_of(raw, layout), NoiseLayout(self.std_mm / voxel, self.length_mm / (voxel * space.factor))


class CurvatureSpread(Spread):
    """N(μ, S P⁻¹ S) with P = τ W + λ DᵀD + ρ: the images' own curvature W at the mean, and the prior's.

    W is the Gauss-Newton curvature of the squared local correlation, (2/σ²) Σ mean(ncc²/var m) ∇m ∇mᵀ over the voxels
    of a control point's block; τ makes up for counting each of them in window³ windows.

    Args:
        trust: τ.
        stiffness: λ, in 1 / (image voxels)².
        ridge: ρ.
        share, passes: of the smoothing S, see :class:`~scripts.gaussian.smoothed.SmoothedCholesky`.
        local, blur: see `Spread`.
    """

    kind = "curvature"

    def __init__(
        self,
        trust: float = 0.0028,
        stiffness: float = 0.009,
        ridge: float = 3e-5,
        share: float = 0.24,
        passes: int = 8,
        local: bool = True,
        blur: float = 0.38,
    ) -> None:
        self.trust, self.stiffness, self.ridge = trust, stiffness, ridge
        self.share, self.passes, self.local, self.blur = share, passes, local, blur
        self.layout = CurvatureLayout(trust, stiffness, ridge, share, passes)  # refused now, not after the refinement

    def around(
        self, raw: Tensor, layout: Layout, target: Target, space: PairSpace, pair: PairImages
    ) -> tuple[Tensor, Layout]:
        """See `Spread.around`."""
        mean = _mean_of(raw, layout)
        return torch.cat([mean, curvature(target, space, pair, mean)], dim=1), self.layout


@torch.no_grad()
def curvature(target: Target, space: PairSpace, pair: PairImages, mean: Tensor) -> Tensor:
    """W at every control point, [1, 6, x, y, z], for the mean field [1, 3, x, y, z]."""
    warped = warp(pair.moving, space.on_work(target.transform.control_points(mean)))
    window = target.likelihood.window if target.likelihood.window > 1 else WINDOW
    weights = curvature_weights(pair.fixed, warped, window)
    if pair.mask is not None:
        weights = weights * pair.mask
    slopes = torch.stack(torch.gradient(warped[0, 0]))
    products = torch.stack([weights[0, 0] * slopes[row] * slopes[column] for row, column in COMPONENTS])
    return F.avg_pool3d(products[None], space.factor, ceil_mode=True, divisor_override=1)


def named_spread(given: Spread | str | None, known: Mapping[str, Any] | None = None) -> Spread:
    """The spread that is asked for, as it is or by its kind; None for the network's own.

    Args:
        known: settings with which a kind was calibrated.

    Raises:
        DataError: for a kind that there is not.
    """
    if isinstance(given, Spread):
        return given
    kind = given or NetworkSpread.kind
    settings = known if known is not None and known["kind"] == kind else {"kind": kind}
    return make(settings, Spread)  # type: ignore[type-abstract]


def _mean_of(raw: Tensor, layout: Layout) -> Tensor:
    """The one field of a raw output, [1, 3, x, y, z]."""
    means = layout.means(raw)
    if len(means) != 1:
        raise DataError(f"an ensemble of {len(means)} fields is its own spread; say --spread network")
    return means
