"""What a posterior is made of: a likelihood of images, a prior of fields, a transform. What others need of each.

A new one is one file with a subclass. It then works in training, refinement, detail, weighing, files and the report:
these ask for nothing but what stands here.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from scripts.core.described import Described
from scripts.registration.errors import OptionError, check_partner
from scripts.registration.spline import upsample


class Likelihood(Described, nn.Module, abc.ABC):
    """log p(fixed | warped), up to a constant: how well a warped moving image explains the fixed one.

    Class attributes:
        window: voxels along an edge of the neighborhood that one term looks at; 1 for single voxels.
    """

    window: int = 1

    def precompute(self, fixed: Tensor) -> Any:
        """What all fields of a pair share of the fixed image, [1, 1, X, Y, Z]; `forward` takes it in its place."""
        return fixed

    @abc.abstractmethod
    def forward(self, fixed: Any, moving: Tensor, mask: Tensor | None = None) -> Tensor:
        """Log-likelihoods.

        Args:
            fixed: what `precompute` made of the fixed image.
            moving: warped images, [B, 1, X, Y, Z].
            mask: weights of the fixed image's voxels, [1, 1, X, Y, Z].

        Returns:
            shape [B], float64.
        """

    @property
    def evidence_weight(self) -> float:
        """How often a number that an expert gives counts beside this sum.

        1 where each voxel is an observation of its own. A sum that counts each independent piece of the images n times
        has to count everything else n times as well.
        """
        return 1.0

    def finer(self) -> Self:
        """The same likelihood for images of twice the resolution."""
        return self


class Prior(Described, nn.Module, abc.ABC):
    """log p(z) of fields on the field grid, up to a constant, in image voxels (decision 9)."""

    @abc.abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """Fields [*, 3, X, Y, Z] to log-densities [*], float64."""

    @property
    @abc.abstractmethod
    def stiffness(self) -> float:
        """Weight of its smoothness: what the price on folds is measured in, see :mod:`scripts.inference.refine`."""


class Transform(Described, nn.Module, abc.ABC):
    """From sampled fields [N, 3, x, y, z] to displacements of the image's voxels.

    Attributes:
        factor: image voxels along the edge of a field voxel.
        linear: whether the displacement is linear in the field, so that knowing one is knowing the other.
        folds: whether such a map can fold.
    """

    factor: int
    linear: ClassVar[bool] = False
    folds: ClassVar[bool] = True

    def forward(self, z: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """Displacements in image voxels.

        Args:
            z: fields on the field grid, shape [N, 3, x, y, z].
            shape: the image grid (X, Y, Z), see :func:`~scripts.registration.spline.upsample`.

        Returns:
            shape [N, 3, X, Y, Z].

        Raises:
            ShapeError: for another shape.
        """
        return upsample(self.control_points(z), self.factor, shape)

    @abc.abstractmethod
    def control_points(self, z: Tensor) -> Tensor:
        """Control points of the cubic B-spline that the displacement is, in image voxels, [N, 3, x, y, z]."""


def sum_of(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B, C, X, Y, Z], times a mask, to [B], in float64: the weights of samples are differences of such sums."""
    if mask is not None:
        check_partner("mask", mask, values)
        values = values * mask
    return values.sum(dim=(1, 2, 3, 4), dtype=torch.float64)


def check_positive(name: str, value: float) -> float:
    """The value.

    Raises:
        OptionError: unless it is a positive number.
    """
    if not (math.isfinite(value) and value > 0):
        raise OptionError(name, "positive", value)
    return value
