"""What an expert knows about a pair, as it is given: corresponding points, a corrected label map."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scripts.core.errors import DataError
from scripts.evidence.known import Known
from scripts.evidence.landmarks import Landmarks
from scripts.evidence.outline import Outline
from scripts.registration.space import PairSpace


class Correction(NamedTuple):
    """A corrected label map of the fixed image."""

    labels: np.ndarray  # [X, Y, Z] on the fixed file's grid, int32
    structures: tuple[int, ...]  # that count
    std: float = 1.0  # of the outlines, mm
    demanded: bool = True  # a person named the structures, so that one that cannot be used is an error


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
