"""Names and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

_SIDES = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))


def direction(offset: tuple[float, float, float]) -> str:
    """A place in the brain in words, such as 'left anterior superior'.

    Args:
        offset: from the brain's middle along RAS, in halves of the brain's size: -1 and 1 are its ends.

    Example:
        >>> direction((-0.6, 0.5, 0.0))
        'left anterior'
    """
    words = [names[int(value > 0)] for names, value in zip(_SIDES, offset, strict=True) if abs(value) > 1 / 3]
    return " ".join(words) or "central"


def plain_name(name: str) -> str:
    """A structure's name for a sentence: FreeSurfer's 'Left-Cerebral-Cortex' becomes 'left cerebral cortex'.

    Abbreviations stay as they are.

    Example:
        >>> plain_name("Right-VentralDC")
        'right VentralDC'
    """
    words = name.replace("-", " ").replace("_", " ").split()
    return " ".join(word.lower() if word.istitle() else word for word in words) or name


def finite(value: Any) -> float | None:
    """A number of the diagnostics, None where it is missing, not a number or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError):
            return None
    return float(value) if math.isfinite(value) else None


def number(value: Any, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent; '–' where there is none.

    Example:
        >>> number(0.041234), number(12345.6), number(None)
        ('0.0412', '12,346', '–')
    """
    plain = finite(value)
    if plain is None:
        return "∞" if value == math.inf else "–"
    if plain == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(plain))))
    text = f"{plain:,.{min(decimals, 8)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: Any, digits: int = 2) -> str:
    """A share of one as percent, with a narrow no-break space.

    Example:
        >>> percent(0.123)
        '12 %'
    """
    plain = finite(share)
    return "–" if plain is None else f"{number(100 * plain, digits)}\u202f%"


def enumerate_words(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""
