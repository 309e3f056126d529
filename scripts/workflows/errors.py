"""One line for a person, an exit code for a script; a traceback only on request."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from scripts.data.errors import DataError
from scripts.engines.errors import CheckpointError
from scripts.evaluation.results import ResultsError
from scripts.gaussian.errors import GaussianError
from scripts.inference.errors import ObservationError, WeightError
from scripts.registration.errors import RegistrationError

EXPECTED = (
    DataError, CheckpointError, ResultsError, GaussianError, WeightError, ObservationError, RegistrationError,
    MemoryError,
)  # fmt: skip
"""Errors whose message is meant for the user. Any other is a mistake of ours, and keeps its traceback."""


@contextmanager
def one_line_errors(debug: bool = False) -> Iterator[None]:
    """End the program with the message alone when an expected error occurs.

    `SystemExit` is used because it is the only thing that MONAI's config parser does not wrap into errors of its own.

    Args:
        debug: let errors through, with their traceback.
    """
    try:
        yield
    except EXPECTED as error:
        if debug:
            raise
        print(f"error: {describe(error)}", file=sys.stderr, flush=True)
        print("(run again with --debug true for the traceback)", file=sys.stderr, flush=True)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        if debug:
            raise
        print("\ninterrupted; files under their final names are complete", file=sys.stderr, flush=True)
        raise SystemExit(130) from None


def describe(error: BaseException) -> str:
    """An error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__
