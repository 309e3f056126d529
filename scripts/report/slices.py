"""The report's pictures of a result: slices through chosen places, and the modes side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.posterior.result import RegistrationResult
from scripts.report.colors import (
    Scale,
    difference_scale,
    entropy_scale,
    jacobian_scale,
    label_colors,
    nice_ceiling,
    uncertainty_scale,
)
from scripts.report.display import Coarse, Frame, crop_box, intensity_window, to_unit
from scripts.report.findings import CERTAIN, Findings
from scripts.report.names import number, percent
from scripts.report.tiles import Painter, Tile
from scripts.report.viewer import gray_volume, label_volume, overlay_volume, view_data


@dataclass(frozen=True)
class Column:
    """Three planes of one kind of picture, with its color bar if it has one."""

    title: str
    tiles: list[Tile]
    bar: dict[str, str] | None = None


@dataclass(frozen=True)
class Row:
    """Pictures of one place."""

    title: str
    note: str
    columns: list[Column]


class Pictures:
    """A result reoriented to RAS, its intensities in 0..1, and what is drawn from it.

    Args:
        result: of the registration.
        findings: places of interest.
    """

    def __init__(self, result: RegistrationResult, findings: Findings) -> None:
        self.result, self.findings = result, findings
        self.frame = Frame(result.grid)
        brain = np.asarray(result.brain, dtype=bool)
        self.brain = self.frame.show(brain if brain.any() else np.ones(result.grid.shape, dtype=bool))
        fixed, moving, warped = (self.frame.show(volume) for volume in (result.fixed, result.moving, result.warped))
        self.fixed = to_unit(fixed, intensity_window(fixed, self.brain))
        # One window for both, or the difference before and after could not be compared.
        window = intensity_window(warped, self.brain)
        self.moving, self.warped = to_unit(moving, window), to_unit(warped, window)
        self.std = np.nan_to_num(self.frame.show(result.std))
        self.painter = Painter(self.frame.grid.spacing, crop_box(self.brain, self.frame.grid.spacing))
        self.difference = difference_scale()
        self.uncertainty = uncertainty_scale(float(np.percentile(self.std[self.brain], 99.5)))

    def slices(self) -> list[Row]:
        """Through the middle of the brain and through its most uncertain place."""
        rows = [self._place("Through the middle of the brain", "", self.findings.center, mark=False)]
        place = self.findings.most_uncertain
        if place is not None:
            x, y, z = (f"{round(value):d}".replace("-", "−") for value in place.world)
            note = f"{place.name}, ({x}, {y}, {z}) mm RAS: standard deviation {number(place.value, 2)} mm"
            rows.append(self._place("Through the most uncertain place", note, place.index, mark=True))
        return rows

    def modes(self) -> Row | None:
        """Each mode's warped image where the modes differ most, colored by how it differs from the mean's.

        With its sign: the distances of two modes from their mean look alike, and do not tell one from the other.
        """
        modes, place = self.result.modes, self.findings.mode_place
        if place is None:
            return None
        window = intensity_window(self.frame.show(self.result.warped), self.brain)
        images = [to_unit(self.frame.show(mode.warped), window) for mode in modes]
        differences = [image - self.warped for image in images]
        largest = max(np.percentile(np.abs(difference[self.brain]), 99.5) for difference in differences)
        scale = difference_scale(nice_ceiling(float(largest)))
        index = self._shown(place.index)
        columns = []
        for i, (mode, image, difference) in enumerate(zip(modes, images, differences, strict=True)):
            title = f"Mode {i + 1} · {percent(mode.weight)}"
            tiles = self.painter.row(image, index, title, overlay=difference, scale=scale, mask=self.brain, mark=True)
            columns.append(Column(title, tiles, color_bar(scale, "")))
        return Row("Where the modes differ", place.name, columns)

    def view(self) -> tuple[dict[str, Any], Coarse]:
        """The volumes of the interactive view, and the grid they were brought to."""
        coarse = Coarse.of(self.frame.grid)
        grid, brain = coarse.grid, coarse.nearest(self.brain.astype(np.uint8)) > 0
        brain = brain if brain.any() else np.ones_like(brain)  # a brain of a few voxels may fall between
        fixed, warped, moving = (coarse.mean(volume) for volume in (self.fixed, self.warped, self.moving))
        backgrounds = {
            "fixed": gray_volume("Fixed", fixed, grid),
            "warped": gray_volume("Moving, warped", warped, grid),
            "moving": gray_volume("Moving, before", moving, grid),
        }
        jacobian = coarse.mean(np.nan_to_num(self.frame.show(self.result.log_jacobian)))
        stretch = jacobian_scale(float(np.percentile(np.abs(jacobian[brain]), 99)))
        overlays = {
            "uncertainty": overlay_volume("Uncertainty", coarse.mean(self.std), grid, self.uncertainty, "mm", brain),
            "after": overlay_volume("Difference after", warped - fixed, grid, self.difference, ""),
            "before": overlay_volume("Difference before", moving - fixed, grid, self.difference, ""),
            "jacobian": overlay_volume("Log-Jacobian", jacobian, grid, stretch, "", brain),
        }
        labels = self.result.labels
        if labels is not None:
            entropy = coarse.mean(np.nan_to_num(self.frame.show(labels.entropy)))
            scale = entropy_scale(float(entropy.max()))
            overlays["labels"] = label_volume(
                "Labels", coarse.nearest(self.frame.show(labels.label)), grid, labels.volumes
            )
            overlays["entropy"] = overlay_volume("Label entropy", entropy, grid, scale, "nats")
        world = self.result.grid.to_world
        peak = self.findings.most_uncertain
        start = world(np.array([self.findings.center]))[0]
        return view_data(backgrounds, overlays, grid, start, None if peak is None else np.array(peak.world)), coarse

    def _place(self, title: str, note: str, index: Sequence[int], mark: bool) -> Row:
        shown, painter = self._shown(index), self.painter
        empty = np.zeros_like(self.fixed)
        bar = color_bar(self.difference, "")
        columns = [
            Column("Fixed", painter.row(self.fixed, shown, "Fixed", mark=mark)),
            Column("Moving, warped", painter.row(self.warped, shown, "Moving image, warped", mark=mark)),
        ]
        for name, image in (("before", self.moving), ("after", self.warped)):
            text = f"Difference {name}"
            difference = image - self.fixed
            tiles = painter.row(empty, shown, text, overlay=difference, scale=self.difference, mark=mark)
            columns.append(Column(text, tiles, bar))
        tiles = painter.row(
            self.fixed, shown, "Uncertainty", overlay=self.std, scale=self.uncertainty, mask=self.brain, mark=mark
        )
        columns.append(Column("Uncertainty", tiles, color_bar(self.uncertainty, "mm")))
        labels = self.result.labels
        if labels is not None:
            label, probability = self.frame.show(labels.label), self.frame.show(labels.probability)
            tiles = painter.labels(
                self.fixed,
                shown,
                "Label boundaries",
                label=label,
                probability=probability,
                certain=CERTAIN,
                colors=label_colors(labels.volumes),
                mark=mark,
            )
            columns.append(Column("Label boundaries", tiles, {"band": f"probability below {percent(CERTAIN)}"}))
        return Row(title, note, columns)

    def _shown(self, index: Sequence[int]) -> list[int]:
        """An index of the result's arrays as one of the shown arrays."""
        world = self.result.grid.to_world(np.array([index]))
        return [int(i) for i in np.round(self.frame.grid.to_indices(world)[0])]


def color_bar(scale: Scale, unit: str) -> dict[str, str]:
    """A color bar's CSS gradient and the texts at its ends."""
    low = number(scale.low, 2).replace("-", "−")
    high = ("+" if scale.diverging else "") + number(scale.high, 2)
    return {"gradient": scale.gradient(), "low": low, "high": f"{high} {unit}".strip()}
