"""The progress of the whole training, with loss, effective sample size and time left."""

from __future__ import annotations

from typing import Any

from ignite.engine import Events
from monai.utils.enums import CommonKeys as Keys

from scripts.core import progress
from scripts.engines.updates import FIGURES


class Progress:
    """One display for all iterations of a trainer, with running averages."""

    def __init__(self) -> None:
        self._display: progress.Progress | None = None
        self._shown: dict[str, float] = {}

    def attach(self, engine: Any) -> None:
        """Show the engine's progress from start to end."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._step)
        engine.add_event_handler(Events.COMPLETED, self._close)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._close)

    def _start(self, engine: Any) -> None:
        total = (engine.state.max_epochs or 0) * (engine.state.epoch_length or 0)
        self._display = progress.Progress("training", total, True, done=engine.state.iteration)

    def _step(self, engine: Any) -> None:
        output = engine.state.output
        values = {"loss": float(output[Keys.LOSS]), **output[FIGURES]}
        for name, value in ((name, values[name]) for name in ("loss", "ess") if name in values):
            self._shown[name] = 0.95 * self._shown.get(name, value) + 0.05 * value
        assert self._display is not None
        self._display(engine.state.iteration, ", ".join(f"{name}={value:.3f}" for name, value in self._shown.items()))

    def _close(self, engine: Any, error: Exception | None = None) -> None:
        if self._display is not None:
            self._display.close()
        if error is not None:
            raise error
