"""What the parts of a prepared pair are called; see :mod:`scripts.data.pair_input` for what they hold."""

from __future__ import annotations

FILE_KEYS = ("fixed", "moving", "fixed_label", "moving_label", "fixed_mask", "moving_mask")
"""Roles of a pair's files."""


def fine_key(key: str) -> str:
    """Where the fine volume of `fixed`, `moving` or `fixed_mask` is kept."""
    # Not `fixed_fine`: MONAI's Spacingd takes keys that start with "fixed_" for metadata of "fixed".
    return f"fine_{key}"
