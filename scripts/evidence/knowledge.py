"""What an expert knows about a pair: as it is given, and as observations of the field and a likelihood to climb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from scripts.core.errors import DataError
from scripts.evidence.landmarks import Landmarks
from scripts.evidence.outline import Outline
from scripts.gaussian import StructuredGaussian
from scripts.inference.discrepancy import Conditioned, condition
from scripts.inference.observations import Observations
from scripts.registration.space import PairSpace


class Correction(NamedTuple):
    """A corrected label map of the fixed image."""

    labels: np.ndarray  # [X, Y, Z] on the fixed file's grid, int32
    structures: tuple[int, ...]  # that count
    std: float = 1.0  # of the outlines, mm
    demanded: bool = True  # a person named the structures, so that one that cannot be used is an error


@dataclass(frozen=True)
class Known:
    """Landmarks and the outline of corrected structures in a space, at least one of them."""

    space: PairSpace
    landmarks: Landmarks | None = None
    outline: Outline | None = None

    def given_to(self, proposal: StructuredGaussian, lengths: Sequence[float] = ()) -> Conditioned:
        """A proposal that knows this, too; linear around the mean that it has then, see :meth:`Outline.condition`."""
        marks = self._marks()
        if self.outline is None:
            return condition(proposal, Observations.join(marks), lengths)
        return self.outline.condition(proposal, marks, lengths)

    def around(self, mean: Tensor) -> Observations:
        """Linear around a mean field [1, 3, x, y, z]."""
        marks = self._marks()
        return Observations.join(marks if self.outline is None else [*marks, self.outline.around(mean)])

    def log_likelihood(self, z: Tensor) -> Tensor:
        """log p(E | z) of a field [1, 3, x, y, z] up to a constant, with the gradient of its linear form; a scalar."""
        seen = self.around(z.detach())
        residual = (seen.values.to(z.device) - seen.apply(z)[0]) / seen.std.to(z.device)
        return -0.5 * residual.square().sum()

    def in_space(self, space: PairSpace) -> Known:
        """The same in a space of the same files with another field grid or detail."""
        return replace(self, space=space, outline=None if self.outline is None else self.outline.in_space(space))

    def _marks(self) -> list[Observations]:
        return [] if self.landmarks is None else [self.landmarks.observations(self.space)]


@dataclass(frozen=True)
class Knowledge:
    """All that an expert says about one pair: corresponding points, a corrected label map, or both.

    With `discrepancy`, a local error of the proposal is allowed for, see :mod:`~scripts.inference.discrepancy`.
    """

    landmarks: Landmarks | None = None
    correction: Correction | None = None
    discrepancy: bool = True

    def about(self, space: PairSpace, moving_label: np.ndarray | None) -> Known:
        """The same as observations and likelihoods of fields.

        A correction needs the moving image's label map, [X', Y', Z'] on its file's grid.

        Raises:
            DataError: for evidence that cannot be used.
        """
        if self.correction is None:
            return Known(space, self.landmarks)
        if moving_label is None:
            raise DataError("--corrected_label needs the moving image's own label map: name it with --moving_label")
        structures = list(self.correction.structures)
        if not self.correction.demanded:  # what the moving map does not have was not propagated: no correction of it
            structures = [value for value in structures if (moving_label == value).any()]
            if not structures:
                raise DataError("corrected_label: none of its structures is in the moving label map")
        outline = Outline(self.correction.labels, moving_label, structures, space, self.correction.std)
        return Known(space, self.landmarks, outline)
