"""The 35 labels of the neurite-OASIS layout (seg35) with FreeSurfer's numbers and colors, and names of labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from scripts.core.errors import DataError


class Label(NamedTuple):
    """One anatomical structure, as FreeSurfer has it."""

    number: int  # its value in a seg35 volume
    name: str
    freesurfer_id: int  # its value in FreeSurfer's segmentations
    color: tuple[int, ...]  # red, green and blue in 0..255


_TABLE = (
    Label(1, "Left-Cerebral-White-Matter", 2, (245, 245, 245)),
    Label(2, "Left-Cerebral-Cortex", 3, (205, 62, 78)),
    Label(3, "Left-Lateral-Ventricle", 4, (120, 18, 134)),
    Label(4, "Left-Inf-Lat-Vent", 5, (196, 58, 250)),
    Label(5, "Left-Cerebellum-White-Matter", 7, (220, 248, 164)),
    Label(6, "Left-Cerebellum-Cortex", 8, (230, 148, 34)),
    Label(7, "Left-Thalamus", 10, (0, 118, 14)),
    Label(8, "Left-Caudate", 11, (122, 186, 220)),
    Label(9, "Left-Putamen", 12, (236, 13, 176)),
    Label(10, "Left-Pallidum", 13, (12, 48, 255)),
    Label(11, "3rd-Ventricle", 14, (204, 182, 142)),
    Label(12, "4th-Ventricle", 15, (42, 204, 164)),
    Label(13, "Brain-Stem", 16, (119, 159, 176)),
    Label(14, "Left-Hippocampus", 17, (220, 216, 20)),
    Label(15, "Left-Amygdala", 18, (103, 255, 255)),
    Label(16, "Left-Accumbens", 26, (255, 165, 0)),
    Label(17, "Left-VentralDC", 28, (165, 42, 42)),
    Label(18, "Left-Vessel", 30, (160, 32, 240)),
    Label(19, "Left-Choroid-Plexus", 31, (0, 200, 200)),
    Label(20, "Right-Cerebral-White-Matter", 41, (245, 245, 245)),
    Label(21, "Right-Cerebral-Cortex", 42, (205, 62, 78)),
    Label(22, "Right-Lateral-Ventricle", 43, (120, 18, 134)),
    Label(23, "Right-Inf-Lat-Vent", 44, (196, 58, 250)),
    Label(24, "Right-Cerebellum-White-Matter", 46, (220, 248, 164)),
    Label(25, "Right-Cerebellum-Cortex", 47, (230, 148, 34)),
    Label(26, "Right-Thalamus", 49, (0, 118, 14)),
    Label(27, "Right-Caudate", 50, (122, 186, 220)),
    Label(28, "Right-Putamen", 51, (236, 13, 176)),
    Label(29, "Right-Pallidum", 52, (13, 48, 255)),
    Label(30, "Right-Hippocampus", 53, (220, 216, 20)),
    Label(31, "Right-Amygdala", 54, (103, 255, 255)),
    Label(32, "Right-Accumbens", 58, (255, 165, 0)),
    Label(33, "Right-VentralDC", 60, (165, 42, 42)),
    Label(34, "Right-Vessel", 62, (160, 32, 240)),
    Label(35, "Right-Choroid-Plexus", 63, (0, 200, 221)),
)

#: seg35 number to label.
SEG35: dict[int, Label] = {label.number: label for label in _TABLE}

#: Too small or too rarely labeled to count in a mean Dice: vessels and choroid plexus.
NOT_SCORED = frozenset({18, 19, 34, 35})

#: The numbers over which a mean Dice is usually taken.
SCORED: tuple[int, ...] = tuple(number for number in SEG35 if number not in NOT_SCORED)

NAMES = {
    "seg35": {number: label.name for number, label in SEG35.items()},
    "freesurfer": {label.freesurfer_id: label.name for label in SEG35.values()},
}
"""Tables of names that one can ask for instead of naming a file."""


def read_names(path: str | None) -> dict[int, str]:
    """Label names from a JSON file {"1": "name", …}, or of `seg35` or `freesurfer`; empty without anything."""
    if path is None:
        return {}
    if path in NAMES:
        return NAMES[path]
    try:
        content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        return {int(key): str(value) for key, value in content.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f'--label_names {path}: expected seg35, freesurfer, or a JSON file such as {{"1": "name"}} ({error})'
        ) from error
