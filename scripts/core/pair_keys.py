"""What a pair, its parts and its files are called; see :mod:`scripts.data.pair_input` for what the parts hold."""

from __future__ import annotations

from pathlib import Path

FILE_KEYS = ("fixed", "moving", "fixed_label", "moving_label", "fixed_mask", "moving_mask")
"""Roles of a pair's files."""
FROM_VIEWER = "atlas_path"
"""Key of items that were one image of a viewer, to which an atlas is registered."""
_SUFFIXES = (".nii.gz", ".nii", ".mgz", ".mgh", ".img", ".hdr")


def fine_key(key: str) -> str:
    """Where the fine volume of `fixed`, `moving` or `fixed_mask` is kept."""
    # Not `fixed_fine`: MONAI's Spacingd takes keys that start with "fixed_" for metadata of "fixed".
    return f"fine_{key}"


def stem(path: str) -> str:
    """A file's name without folder and suffix."""
    name = Path(path).name
    for suffix in _SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)] or "image"
    return Path(name).stem or "image"
