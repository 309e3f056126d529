"""Pictures of validation in TensorBoard and as PNG: fixed, moving, warped, uncertainty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ignite.engine import Events
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from monai.utils.enums import CommonKeys as Keys
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from scripts.core.processes import Processes


class Pictures:
    """Shows the first pair of each validation, in TensorBoard and in a PNG that is overwritten each time."""

    def __init__(self, directory: str | Path, evaluator: Any, writer: SummaryWriter | None = None) -> None:
        self.path, self.evaluator, self.writer = Path(directory) / "validation.png", evaluator, writer
        self.trainer: Any = None

    def attach(self, engine: Any) -> None:
        """Attach to the trainer, whose iterations number the pictures."""
        self.trainer = engine
        self.evaluator.add_event_handler(Events.ITERATION_COMPLETED(once=1), self._show)

    def _show(self, engine: Any) -> None:
        if not Processes.current().is_first:
            return
        figure = draw(engine.state.output)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(self.path, dpi=90)
        if self.writer is not None:
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
            pixels = np.asarray(canvas.buffer_rgba())[..., :3]
            self.writer.add_image("validation/pair", pixels, self.trainer.state.iteration, dataformats="HWC")


def draw(output: dict[str, Any]) -> Figure:
    """Three planes of fixed, moving, warped, differences before and after, and the standard deviation."""
    pair, warped, std = (output[key][0].as_subclass(Tensor).detach().float() for key in (Keys.IMAGE, "warped", "std"))
    moving, fixed, warped, std = pair[0], pair[1], warped[0], std[0]
    panels: list[tuple[str, Tensor, str, float, float]] = [
        ("fixed", fixed, "gray", 0, 1),
        ("moving", moving, "gray", 0, 1),
        ("warped", warped, "gray", 0, 1),
        ("difference before", moving - fixed, "RdBu", -0.7, 0.7),
        ("difference after", warped - fixed, "RdBu", -0.7, 0.7),
        ("standard deviation (voxels)", std, "magma", 0, max(float(std.max()), 1e-3)),
    ]
    figure = Figure(figsize=(2.3 * len(panels), 7), layout="constrained")
    for row in range(3):
        for column, (title, volume, cmap, low, high) in enumerate(panels):
            axes = figure.add_subplot(3, len(panels), row * len(panels) + column + 1)
            axes.imshow(volume.select(row, volume.shape[row] // 2).cpu(), cmap=cmap, vmin=low, vmax=high)
            axes.set_axis_off()
            if row == 0:
                axes.set_title(title, fontsize=9)
    return figure
