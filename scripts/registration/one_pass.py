"""Weighing fields without gradients in one pass over the images: where the compiled loops for it serve, and their use.

They are for the common case, a displacement and local correlation in float32 on a CPU: there they do in one sweep what
`transform`, `warp` and `local_correlation` do one after the other with full-size volumes between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from scripts.registration.backends import compiled
from scripts.registration.errors import check_volume
from scripts.registration.local_correlation import FixedStatistics, NCCLikelihood
from scripts.registration.parts import Likelihood, Transform
from scripts.registration.spline import image_grid, phases
from scripts.registration.transform import DisplacementTransform

if TYPE_CHECKING:
    from scripts.registration.target import Pair

_NAME = "numba_likelihood"
_POSITIONS = 2**31
"""Voxels are counted in int32."""


def serves(transform: Transform, likelihood: Likelihood, pair: Pair, z: Tensor) -> bool:
    """Whether such fields can be weighed in one pass."""
    if type(transform) is not DisplacementTransform or type(likelihood) is not NCCLikelihood:
        return False
    if not isinstance(pair.fixed, FixedStatistics) or pair.fixed.window != likelihood.window:
        return False
    few_enough = (pair.shape[0] + 1) * (pair.shape[1] + 1) * pair.shape[2] < _POSITIONS
    return few_enough and compiled(_NAME, z, pair.moving, pair.fixed.image) is not None


def log_likelihood(transform: Transform, likelihood: Any, pair: Pair, z: Tensor) -> Tensor:
    """log p(I_f | I_m ∘ Z) of fields that are served, [N, 3, x, y, z]; shape [N], float64; NaN where one is not finite.

    The images are arranged for any number of fields once a pair.

    Raises:
        ShapeError: for fields of another shape.
    """
    check_volume("z", z, 3)
    image_grid(z, transform.factor, pair.shape)
    loops: Any = compiled(_NAME)
    settings = likelihood.eps, likelihood.sigma
    kept = [] if pair.arranged is None else pair.arranged
    if not kept or kept[0] != settings:
        kept[:] = [settings, loops.prepare(pair.moving, pair.fixed, pair.mask, *settings)]
    return loops.log_likelihood(kept[1], z.as_subclass(Tensor), *phases(transform.factor))
