"""Names and colors of labels in a file that 3D Slicer reads."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scripts.core.atomic import atomic_path
from scripts.posterior.result import StructureVolume
from scripts.report.colors import label_colors


def write_color_table(volumes: Sequence[StructureVolume], path: Path) -> None:
    """Write a color table (`.ctbl`): a line `number name red green blue opacity` for each label.

    Slicer splits the lines at blanks and shows underscores in names as blanks. The background is transparent.
    """
    colors = label_colors(volumes)
    lines = [f"# Color table file {path.name}", f"# {len(volumes) + 1} values", "0 Background 0 0 0 0"]
    for volume in sorted(volumes, key=lambda volume: volume.label):
        name = re.sub(r"\s+", "_", volume.name.strip()) or f"label_{volume.label}"
        red, green, blue = colors[volume.label]
        lines.append(f"{volume.label} {name} {red} {green} {blue} 255")
    with atomic_path(path) as part:
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
