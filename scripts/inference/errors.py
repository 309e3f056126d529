"""Named errors of importance sampling."""

from __future__ import annotations


class WeightError(ValueError):
    """Log-weights from which no posterior can be formed."""


class ObservationError(ValueError):
    """Observations of the field that cannot be used."""
