"""The numbers of training and validation: to TensorBoard, and to CSV files that need no TensorBoard to read."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Events
from monai.utils.enums import CommonKeys as Keys
from torch.utils.tensorboard import SummaryWriter

from scripts.core.atomic import write_table
from scripts.core.processes import Processes
from scripts.engines.updates import FIGURES


class FigureLog:
    """Writes a trainer's figures every few iterations and an evaluator's after each validation.

    `training.csv` has a row for every 10 iterations (means over them), `validation.csv` one for every validation:
    Dice, displacement variance and the effective sample size's share of the proposals are the paper's figures of
    training stability.
    """

    def __init__(self, directory: str | Path, evaluator: Any, writer: SummaryWriter | None = None) -> None:
        self.directory, self.evaluator, self.writer = Path(directory), evaluator, writer
        self.trainer: Any = None
        self._training, self._validation = _Means(), _Means()

    def attach(self, engine: Any) -> None:
        """Attach to the trainer."""
        self.trainer = engine
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._after_iteration)
        self.evaluator.add_event_handler(Events.ITERATION_COMPLETED, self._during_validation)
        self.evaluator.add_event_handler(Events.COMPLETED, self._after_validation)

    def _after_iteration(self, engine: Any) -> None:
        output = engine.state.output
        self._training.add({"loss": float(output[Keys.LOSS]), **output[FIGURES]})
        if engine.state.iteration % 10 == 0:
            rate = engine.optimizer.param_groups[0]["lr"]
            self._write("training", {"learning_rate": rate, **self._training.take()})

    def _during_validation(self, engine: Any) -> None:
        self._validation.add(engine.state.output[FIGURES])

    def _after_validation(self, engine: Any) -> None:
        metrics = {name: float(value) for name, value in engine.state.metrics.items()}
        self._write("validation", {**metrics, **self._validation.take()})

    def _write(self, name: str, values: dict[str, float]) -> None:
        if not Processes.current().is_first:
            return
        state = self.trainer.state
        if self.writer is not None:
            for key, value in values.items():
                self.writer.add_scalar(f"{name}/{key}", value, state.iteration)
            self.writer.flush()
        append_row(self.directory / f"{name}.csv", {"iteration": state.iteration, "epoch": state.epoch, **values})


class _Means:
    """Means of named figures since the last `take`, over all processes; they take at the same time."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value)
            self._counts[name] = self._counts.get(name, 0) + 1

    def take(self) -> dict[str, float]:
        names = sorted(self._sums)
        values = torch.tensor([[self._sums[n] for n in names], [self._counts[n] for n in names]], dtype=torch.float64)
        sums, counts = Processes.current().mean(values).tolist()
        self._sums, self._counts = {}, {}
        return {name: total / count for name, total, count in zip(names, sums, counts, strict=True)}


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a row to a CSV file; rows of an earlier run from the same iteration on are dropped first (a resumption)."""
    columns, kept = list(row), []
    if path.is_file():
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            kept = [earlier for earlier in reader if int(earlier["iteration"]) < int(row["iteration"])]
            columns = list(dict.fromkeys([*(reader.fieldnames or []), *row]))
    write_table(path, columns, ([each.get(column, "") for column in columns] for each in [*kept, row]))
