"""One line for a person, an exit code for a script; a traceback only on request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.core.errors import CheckpointError, DataError
from scripts.evaluation.results import ResultsError
from scripts.gaussian.errors import GaussianError
from scripts.inference.errors import ObservationError, WeightError
from scripts.registration.errors import RegistrationError

EXPECTED = (
    DataError, CheckpointError, ResultsError, GaussianError, WeightError, ObservationError, RegistrationError,
    MemoryError,
)  # fmt: skip
"""Errors whose message is meant for the user. Any other is a mistake of ours, and says how to find it."""


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """End the program with the message alone when an error occurs.

    `SystemExit` is used because it is the only thing that MONAI's config parser does not wrap into errors of its own.

    Raises:
        SystemExit: with code 1 after an error, 130 after an interruption; not if `debug`.
    """
    try:
        yield
    except KeyboardInterrupt:
        if debug:
            raise
        print("\ninterrupted; files under their final names are complete", file=sys.stderr, flush=True)
        raise SystemExit(130) from None
    except Exception as error:
        if debug:
            raise
        print(f"error: {describe(error)}", file=sys.stderr, flush=True)
        raise SystemExit(1) from None


def describe(error: BaseException) -> str:
    """An error on one line: the message of an expected one; of any other also its kind, and how to see more."""
    text = " ".join(str(error).split())
    if isinstance(error, EXPECTED):
        return text or ("out of memory" if isinstance(error, MemoryError) else type(error).__name__)
    return f"{type(error).__name__}: {text} (not foreseen; --debug true shows where it happened)"


def cause_of(error: BaseException) -> BaseException:
    """What MONAI's errors are about, at the end of their chain."""
    while error.__cause__ is not None and not isinstance(error, EXPECTED):
        error = error.__cause__
    return error
