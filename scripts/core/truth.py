"""True and false as people write them, wherever a command line may set them."""

from __future__ import annotations

from typing import Any

from scripts.core.errors import DataError

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def truth(name: str, value: Any) -> bool:
    """True or false as people write them on a command line, where `false` arrives as a word.

    Args:
        name: of the option, for the message.
        value: what was given.

    Raises:
        DataError: for anything else.
    """
    try:
        return _WORDS[str(value).strip().lower()]
    except KeyError:
        raise DataError(f"--{name} must be true or false, got {value!r}") from None
