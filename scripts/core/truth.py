"""True and false as people write them, wherever a command line may set them."""

from __future__ import annotations

from typing import Any

from scripts.core.checked import Truth, check


def truth(name: str, value: Any) -> bool:
    """True or false, from words too; see :func:`~scripts.core.checked.check`."""
    return bool(check(name, value, Truth))
