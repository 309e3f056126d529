"""Named errors and warnings of importance sampling."""

from __future__ import annotations


class WeightError(ValueError):
    """Log-weights from which no posterior can be formed."""


class WeightWarning(UserWarning):
    """The weights are usable, but the posterior rests on very few samples."""


class ObservationError(ValueError):
    """Observations of the field that cannot be used."""
