"""The volumes of the interactive view, embedded for NiiVue, the viewer that nilearn's package carries.

Each volume is a compressed NIfTI with one byte a voxel; its header says how bytes become values, so that the viewer
shows millimeters. The page's own script only connects buttons and sliders to NiiVue.
"""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from scripts.core.grid import Grid
from scripts.posterior.result import StructureVolume
from scripts.report.colors import Scale, label_colors
from scripts.report.names import plain_names

_SCRIPT = "nilearn/_assets/js/niivue.umd.js"


def niivue_script() -> str | None:
    """NiiVue's JavaScript from the installed nilearn; None if there is none. nilearn itself is not imported."""
    try:
        path = Path(str(metadata.distribution("nilearn").locate_file(_SCRIPT)))
        return path.read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):
        return None


def niivue_version(script: str) -> str:
    """The version that the script says it is, or an empty text."""
    found = re.search(r'version:"(\d+\.\d+\.\d+)"', script)
    return found.group(1) if found else ""


def gray_volume(name: str, unit: np.ndarray, grid: Grid) -> dict[str, Any]:
    """An image in 0..1, [X, Y, Z], as a background; `name` is shown on its button."""
    codes = np.round(255 * unit.clip(0, 1)).astype(np.uint8)
    return {"name": name, "data": encode(codes, grid, 1 / 255, 0.0), "low": 0.0, "high": 1.0}


def overlay_volume(
    name: str, values: np.ndarray, grid: Grid, scale: Scale, unit: str, mask: np.ndarray | None = None
) -> dict[str, Any]:
    """Finite values [X, Y, Z] to be colored; outside of a mask, bool [X, Y, Z], nothing is shown."""
    inside = np.ones(values.shape, dtype=bool) if mask is None else mask
    # The middle code is 0 on a diverging scale; on others, code 0 is "nothing here". Values may go beyond the colors.
    if scale.diverging:
        step = max(float(np.abs(values[inside]).max(initial=0.0)), scale.high) / 127
        codes, intercept = np.where(inside, 128 + np.round(values / step), 128).astype(np.uint8), -128 * step
    else:
        step = max(float(values[inside].max(initial=0.0)), scale.high) / 254
        codes, intercept = np.where(inside, 1 + np.round(values.clip(0) / step), 0).astype(np.uint8), -step
    volume = {
        "name": name,
        "data": encode(codes, grid, step, intercept),
        "low": scale.low,
        "high": scale.high,
        "unit": unit,
        "gradient": scale.gradient(),
    }
    colors = scale.table()
    if not scale.diverging:
        return {**volume, "colors": _color_table(colors)}
    # NiiVue has one table for each sign, both counted from zero outwards.
    up, down = colors[128:].repeat(2, axis=0), colors[127::-1].repeat(2, axis=0)
    return {**volume, "colors": _color_table(up), "negative": _color_table(down)}


def label_volume(name: str, label: np.ndarray, grid: Grid, volumes: Sequence[StructureVolume]) -> dict[str, Any]:
    """Label numbers [X, Y, Z], 0 for nothing, counted through so that they need few bytes whatever they are."""
    numbers = np.union1d([0], np.unique(label))
    codes = np.searchsorted(numbers, label).astype(np.uint8 if len(numbers) <= 256 else np.uint16)
    colors, names, known = label_colors(volumes), plain_names(volumes), numbers[1:].tolist()
    table = np.array([(0, 0, 0), *(colors.get(number, (200, 200, 200)) for number in known)])
    texts = ["no label", *(names.get(number, f"label {number}") for number in known)]
    return {
        "name": name,
        "data": encode(codes, grid, 1.0, 0.0),
        "low": 0.0,
        "high": float(len(numbers) - 1),
        "labels": {**_color_table(table), "labels": texts},
    }


def _color_table(colors: np.ndarray) -> dict[str, list[int]]:
    """Colors [N, 3 or 4] as NiiVue's table; its first entry is see-through."""
    table = {channel: colors[:, i].tolist() for i, channel in enumerate("RGB")}
    return {**table, "A": [0] + [255] * (len(colors) - 1), "I": list(range(len(colors)))}


def encode(codes: np.ndarray, grid: Grid, slope: float, intercept: float) -> str:
    """Integer codes [X, Y, Z] as the base64 text of a compressed NIfTI with value = slope · code + intercept."""
    image = nib.Nifti1Image(np.ascontiguousarray(codes), grid.affine)
    image.header.set_xyzt_units("mm")
    image.header.set_slope_inter(slope, intercept)
    # No time stamp: the same result gives the same page.
    return base64.b64encode(gzip.compress(image.to_bytes(), compresslevel=6, mtime=0)).decode("ascii")
