"""`run inference`: register one pair or many, file the results, say where they are."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.engines import SupervisedEvaluator
from monai.engines.utils import IterationEvents
from monai.inferers import Inferer
from monai.transforms import Transform
from torch import Tensor, nn
from torch.utils.data import DataLoader

from scripts.commands.one_line import cause_of, describe, one_line_errors
from scripts.commands.pair_list import PairFiles, sources_of
from scripts.core.atomic import check_writable, write_table
from scripts.core.device import usable_device
from scripts.core.processes import Processes
from scripts.core.progress import Progress, say
from scripts.core.truth import truth
from scripts.outputs.filing import Filing, FilingEvents, file_result
from scripts.outputs.folder import check_folder
from scripts.posterior.failure import FAILED

_TABLE = (
    "dice_before", "dice_after", "ncc_before", "ncc_after", "refine_gain_log_posterior", "fold_percent", "std_mean_mm",
    "ess", "khat", "failure_probability", "failure_reason",
)  # fmt: skip
"""Diagnostics that stand in `registrations.csv`."""


def prepare_pair(
    batch: Mapping[str, Any], device: torch.device, non_blocking: bool = False, **kwargs: Any
) -> tuple[Tensor, None]:
    """What the network sees of a prepared pair, [1, 2, X, Y, Z], for MONAI's evaluator; there is no target."""
    return batch["image"][None].to(device, non_blocking=non_blocking, **kwargs), None


class Registration(SupervisedEvaluator):
    """Registers pairs and files the results: MONAI's evaluator, an iteration a pair.

    The network's output goes through the postprocessing, which adds the posterior and what it says; then handlers
    write, see :mod:`scripts.outputs`. A pair that fails does not keep the others from being done: failures are listed
    at the end, and the exit code says that there were any. Several processes divide the pairs among them; each files
    its own pairs' folders, the first one writes the table and speaks to the user.

    Args:
        network: from [1, 2, X, Y, Z] to raw parameters.
        dataloader: of a :class:`~scripts.commands.pair_list.PairFiles`, one pair at a time.
        postprocessing: adds `posterior` and `result`, see :class:`~scripts.outputs.postprocessing.Posteriord`.
        handlers: that write files, and any others of Ignite and MONAI.
        debug: show tracebacks, and stop at the first failure.
        options: more of `monai.engines.SupervisedEvaluator`, metrics for instance.
    """

    def __init__(
        self,
        network: nn.Module,
        dataloader: DataLoader,
        inferer: Inferer,
        postprocessing: Transform,
        output_dir: str,
        handlers: Sequence[Any] = (),
        device: torch.device | str = "cpu",
        overwrite: bool = False,
        debug: bool = False,
        **options: Any,
    ) -> None:
        self.pairs: PairFiles = dataloader.dataset  # type: ignore[assignment]
        self.folder = Path(str(output_dir)).expanduser()
        self.overwrite, self.debug = truth("overwrite", overwrite), truth("debug", debug)
        self.finished: list[dict[str, Any]] = []
        self.failures: list[tuple[str, str]] = []
        self._error: BaseException | None = None
        self._progress: Progress | None = None
        self._began = 0.0
        super().__init__(
            device=usable_device(device), val_data_loader=dataloader, network=network, inferer=inferer,
            epoch_length=1,  # the pairs are listed when the run starts
            prepare_batch=prepare_pair, postprocessing=postprocessing, event_names=[FilingEvents], decollate=False,
            val_handlers=[*handlers], **options,
        )  # fmt: skip
        self.logger.setLevel(logging.WARNING)  # of epochs and iterations nobody wants to know here
        self.add_event_handler(IterationEvents.FORWARD_COMPLETED, self._note_time)
        self.add_event_handler(Events.ITERATION_COMPLETED, self._advance)

    def run(self, global_epoch: int = 1) -> list[dict[str, Any]]:  # type: ignore[override]
        """Register all pairs; returns the rows of `registrations.csv`. Ends with exit code 1 if a pair failed."""
        with one_line_errors(self.debug):
            self._start()
            self.state.epoch_length, first = len(self.data_loader), self.pairs.processes.is_first  # type: ignore[arg-type]
            with Progress("pairs", self.state.epoch_length, len(self.pairs) > 1) as self._progress:
                if self.state.epoch_length:
                    super().run(global_epoch)
            if self._error is not None:
                raise self._error
            self._join()
            self._write_table()
        if first:
            self._say_where()
        if self.failures:
            raise SystemExit(1)
        return self.finished

    def _start(self) -> None:
        check_writable(self.folder)
        pairs = self.pairs.find()
        if len(pairs) == 1:  # before anything is read
            check_folder(self.folder / pairs[0]["name"], sources_of(pairs[0]), self.overwrite)
        self.finished, self.failures, self._error = [], [], None

    def _iteration(self, engine: Engine, batchdata: dict[str, Any]) -> dict[str, Any] | None:  # type: ignore[override]
        """Register one pair and file the result."""
        name = batchdata["name"]
        try:
            if "failed" in batchdata:
                raise batchdata["failed"]
            check_folder(self.folder / name, batchdata["files"], self.overwrite)
            self._began = time.perf_counter()
            super()._iteration(engine, batchdata)  # type: ignore[arg-type]
            self.finished.append(self._file(engine, batchdata))
        except Exception as error:
            cause = cause_of(error)
            if self.debug or len(self.pairs) == 1:
                self._error = error if self.debug else cause
                engine.terminate()
                return None
            self.failures.append((name, describe(cause)))
            say(f"failed: {name}: {describe(cause)}")
        return None

    def _file(self, engine: Engine, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Let the handlers write; a row of `registrations.csv`."""
        output: Any = engine.state.output
        clock, name = batch["clock"], batch["name"]

        def fire(filing: Filing, event: FilingEvents) -> None:
            engine.state.filing = filing  # type: ignore[attr-defined]
            engine.fire_event(event)

        result = output["result"]
        file_result(output["posterior"], result, self.folder / name, batch["files"], fire, clock, self.overwrite)
        row = {"name": name, "status": "done", **{key: result.diagnostics.get(key) for key in _TABLE}}
        return {**row, "seconds": round(clock.since_start, 1)}

    def _join(self) -> None:
        """What all processes did, in the order of the list."""
        processes: Processes = self.pairs.processes
        order = {pair["name"]: number for number, pair in enumerate(self.pairs.find())}
        told = [json.loads(text) for text in processes.gather(json.dumps([self.finished, self.failures]))]
        self.finished = sorted((row for done, _ in told for row in done), key=lambda row: order[row["name"]])
        failures = sorted(((name, why) for _, failed in told for name, why in failed), key=lambda f: order[f[0]])
        self.failures = failures

    def _note_time(self, engine: Engine) -> None:
        engine.state.batch["clock"].add("network", self._began)  # type: ignore[index]

    def _advance(self, engine: Engine) -> None:
        engine.state.filing = engine.state.batch = engine.state.output = None  # type: ignore[attr-defined]
        if self._progress is not None:
            self._progress(engine.state.iteration)

    def _write_table(self) -> None:
        """`registrations.csv`: a row for each pair, failures included; only for several pairs."""
        if len(self.pairs) < 2 or not self.pairs.processes.is_first:
            return
        rows = [*self.finished, *({"name": name, "status": f"failed: {why}"} for name, why in self.failures)]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        table = [[row.get(column) for column in columns] for row in rows]
        write_table(self.folder / "registrations.csv", columns, table)

    def _say_where(self) -> None:
        for row in self.finished:
            print(f"{row['name']}: {_sentence(row)}")
        if len(self.finished) == 1:
            folder = self.folder / self.finished[0]["name"]
            print(f"\nThe result is in {folder}")
            if (folder / "report.html").is_file():
                print(f"Open {(folder / 'report.html').resolve().as_uri()}")
        elif self.finished:
            print(f"\n{len(self.finished)} results are in {self.folder}, a table of them in registrations.csv")
        if self.failures:
            print(f"\n{len(self.failures)} of {len(self.pairs)} pairs failed:", file=sys.stderr)
            for pair, why in self.failures:
                print(f"  {pair}: {why}", file=sys.stderr)


def _sentence(row: Mapping[str, Any]) -> str:
    parts = [f"correlation {row['ncc_before']:.3f} to {row['ncc_after']:.3f}"]
    if row.get("dice_before") is not None:
        parts.append(f"Dice {row['dice_before']:.3f} to {row['dice_after']:.3f}")
    if row.get("refine_gain_log_posterior") is not None:
        parts.append(f"refinement gained {row['refine_gain_log_posterior']:,.0f} in the log posterior")
    parts += [f"uncertainty {row['std_mean_mm']:.2f} mm", f"folds {row['fold_percent']:.3f} %", f"{row['seconds']} s"]
    if (failed := row.get("failure_probability")) is not None:
        why = f" ({row['failure_reason']})" if failed > FAILED else ""
        parts.append(f"probability that it failed {failed:.2f}{why}")
    return ", ".join(parts)
