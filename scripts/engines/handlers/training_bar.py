"""A progress bar over the whole training, with loss, effective sample size and time left."""

from __future__ import annotations

import sys
from typing import Any

from ignite.engine import Events
from monai.utils.enums import CommonKeys as Keys
from tqdm import tqdm

from scripts.core.processes import Processes
from scripts.engines.updates import FIGURES


class Progress:
    """One bar for all iterations of a trainer.

    Args:
        decay: of the running averages shown.
        disable: no bar; None leaves it out where there is no terminal. Only the first of several processes has one.
    """

    def __init__(self, decay: float = 0.95, disable: bool | None = False) -> None:
        self.decay, self.disable = decay, disable
        self._bar: Any = None
        self._shown: dict[str, float] = {}

    def attach(self, engine: Any) -> None:
        """Show the engine's progress from start to end."""
        engine.add_event_handler(Events.STARTED, self._start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._step)
        engine.add_event_handler(Events.COMPLETED, self._close)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._fail)

    def _start(self, engine: Any) -> None:
        total = (engine.state.max_epochs or 0) * (engine.state.epoch_length or 0)
        self._bar = tqdm(
            total=total or None,
            initial=engine.state.iteration,
            desc="training",
            disable=self.disable if Processes.current().is_first else True,
            dynamic_ncols=True,
            file=sys.stderr,
        )

    def _step(self, engine: Any) -> None:
        output = engine.state.output
        values = {"loss": float(output[Keys.LOSS])}
        values.update({name: output[FIGURES][name] for name in ("ess",) if name in output[FIGURES]})
        for name, value in values.items():
            self._shown[name] = self.decay * self._shown.get(name, value) + (1 - self.decay) * value
        self._bar.set_postfix({name: f"{value:.3f}" for name, value in self._shown.items()}, refresh=False)
        self._bar.update(1)

    def _close(self, engine: Any) -> None:
        del engine
        if self._bar is not None:
            self._bar.close()

    def _fail(self, engine: Any, error: Exception) -> None:
        self._close(engine)
        raise error
