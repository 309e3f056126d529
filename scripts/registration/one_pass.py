"""Weighing fields without gradients in one pass over the images: where the compiled loops for it serve, and their use.

They are for the common case, a displacement and local correlation in float32 on a CPU: there they do in one sweep what
`transform`, `warp` and `similarity` do one after the other with full-size volumes between them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from scripts.registration.backends import compiled
from scripts.registration.errors import check_volume
from scripts.registration.local_correlation import FixedStatistics, NCCLikelihood
from scripts.registration.spline import image_grid, phases
from scripts.registration.transform import DisplacementTransform

_NAME = "numba_likelihood"
_POSITIONS = 2**31
"""Voxels are counted in int32."""


def serves(
    transform: nn.Module, likelihood: nn.Module, fixed: Any, moving: Tensor, mask: Tensor | None, z: Tensor
) -> bool:
    """Whether such fields can be weighed in one pass."""
    if type(transform) is not DisplacementTransform or type(likelihood) is not NCCLikelihood:
        return False
    if not isinstance(fixed, FixedStatistics) or fixed.window != likelihood.window:
        return False
    shape = tuple(moving.shape)
    one_image = shape[:2] == (1, 1) and all(
        volume is None or tuple(volume.shape) == shape for volume in (fixed.image, mask)
    )
    few_enough = (shape[2] + 1) * (shape[3] + 1) * shape[4] < _POSITIONS
    return one_image and few_enough and compiled(_NAME, z, moving, fixed.image) is not None


class OnePass:
    """A pair of images, arranged for weighing any number of fields.

    Args:
        transform: `DisplacementTransform`.
        likelihood: `NCCLikelihood`.
        fixed: statistics of the fixed image, [1, 1, X, Y, Z].
        moving: the same shape.
        mask: weights of the fixed image's voxels, the same shape, or None.
    """

    def __init__(
        self, transform: nn.Module, likelihood: nn.Module, fixed: FixedStatistics, moving: Tensor, mask: Tensor | None
    ) -> None:
        self._settings = _settings(transform, likelihood)
        self._factor, window, sigma, eps = self._settings
        self._shape = moving.shape[2:]
        loops: Any = compiled(_NAME, moving, fixed.image)
        self._loops = loops
        self._pair = loops.prepare(moving, fixed.image, fixed.mean, fixed.variance, mask, window, eps, sigma)

    def belongs_to(self, transform: nn.Module, likelihood: nn.Module) -> bool:
        """Whether these settings are those that the pair was arranged for."""
        return self._settings == _settings(transform, likelihood)

    def __call__(self, z: Tensor) -> Tensor:
        """log p(I_f | I_m ∘ Z) of fields [N, 3, x, y, z]; shape [N], float64; NaN where a field is not finite.

        Raises:
            ShapeError: for fields of another shape.
        """
        check_volume("z", z, 3)
        image_grid(z, self._factor, self._shape)
        return self._loops.log_likelihood(self._pair, z.as_subclass(Tensor), *phases(self._factor))


def _settings(transform: Any, likelihood: Any) -> tuple[int, int, float, float]:
    return transform.factor, likelihood.window, likelihood.sigma, likelihood.eps
