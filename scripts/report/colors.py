"""Colors: the scales of the report's pictures and view, and those of labels, for the report and for 3D Slicer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap, to_hex, to_rgb

from scripts.core.atomic import atomic_path
from scripts.core.seg35 import SEG35
from scripts.posterior.result import StructureVolume

#: From light blue to yellow. Its dark middle is meant to be seen through, over black as over bright anatomy.
COLD_HOT = LinearSegmentedColormap.from_list(
    "cold_hot", ["#b5f1ff", "#3ba7ff", "#1c4be0", "#3a1c78", "#c4201a", "#ff7a1f", "#ffe79a"]
)


class Scale(NamedTuple):
    """How the values of an overlay become colors."""

    colormap: Colormap
    low: float  # value of its first color
    high: float  # value of its last color
    faint: float  # opacity where nothing is to be seen: at `low`, or at the middle of a diverging scale
    strong: float  # opacity at the far end

    @property
    def diverging(self) -> bool:
        """Whether zero lies in its middle."""
        return self.low < 0

    def table(self) -> np.ndarray:
        """256 colors with their opacity, uint8 [256, 4]."""
        position = np.linspace(0.0, 1.0, 256)
        strength = np.abs(2 * position - 1) ** 0.75 if self.diverging else np.sqrt(position)
        colors = self.colormap(position)
        colors[:, 3] = self.faint + (self.strong - self.faint) * strength
        return np.round(255 * colors).astype(np.uint8)

    def paint(self, values: np.ndarray) -> np.ndarray:
        """Values [...] to colors with their opacity, float [..., 4] in 0..1."""
        position = np.clip((np.nan_to_num(values) - self.low) / (self.high - self.low), 0.0, 1.0)
        return self.table()[np.round(255 * position).astype(int)] / 255.0

    def gradient(self) -> str:
        """The scale as CSS, for a color bar; a diverging one as it looks over black."""
        colors = self.table()[np.linspace(0, 255, 17).round().astype(int)] / 255.0
        shown = colors[:, :3] * (colors[:, 3:] if self.diverging else 1.0)
        return f"linear-gradient(90deg, {', '.join(to_hex(color) for color in shown)})"


def signed_scale(limit: float) -> Scale:
    """For differences of intensities, in shares of the range, and log-Jacobians; nothing where there is none."""
    return Scale(COLD_HOT, -limit, limit, 0.0, 1.0)


def uncertainty_scale(high: float) -> Scale:
    """For standard deviations in mm: anatomy shows through where there is little."""
    return Scale(matplotlib.colormaps["inferno"], 0.0, nice_ceiling(high), 0.15, 0.9)


def entropy_scale(high: float) -> Scale:
    """For the entropy of labels, in nats."""
    return Scale(matplotlib.colormaps["viridis"], 0.0, nice_ceiling(high), 0.0, 0.95)


def nice_ceiling(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 4, 5, 6, 8 times a power of ten, so that a color bar ends at a round number."""
    if not (math.isfinite(value) and value > 0):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    ceiling = next(step * power for step in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if value <= step * power * (1 + 1e-9))
    return float(f"{ceiling:.6g}")


def label_colors(volumes: Sequence[StructureVolume]) -> dict[int, tuple[int, ...]]:
    """A color for each label: FreeSurfer's where the structure's name is one of its own, else one of a cycle."""
    known = {label.name: label.color for label in SEG35.values()}
    cycle = [tuple(round(255 * part) for part in to_rgb(color)) for color in matplotlib.color_sequences["tab20"]]
    return {volume.label: known.get(volume.name, cycle[i % len(cycle)]) for i, volume in enumerate(volumes)}


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
