"""The report's pictures of a result: slices through chosen places, the modes side by side, the interactive view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from scripts.posterior.result import RegistrationResult
from scripts.report.colors import Scale, entropy_scale, label_colors, nice_ceiling, signed_scale, uncertainty_scale
from scripts.report.display import Coarse, Frame, crop_box, intensity_window, to_unit
from scripts.report.findings import CERTAIN, Findings, brain_of
from scripts.report.names import number, percent
from scripts.report.tiles import Painter, Tile
from scripts.report.viewer import gray_volume, label_volume, overlay_volume


class Column(NamedTuple):
    """Three planes of one kind of picture, with its color bar if it has one."""

    title: str
    tiles: list[Tile]
    bar: dict[str, str] | None = None


class Row(NamedTuple):
    """Pictures of one place."""

    title: str
    note: str
    columns: list[Column]


class Pictures:
    """A result reoriented to RAS, its intensities in 0..1, and what is drawn from it."""

    def __init__(self, result: RegistrationResult, findings: Findings) -> None:
        self.result, self.findings = result, findings
        self.frame = Frame(result.grid)
        self.brain = self.frame.show(brain_of(result))
        fixed, moving, warped = (self.frame.show(volume) for volume in (result.fixed, result.moving, result.warped))
        self.fixed = to_unit(fixed, intensity_window(fixed, self.brain))
        # One window for all that moves, or the differences before and after could not be compared.
        self.window = intensity_window(warped, self.brain)
        self.moving, self.warped = to_unit(moving, self.window), to_unit(warped, self.window)
        self.std = np.nan_to_num(self.frame.show(result.std))
        self.box = crop_box(self.brain, self.frame.grid.spacing)
        self.difference = signed_scale(0.6)
        self.uncertainty = uncertainty_scale(float(np.percentile(self.std[self.brain], 99.5)))

    def slices(self) -> list[Row]:
        """Through the middle of the brain and through its most uncertain place."""
        middle = self._columns(self._painter(self.findings.center, mark=False))
        rows = [Row("Through the middle of the brain", "", middle)]
        place = self.findings.most_uncertain
        if place is not None:
            note = f"{place.name}, {place.coordinates}: standard deviation {number(place.value, 2)} mm"
            columns = self._columns(self._painter(place.index, mark=True))
            rows.append(Row("Through the most uncertain place", note, columns))
        return rows

    def modes(self) -> Row | None:
        """Each mode's warped image where the modes differ most, colored by how it differs from the mean's.

        With its sign: the distances of two modes from their mean look alike, and do not tell one from the other.
        """
        modes, place = self.result.modes, self.findings.mode_place
        if place is None:
            return None
        images = [to_unit(self.frame.show(mode.warped), self.window) for mode in modes]
        differences = [image - self.warped for image in images]
        largest = max(np.percentile(np.abs(difference[self.brain]), 99.5) for difference in differences)
        scale = signed_scale(nice_ceiling(float(largest)))
        painter = self._painter(place.index, mark=True)
        columns = []
        for i, (mode, image, difference) in enumerate(zip(modes, images, differences, strict=True)):
            title = f"Mode {i + 1} · {percent(mode.weight)}"
            columns.append(Column(title, painter.image(title, image, difference, scale, self.brain), color_bar(scale)))
        return Row("Where the modes differ", place.name, columns)

    def view(self) -> tuple[dict[str, Any], Coarse]:
        """All that the page's script needs for the interactive view, and the grid that its volumes were brought to."""
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
        stretch = signed_scale(nice_ceiling(float(np.percentile(np.abs(jacobian[brain]), 99))))
        overlays = {
            "uncertainty": overlay_volume("Uncertainty", coarse.mean(self.std), grid, self.uncertainty, "mm", brain),
            "after": overlay_volume("Difference after", warped - fixed, grid, self.difference, ""),
            "before": overlay_volume("Difference before", moving - fixed, grid, self.difference, ""),
            "jacobian": overlay_volume("Log-Jacobian", jacobian, grid, stretch, "", brain),
        }
        labels = self.result.labels
        if labels is not None:
            label = coarse.nearest(self.frame.show(labels.label))
            entropy = coarse.mean(np.nan_to_num(self.frame.show(labels.entropy)))
            scale = entropy_scale(float(entropy.max()))
            overlays["labels"] = label_volume("Labels", label, grid, labels.volumes)
            overlays["entropy"] = overlay_volume("Label entropy", entropy, grid, scale, "nats")
        peak = self.findings.most_uncertain
        view = {
            "backgrounds": backgrounds,  # the first two can be blinked
            "overlays": overlays,
            "shape": grid.shape,
            "start": self.result.grid.to_world(np.array(self.findings.center)).tolist(),  # RAS mm where it opens
            "peak": None if peak is None else peak.world,
        }
        return view, coarse

    def _columns(self, painter: Painter) -> list[Column]:
        bar = color_bar(self.difference)
        before, after = self.moving - self.fixed, self.warped - self.fixed
        empty = np.zeros_like(self.fixed)
        columns = [
            Column("Fixed", painter.image("Fixed", self.fixed)),
            Column("Moving, warped", painter.image("Moving image, warped", self.warped)),
            Column("Difference before", painter.image("Difference before", empty, before, self.difference), bar),
            Column("Difference after", painter.image("Difference after", empty, after, self.difference), bar),
        ]
        tiles = painter.image("Uncertainty", self.fixed, self.std, self.uncertainty, self.brain)
        columns.append(Column("Uncertainty", tiles, color_bar(self.uncertainty, "mm")))
        labels = self.result.labels
        if labels is not None:
            label, probability = self.frame.show(labels.label), self.frame.show(labels.probability)
            colors = label_colors(labels.volumes)
            tiles = painter.labels("Label boundaries", self.fixed, label, probability, colors)
            columns.append(Column("Label boundaries", tiles, {"band": f"probability below {percent(CERTAIN)}"}))
        return columns

    def _painter(self, index: Sequence[int], mark: bool) -> Painter:
        """For an index of the result's arrays."""
        world = self.result.grid.to_world(np.array([index]))
        shown = self.frame.grid.to_indices(world)[0].round().astype(int).tolist()
        return Painter(self.frame.grid.spacing, self.box, shown, mark)


def color_bar(scale: Scale, unit: str = "") -> dict[str, str]:
    """A color bar's CSS gradient and the texts at its ends."""
    low = number(scale.low, 2).replace("-", "−")
    high = ("+" if scale.diverging else "") + number(scale.high, 2)
    return {"gradient": scale.gradient(), "low": low, "high": f"{high} {unit}".strip()}
