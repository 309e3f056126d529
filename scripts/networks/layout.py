"""What the channels of the network's one output tensor mean, and how they become a Gaussian.

MONAI's tools expect a network with one tensor in and one out. The output, on the field grid, holds side by side: the
mean (3 channels), the raw entries of L (3, 45 or 123) and the factor R (3 r).
"""

from __future__ import annotations

from torch import Tensor

from scripts.gaussian import Stencil, StructuredGaussian
from scripts.gaussian.errors import ShapeError
from scripts.gaussian.stencil import CHANNELS, CrossChannel


class ProposalLayout:
    """Channels of the raw output, and the way from it to a `StructuredGaussian`.

    Args:
        cross_channel: pattern of L, see `Stencil`; `none` for a diagonal L.
        rank: columns r of R; 0 for none (decision 4).
        initial_std: standard deviation in image voxels that a raw output of zero stands for.
        dominance: bound on the rows of L, see `Stencil`.
        deterministic: only the mean, no covariance at all (VoxelMorph).
    """

    def __init__(
        self,
        cross_channel: CrossChannel = "voxel",
        rank: int = 10,
        initial_std: float = 0.25,
        dominance: float | None = None,
        deterministic: bool = False,
    ) -> None:
        if rank < 0:
            raise ValueError(f"rank must not be negative, got {rank}")
        if deterministic and rank:
            raise ValueError(f"a deterministic network has no covariance, but rank is {rank}; set it to 0")
        self.stencil = Stencil(cross_channel, initial_std, dominance)
        self.rank = rank
        self.deterministic = deterministic

    @property
    def stencil_channels(self) -> int:
        """Channels of raw entries of L."""
        return 0 if self.deterministic else self.stencil.num_channels

    @property
    def out_channels(self) -> int:
        """Channels in all."""
        return CHANNELS + self.stencil_channels + CHANNELS * self.rank

    def mean(self, raw: Tensor) -> Tensor:
        """The mean field in image voxels, shape [B, 3, X, Y, Z], of raw [B, out_channels, X, Y, Z]."""
        self._check(raw)
        return raw[:, :CHANNELS]

    def off_diagonals(self, raw: Tensor) -> Tensor:
        """The entries of L below its diagonal, shape [B, 0 | 42 | 120, X, Y, Z]: what the L2 penalty is about."""
        self._check(raw)
        return raw[:, 2 * CHANNELS : CHANNELS + self.stencil_channels]

    def gaussian(self, raw: Tensor, backend: str | None = None, validate: bool = True) -> StructuredGaussian:
        """The proposal of raw [B, out_channels, X, Y, Z]; see `StructuredGaussian` for the arguments."""
        self._check(raw)
        if self.deterministic:
            raise ValueError("a deterministic network predicts a field, not a distribution")
        split = CHANNELS + self.stencil_channels
        factor = raw[:, split:].unflatten(1, (self.rank, CHANNELS)) if self.rank else None
        entries = self.stencil.entries(raw[:, CHANNELS:split])
        return StructuredGaussian(raw[:, :CHANNELS], entries, factor, backend=backend, validate=validate)

    def _check(self, raw: Tensor) -> None:
        if raw.ndim != 5 or raw.shape[1] != self.out_channels:
            raise ShapeError("the network's output", f"(B, {self.out_channels}, X, Y, Z)", raw.shape)
