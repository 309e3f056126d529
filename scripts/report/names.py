"""Names and numbers as people write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.posterior.result import StructureVolume

_SIDES = (("left", "right"), ("posterior", "anterior"), ("inferior", "superior"))


def direction(offset: Sequence[float]) -> str:
    """A place in words, such as 'left anterior superior', from its RAS offset in halves of the brain's size."""
    words = [names[int(value > 0)] for names, value in zip(_SIDES, offset, strict=True) if abs(value) > 1 / 3]
    return " ".join(words) or "central"


def plain_name(name: str) -> str:
    """A structure's name for a sentence: FreeSurfer's 'Left-Cerebral-Cortex' becomes 'left cerebral cortex'.

    Abbreviations stay as they are, as in 'right VentralDC'.
    """
    words = name.replace("-", " ").replace("_", " ").split()
    return " ".join(word.lower() if word.istitle() else word for word in words) or name


def plain_names(volumes: Sequence[StructureVolume]) -> dict[int, str]:
    """The structures' names for sentences, by their labels."""
    return {volume.label: plain_name(volume.name) for volume in volumes}


def real(value: Any) -> float:
    """A number, which may be infinite; NaN, with which no comparison holds, where there is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def figure(diagnostics: Mapping[str, Any], name: str) -> float:
    """A figure of the diagnostics; NaN, with which no comparison holds, where it is missing or not finite."""
    value = real(diagnostics.get(name))
    return value if math.isfinite(value) else math.nan


def number(value: Any, digits: int = 3) -> str:
    """A number with `digits` significant digits and no exponent: '0.0412', '12,346'; '–' where there is none."""
    value = real(value)
    if not math.isfinite(value):
        return "∞" if value == math.inf else "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(decimals, 8)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: Any) -> str:
    """A share of one as percent, with two digits and a narrow no-break space; '–' where there is none."""
    share = real(share)
    return f"{number(100 * share, 2)}\u202f%" if math.isfinite(share) else "–"


def enumerate_words(words: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)
