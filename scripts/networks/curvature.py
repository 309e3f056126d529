"""A proposal made of the images' curvature: wide where they say little, narrow where they hold a field in place.

What is stored of a pair is W, six numbers a control point; L follows from it. So a file is smaller than with L itself,
and `run apply` gets the same samples to the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.core.errors import DataError
from scripts.gaussian import StructuredGaussian
from scripts.gaussian.incomplete import incomplete_cholesky
from scripts.gaussian.smoothed import SmoothedCholesky
from scripts.gaussian.stencil import CHANNELS, PRECEDING
from scripts.networks.layout import Layout

COMPONENTS = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))
"""Of the symmetric W, in the order of its channels."""
_FACES = ((-1, 0, 0), (0, -1, 0), (0, 0, -1))


class CurvatureLayout(Layout):
    """Raw output [B, 9, x, y, z]: the mean, then W, read as N(μ, S P⁻¹ S) with P = τ W + λ DᵀD + ρ.

    DᵀD is the Laplacian of the field grid (D takes differences of neighbors), S a smoothing. L is P's incomplete
    Cholesky factor, see :mod:`scripts.gaussian.incomplete`.

    Args:
        trust: τ, how much the images' curvature counts. Their sum counts each independent piece window³ times.
        stiffness: λ, in 1 / (image voxels)².
        ridge: ρ, which keeps P positive definite.
        share: of a neighbor in S, see :class:`~scripts.gaussian.smoothed.SmoothedCholesky`.
        passes: of S.
    """

    kind = "curvature_layout"

    def __init__(
        self, trust: float, stiffness: float, ridge: float = 1e-4, share: float = 0.24, passes: int = 8
    ) -> None:
        if not (trust >= 0 and stiffness > 0 and ridge > 0):
            raise DataError(f"expected trust ≥ 0, stiffness > 0, ridge > 0, got {trust}, {stiffness}, {ridge}")
        self.trust, self.stiffness, self.ridge, self.share, self.passes = trust, stiffness, ridge, share, passes

    @property
    def out_channels(self) -> int:
        """Channels in all."""
        return CHANNELS + len(COMPONENTS)

    def proposal(self, raw: Tensor) -> StructuredGaussian:
        """See `Layout.proposal`."""
        self._check(raw)
        own = self.stiffness * _neighbors(raw.shape[2:]) + self.ridge
        own = own[..., None, None] * torch.eye(CHANNELS, dtype=torch.float64)
        for channel, (row, column) in enumerate(COMPONENTS):
            values = self.trust * raw[0, CHANNELS + channel].double().cpu()
            own[..., row, column] += values
            if row != column:
                own[..., column, row] += values
        couplings = torch.zeros(len(PRECEDING))
        couplings[[PRECEDING.index(face) for face in _FACES]] = -self.stiffness
        entries = incomplete_cholesky(own, couplings)[None].to(raw)
        gaussian = StructuredGaussian(raw[:, :CHANNELS], entries, validate=False)
        gaussian.cholesky = SmoothedCholesky(gaussian.cholesky, self.share, self.passes)
        return gaussian


def _neighbors(grid: torch.Size) -> Tensor:
    """How many face neighbors each voxel has: the diagonal of DᵀD, [x, y, z]."""
    count = torch.zeros(grid, dtype=torch.float64)
    for axis, size in enumerate(grid):
        along = torch.full((size,), 2.0, dtype=torch.float64)
        along[0] -= 1
        along[-1] -= 1
        count += along.reshape([-1 if a == axis else 1 for a in range(3)])
    return count
