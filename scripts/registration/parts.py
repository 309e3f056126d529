"""What a posterior is made of: a likelihood of images, a prior of fields, a transform. What others need of each.

A new one is one file with a subclass. It then works in training, refinement, detail, weighing, files and the report:
these ask for nothing but what stands here.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from scripts.core.described import Described
from scripts.registration.errors import OptionError, RegistrationError, check_partner, check_volume
from scripts.registration.spline import upsample


class Likelihood(Described, nn.Module, abc.ABC):
    """log p(fixed | warped), up to a constant: how well a warped moving image explains the fixed one.

    Settings that make no likelihood are refused with an `OptionError`.

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
    """log p(z) of fields on the field grid, up to a constant, in image voxels (decision 9).

    Attributes:
        stiffness: weight of its smoothness, in which the price on folds is measured (:mod:`scripts.inference.refine`).
    """

    stiffness: float

    @abc.abstractmethod
    def forward(self, z: Tensor) -> Tensor:
        """Fields [*, 3, X, Y, Z] to log-densities [*], float64."""


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
        """Displacements in image voxels, [N, 3, X, Y, Z], of fields on the field grid, [N, 3, x, y, z].

        `shape` is the image grid (X, Y, Z), see :func:`~scripts.registration.spline.upsample`.
        """
        return upsample(self.control_points(z), self.factor, shape)

    @abc.abstractmethod
    def control_points(self, z: Tensor) -> Tensor:
        """Control points of the cubic B-spline that the displacement is, in image voxels, [N, 3, x, y, z]."""


class GradientAtOnce(torch.autograd.Function):
    """Values of images, the gradient of which is found along with them: it is all that is kept for the backward.

    One image after the other, as what is computed of a single one is large.
    """

    @staticmethod
    def forward(ctx: Any, moving: Tensor, of_one: Callable[[int, Tensor, Tensor | None], Tensor]) -> Tensor:
        """Values [B], float64, of images [B, 1, X, Y, Z].

        `of_one` makes the value [] of a number in the batch and its image [X, Y, Z], and puts the gradient into its
        third argument, [X, Y, Z] zeros, if there is one.
        """
        values = moving.new_zeros(moving.shape[0], dtype=torch.float64)
        gradients = moving.new_zeros(moving.shape) if ctx.needs_input_grad[0] else None
        for b in range(len(moving)):
            values[b] = of_one(b, moving[b, 0], None if gradients is None else gradients[b, 0])
        ctx.save_for_backward(gradients)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Gradients of the images."""
        (gradients,) = ctx.saved_tensors
        return grad[:, None, None, None, None].to(gradients.dtype) * gradients, None


def check_fixed(fixed: Tensor) -> Tensor:
    """The fixed image, [B, 1, X, Y, Z], as a plain tensor: MONAI's metadata would be copied in every operation.

    Raises:
        ShapeError: for another shape.
        RegistrationError: if a gradient is asked for, which is given to the moving image only.
    """
    check_volume("fixed", fixed, 1)
    if fixed.requires_grad:
        raise RegistrationError("expected a fixed image without gradient, got one that has it; swap the images")
    return fixed.as_subclass(Tensor)


def sum_of(values: Tensor, mask: Tensor | None = None) -> Tensor:
    """[B, C, X, Y, Z], times a mask, to [B], in float64: the weights of samples are differences of such sums."""
    if mask is not None:
        check_partner("mask", mask, values)
        values = values * mask
    return values.sum(dim=(1, 2, 3, 4), dtype=torch.float64)


def check_positive(name: str, value: float) -> float:
    """The value; an OptionError unless it is a positive number."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(name, "positive", value)
    return value
