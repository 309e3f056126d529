"""A weight of its own for each voxel and sample: localized importance weights.

One weight a field cannot choose among fields of 300,000 dimensions: a field that is right here is wrong there, and the
weights of a few hundred say nothing, or collapse. But the label of a voxel x depends on the field at x alone. Given the
field, the voxel's own intensity has the likelihood p(I_f(x) | I_m(x + u(x))), so that

    p(label of x = l | images) ≈ Σ_n w_n(x) [L_m(x + u_n(x)) = l],   w_n(x) ∝ p(I_f(x) | I_m(x + u_n(x))),

which is exact importance sampling where voxels are independent given the field at x, and samples come from what all
other voxels say. Samples around a refined mean are near to that: their spread was chosen for it, not by this voxel.

p(f | m) is the pair's own joint histogram at the mean field, so that any two contrasts will do, and a bias field makes
the weights flatter, not wrong.
"""

from __future__ import annotations

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from scripts.registration.space import PairSpace

BINS = 32
_FLOOR = 1e-4
"""Share of each column of the histogram that is spread evenly: nothing is impossible."""


class LocalWeights:
    """Weights of sampled fields at the fixed file's voxels, relative to the mean field's.

    Args:
        fixed: the fixed file's image, [X, Y, Z].
        moving: the moving file's, [X', Y', Z'].
        mean: displacement of the mean field, [3, X, Y, Z] in RAS mm.
    """

    def __init__(self, fixed: Tensor, moving: Tensor, space: PairSpace, mean: Tensor) -> None:
        self.space, self._moving = space, _codes(moving).to(torch.float32)
        codes = _codes(fixed)
        at_mean = self._warped(mean)
        self._table = _conditional(codes, at_mean)
        self._row = codes * BINS
        self._inverse = self._table[self._row + at_mean].reciprocal_()

    def __call__(self, displacement: Tensor) -> Tensor:
        """w of a field, [X, Y, Z], for its displacement [3, X, Y, Z] in RAS mm."""
        return self._table[self._warped(displacement).add_(self._row)].mul_(self._inverse)

    def _warped(self, displacement: Tensor) -> Tensor:
        """Codes of the warped moving image, [X, Y, Z] int32; interpolation stays within them."""
        return self.space.warp(self._moving, displacement.cpu()).add_(0.5).to(torch.int32)


def _codes(image: Tensor) -> Tensor:
    """Intensities as numbers of bins, int32: 0 and below is the first, the rest is divided evenly up to 99.8 %."""
    values = image.as_subclass(Tensor).float()
    inside = values[values > 0]
    top = float(inside.flatten()[:: max(inside.numel() // 100_000, 1)].quantile(0.998)) if inside.numel() else 1.0
    return (values.clamp(0, top) * ((BINS - 1) / max(top, 1e-12))).round_().to(torch.int32)


def _conditional(fixed: Tensor, moving: Tensor) -> Tensor:
    """p(f | m) by the joint histogram, flat: entry f · BINS + m."""
    joint = torch.bincount((fixed.long() * BINS + moving).flatten(), minlength=BINS**2).reshape(BINS, BINS)
    smooth = torch.from_numpy(gaussian_filter(joint.double().numpy(), 1.0))
    smooth += _FLOOR / BINS * smooth.sum(0) + 1e-6
    return (smooth / smooth.sum(0)).float().flatten()
