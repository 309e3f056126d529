"""All that is known about a pair, in one of its spaces: as observations of the field, and as a likelihood to climb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from scripts.evidence.landmarks import Landmarks
from scripts.evidence.outline import Outline
from scripts.gaussian import StructuredGaussian
from scripts.inference.discrepancy import Conditioned, condition
from scripts.inference.observations import Observations
from scripts.registration.space import PairSpace


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
