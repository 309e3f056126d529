"""Saving and resuming: the whole state of training after each epoch, the best weights after each validation."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ignite.engine import Events

from scripts.core.checkpoint import load_network, random_state, read, set_random_state
from scripts.core.errors import CheckpointError
from scripts.core.processes import Processes
from scripts.core.truth import truth
from scripts.engines.distributed import check_agreement
from scripts.inference.model import Model
from scripts.inference.model_file import check_description

logger = logging.getLogger(__name__)
LAST, BEST = "last.pt", "model.pt"


class Checkpoints:
    """Writes `last.pt` after each epoch and continues from it: 2 epochs and a resumption of 2 equal 4 epochs.

    A training that is finished already, started again, ends at once and leaves its files as they are.

    Each file says what its weights mean. One that says something else than the config is not continued, and what was
    fitted to weights is not taken over by those that are trained on from them.

    Args:
        model: the model, its network not in the wrapper of several processes.
        resume: continue from `directory/last.pt` if it is there.
        start_from: weights to start from where there is nothing to resume; what fits is taken, the rest stays fresh.
        sampler: an `EpochSampler` to be set to the epoch that comes next.
    """

    def __init__(
        self,
        directory: str | Path,
        model: Model,
        parts: Mapping[str, Any],
        resume: bool = True,
        start_from: str | Path | None = None,
        sampler: Any = None,
    ) -> None:
        self.path = Path(directory) / LAST
        self.model, self.parts = model, dict(parts)
        self.start_from, self.sampler = start_from, sampler
        self.resume = truth("resume", resume)

    def attach(self, engine: Any) -> None:
        """Load now, before the engine runs; save after its epochs."""
        check_agreement(
            "the iteration to go on from",
            self._load(engine),
            f"{self.path.parent} must be a folder that all machines see",
        )
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._after_epoch)

    def _load(self, engine: Any) -> int:
        """Load what there is; returns the iteration that it comes from, 0 for a start."""
        self.model.description()  # refused now, not after the first epoch
        if self.resume and self.path.is_file():
            content = read(self.path)
            check_description(content, self.model, self.path)
            load_network(self.model.network, self.path)
            done: int = content["progress"]["iteration"]
            if done >= engine.state.epoch_length * engine.state.max_epochs:
                logger.info("%s is finished after iteration %d: nothing to train", self.path, done)
                engine.add_event_handler(Events.STARTED, _end_at_once)
                return done
            for name, part in self.parts.items():
                if name not in content:
                    raise CheckpointError(self.path, f"has no state of the {name}; start anew with resume=False")
                part.load_state_dict(content[name])
            progress = content["progress"]
            engine.load_state_dict(
                {
                    "iteration": progress["iteration"],
                    "epoch_length": progress["epoch_length"],
                    "max_epochs": engine.state.max_epochs,
                }
            )
            engine.state.best_validation = progress["best_validation"]
            if self.sampler is not None:
                self.sampler.set_epoch(progress["epoch"])
            set_random_state(content["random"])
            logger.info("resuming %s after epoch %d, iteration %d", self.path, progress["epoch"], done)
            return done
        if self.start_from:
            fresh = load_network(self.model.network, self.start_from, strict=False)
            logger.info("started from %s; not in it, so fresh: %s", self.start_from, ", ".join(fresh) or "nothing")
        return 0

    def _after_epoch(self, engine: Any) -> None:
        state = engine.state
        if not Processes.current().is_first:
            return
        progress = {
            "epoch": state.epoch,
            "iteration": state.iteration,
            "epoch_length": state.epoch_length,
            "best_validation": float(getattr(state, "best_validation", -math.inf)),
        }
        parts = {name: part.state_dict() for name, part in self.parts.items()}
        self.model.save(self.path, **parts, progress=progress, random=random_state())


def _end_at_once(engine: Any) -> None:
    """End a run before its first epoch, so that nothing validates or saves; Ignite would begin anew instead."""
    engine.state.epoch = engine.state.max_epochs
    engine.state.iteration = engine.state.epoch_length * engine.state.max_epochs  # for the progress bar: all done
    engine.terminate()


class BestModel:
    """Writes the model alone to `model.pt` whenever validation is better than ever.

    Args:
        model: the model, its network not in the wrapper of several processes.
        evaluator: whose `dice` counts; larger is better.
    """

    def __init__(self, directory: str | Path, model: Model, evaluator: Any) -> None:
        self.path, self.model, self.evaluator = Path(directory) / BEST, model, evaluator
        self.trainer: Any = None

    def attach(self, engine: Any) -> None:
        """Attach to the trainer, whose state remembers the best over resumptions."""
        self.trainer = engine
        self.evaluator.add_event_handler(Events.COMPLETED, self._after_validation)

    def _after_validation(self, engine: Any) -> None:
        value = float(engine.state.metrics["dice"])
        best = float(getattr(self.trainer.state, "best_validation", -math.inf))
        if value > best:
            if Processes.current().is_first:
                self.model.save(self.path)
            self.trainer.state.best_validation = value
            logger.info("validation dice %.4f, the best so far, written to %s", value, self.path)
