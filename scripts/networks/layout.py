"""What the channels of the network's one output tensor mean, and how they become a Gaussian.

MONAI's tools expect a network with one tensor in and one out. The output, on the field grid, holds side by side: the
mean (3 channels), the raw entries of L (3, 45 or 123) and the factor R (3 r).
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from scripts.core.described import Described
from scripts.gaussian import Stencil, StructuredGaussian
from scripts.gaussian.errors import GaussianError, ShapeError
from scripts.gaussian.stencil import CHANNELS, CrossChannel
from scripts.networks.fields import Fields


class Proposal(Protocol):
    """What fields of one pair are drawn from: all that weighing, redrawing and files ask of it."""

    @property
    def mean(self) -> Tensor:
        """μ, [1, 3, x, y, z]."""

    @property
    def limit(self) -> int | None:
        """How many different samples there are; None for no limit."""

    def draw(self, indices: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Samples of a seed, [n, 1, 3, x, y, z], and their log-densities, [n, 1] float64."""

    def sample(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Tensor:
        """The same samples once more, to the bit, without densities."""

    def average(self, indices: Sequence[int], weights: Tensor, seed: int = 0) -> Tensor:
        """The weighted mean of some samples, [1, 3, x, y, z]; weights (n,) add up to 1."""


class Layout(Described, abc.ABC):
    """How the raw output of a network [B, out_channels, x, y, z] is read as fields and as a proposal.

    A network of another kind of proposal comes with a layout of its own; nothing else has to know.

    Attributes:
        deterministic: there is a field (or several), but nothing to be drawn.
    """

    deterministic: bool = False

    @property
    @abc.abstractmethod
    def out_channels(self) -> int:
        """Channels in all."""

    @property
    def mean_channels(self) -> int:
        """Of these, the first ones: fields that refinement improves, in image voxels."""
        return CHANNELS

    @abc.abstractmethod
    def proposal(self, raw: Tensor) -> Proposal:
        """The :class:`Proposal` of one pair's raw output [1, out_channels, x, y, z]."""

    def means(self, raw: Tensor) -> Tensor:
        """The fields of one pair's raw output, [K, 3, x, y, z]."""
        self._check(raw)
        return raw[0, : self.mean_channels].unflatten(0, (-1, CHANNELS))

    def with_means(self, raw: Tensor, means: Tensor) -> Tensor:
        """One pair's raw output with other fields [K, 3, x, y, z] in it."""
        self._check(raw)
        return torch.cat([means.flatten(0, 1)[None].to(raw), raw[:, self.mean_channels :]], dim=1)

    def rounded(self, raw: Tensor) -> Tensor:
        """One pair's raw output with all but the fields rounded to half precision, as files keep it.

        Raises:
            GaussianError: for numbers beyond half precision; a trained network makes none.
        """
        out = self.with_means(raw.half().float(), self.means(raw))
        if not bool(torch.isfinite(out).all()):
            raise GaussianError("the network's output is not finite in half precision; are these the right weights?")
        return out

    def _check(self, raw: Tensor) -> None:
        if raw.ndim != 5 or raw.shape[1] != self.out_channels:
            raise ShapeError("the network's output", f"(B, {self.out_channels}, X, Y, Z)", raw.shape)


class ProposalLayout(Layout):
    """Channels of the raw output, and the way from it to a `StructuredGaussian`.

    Args:
        cross_channel: pattern of L, see `Stencil`; `none` for a diagonal L.
        rank: columns r of R; 0 for none (decision 4).
        initial_std: standard deviation in image voxels that a raw output of zero stands for.
        dominance: bound on the rows of L, see `Stencil`.
        deterministic: only the mean, no covariance at all (VoxelMorph).
    """

    kind = "gaussian"

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
        self.cross_channel, self.initial_std, self.dominance = cross_channel, initial_std, dominance
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

    def proposal(self, raw: Tensor) -> Proposal:
        """See `Layout.proposal`: a Gaussian, or the one field of a deterministic network."""
        return Fields(self.means(raw)) if self.deterministic else self.gaussian(raw)

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
