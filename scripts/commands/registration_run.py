"""`run inference`: register one pair or many, file the results, say where they are."""

from __future__ import annotations

import csv
import json
import logging
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ignite
import monai
import nibabel as nib
import numpy as np
import SimpleITK
import torch
from ignite.engine import Engine, Events
from monai.engines import Evaluator
from nibabel.filebasedimages import ImageFileError
from torch import nn
from tqdm import tqdm

from scripts.commands.one_line import describe, one_line_errors
from scripts.commands.options import given, truth, usable_device
from scripts.commands.pair_list import PairFiles
from scripts.commands.result_folder import DIAGNOSTICS, check_folder, result_folder, write_json, write_result
from scripts.core.atomic import check_writable, writing
from scripts.core.checkpoint import load_network
from scripts.core.errors import DataError
from scripts.core.pair_keys import FILE_KEYS
from scripts.core.seg35 import SEG35
from scripts.inference.objectives import SIRObjective
from scripts.posterior.sampler import register_pair
from scripts.posterior.settings import Clock, Settings
from scripts.report.page import write_report

logger = logging.getLogger(__name__)

_TABLE = (
    "dice_before", "dice_after", "ncc_before", "ncc_after", "refine_gain_log_posterior", "fold_percent", "std_mean_mm",
    "ess", "khat",
)  # fmt: skip
"""Diagnostics that stand in `registrations.csv`."""


class Registration(Evaluator):
    """Registers the pairs of a dataset; a MONAI evaluator whose iterations are pairs.

    A pair that fails does not keep the others from being done: failures are listed at the end, and the exit code says
    that there were any. Several processes divide the pairs among them; each files its own pairs' folders, the first
    one writes the table and speaks to the user.

    Args:
        network: the trained network's architecture.
        objective: of its training, see :func:`~scripts.posterior.sampler.register_pair`.
        dataset: the pairs' files and their preprocessing.
        output_dir: one folder for each pair is made in it.
        ckpt_path: the network's weights; None if they are loaded already.
        settings: options of :class:`~scripts.posterior.settings.Settings`.
        label_names: `seg35`, `freesurfer`, or a JSON file from label values to names; None for seg35's names where
            most of its labels are there.
        device: where to compute.
        report: write `report.html`.
        overwrite: replace earlier results of other files.
        debug: show tracebacks, and stop at the first failure.
        val_handlers: more Ignite handlers.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: SIRObjective,
        dataset: PairFiles,
        output_dir: str,
        ckpt_path: str | None = None,
        settings: Mapping[str, Any] | None = None,
        label_names: str | None = None,
        device: torch.device | str = "cpu",
        report: bool = True,
        overwrite: bool = False,
        debug: bool = False,
        val_handlers: Sequence[Any] | None = None,
    ) -> None:
        self.network, self.objective, self.pairs = network, objective, dataset
        self.folder, self.ckpt_path = Path(str(output_dir)).expanduser(), given(ckpt_path)
        self.options, self.label_names = dict(settings or {}), given(label_names)
        self.report, self.overwrite = truth("report", report), truth("overwrite", overwrite)
        self.debug = truth("debug", debug)
        self.finished: list[dict[str, Any]] = []
        self.failures: list[tuple[str, str]] = []
        self._settings = Settings()
        self._names: dict[int, str] = {}
        self._bar: tqdm | None = None
        # The pairs are listed when the run starts; until then MONAI has to be given some length.
        super().__init__(
            device=usable_device(device), val_data_loader=range(1), epoch_length=1, val_handlers=val_handlers,
            decollate=False,
        )  # fmt: skip
        if not self.debug:
            self.logger.setLevel(logging.CRITICAL)  # Ignite says twice what is then said in one line
        self.add_event_handler(Events.ITERATION_COMPLETED, self._advance)

    def run(self, global_epoch: int = 1) -> list[dict[str, Any]]:  # type: ignore[override]
        """Register all pairs.

        Returns:
            The rows of `registrations.csv`.

        Raises:
            SystemExit: with code 1 if a pair failed, after all others are done.
        """
        with one_line_errors(self.debug):
            self._start()
            processes = self.pairs.processes
            share, first = processes.share(self.count), processes.is_first
            self.data_loader, self.state.epoch_length = share, len(share)
            self._bar = tqdm(total=len(share), desc="pairs", disable=self.count == 1 or not first, leave=True)
            try:
                if share:
                    super().run(global_epoch)
            finally:
                self._bar.close()
            self._join()
            self._write_table()
        if first:
            self._say_where()
        if self.failures:
            raise SystemExit(1)
        return self.finished

    @property
    def count(self) -> int:
        """Number of pairs."""
        return len(self.pairs)

    def _start(self) -> None:
        check_writable(self.folder)
        self.pairs.find()
        self.data_loader, self.state.epoch_length = range(self.count), self.count
        self._settings = Settings(**self.options)
        self._names = read_names(self.label_names)
        if self.ckpt_path is not None:
            if not Path(self.ckpt_path).is_file():
                raise DataError(
                    f"weights {self.ckpt_path}: there is no such file; name trained weights with --ckpt_path, or the "
                    "bundle's folder with --bundle_root"
                )
            load_network(self.network, self.ckpt_path)
        self.network.to(self.state.device).eval()
        self.objective.to(self.state.device)
        self.finished, self.failures = [], []

    def _iteration(self, engine: Engine, batchdata: int) -> dict[str, Any] | None:  # type: ignore[override]
        """Register one pair."""
        del engine
        files = dict(self.pairs.data[batchdata])
        try:
            row = self._register(files, batchdata)
        except Exception as error:
            if self.debug or self.count == 1:
                raise
            self.failures.append((files["name"], describe(error)))
            tqdm.write(f"failed: {files['name']}: {describe(error)}", file=sys.stderr)
            return None
        self.finished.append(row)
        return row

    def _register(self, files: dict[str, Any], index: int) -> dict[str, Any]:
        start, clock = time.perf_counter(), Clock()
        sources = {key: str(Path(files[key]).resolve()) for key in FILE_KEYS if key in files}
        folder = self.folder / files["name"]
        check_folder(folder, sources, self.overwrite)
        with clock("reading and aligning"):
            item = self.pairs[index]
        stored, result = register_pair(
            {**item, **{key: files[key] for key in ("fixed_name", "moving_name")}},
            self.network,
            self.objective,
            self._settings,
            self.state.device,
            self._names,
            clock,
        )
        stored.files = sources
        result.diagnostics |= {
            "files": sources,
            "model": str(self.ckpt_path or type(self.network).__name__),
            "warnings": result.warnings,
            "versions": versions(),
            "device": str(self.state.device),
            "seconds": clock.seconds,
        }
        figures = result.diagnostics
        with result_folder(folder, sources, self.overwrite, keep=True) as part:
            with clock("writing"):
                write_result(stored, result, part, fixed_header(files["fixed"]))
            if self.report:
                with clock("report"):
                    write_report(result, part / "report.html")
            write_json(figures, part / DIAGNOSTICS)
        row = {"name": files["name"], "status": "done", **{key: figures.get(key) for key in _TABLE}}
        return {**row, "seconds": round(time.perf_counter() - start, 1)}

    def _join(self) -> None:
        """What all processes did, in the order of the list."""
        order = {files["name"]: number for number, files in enumerate(self.pairs.data)}
        told = [json.loads(text) for text in self.pairs.processes.gather(json.dumps([self.finished, self.failures]))]
        self.finished = sorted((row for done, _ in told for row in done), key=lambda row: order[row["name"]])
        failures = sorted(((name, why) for _, failed in told for name, why in failed), key=lambda f: order[f[0]])
        self.failures = failures

    def _advance(self, engine: Engine) -> None:
        del engine
        if self._bar is not None:
            self._bar.update()

    def _write_table(self) -> None:
        """`registrations.csv`: a row for each pair, failures included; only for several pairs."""
        if self.count < 2 or not self.pairs.processes.is_first:
            return
        rows = [*self.finished, *({"name": name, "status": f"failed: {why}"} for name, why in self.failures)]
        columns = list(dict.fromkeys(key for row in rows for key in row))
        with writing(self.folder / "registrations.csv") as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)

    def _say_where(self) -> None:
        for row in self.finished:
            print(f"{row['name']}: {_sentence(row)}")
        if len(self.finished) == 1:
            name = "report.html" if self.report else ""
            print(f"\nThe result is in {self.folder / self.finished[0]['name']}")
            if name:
                print(f"Open {(self.folder / self.finished[0]['name'] / name).resolve().as_uri()}")
        elif self.finished:
            print(f"\n{len(self.finished)} results are in {self.folder}, a table of them in registrations.csv")
        if self.failures:
            print(f"\n{len(self.failures)} of {self.count} pairs failed:", file=sys.stderr)
            for pair, why in self.failures:
                print(f"  {pair}: {why}", file=sys.stderr)


def _sentence(row: Mapping[str, Any]) -> str:
    parts = [f"correlation {row['ncc_before']:.3f} to {row['ncc_after']:.3f}"]
    if row.get("dice_before") is not None:
        parts.append(f"Dice {row['dice_before']:.3f} to {row['dice_after']:.3f}")
    if row.get("refine_gain_log_posterior") is not None:
        parts.append(f"refinement gained {row['refine_gain_log_posterior']:,.0f} in the log posterior")
    parts += [f"uncertainty {row['std_mean_mm']:.2f} mm", f"folds {row['fold_percent']:.3f} %", f"{row['seconds']} s"]
    return ", ".join(parts)


NAMES = {
    "seg35": {number: label.name for number, label in SEG35.items()},
    "freesurfer": {label.freesurfer_id: label.name for label in SEG35.values()},
}
"""Tables of names that one can ask for instead of naming a file."""


def read_names(path: str | None) -> dict[int, str]:
    """Label names from a JSON file {"1": "name", …}, or of `seg35` or `freesurfer`; empty without anything.

    Raises:
        DataError: when it cannot be read.
    """
    if given(path) is None:
        return {}
    if path in NAMES:
        return NAMES[path]
    try:
        content = json.loads(Path(str(path)).expanduser().read_text(encoding="utf-8"))
        return {int(key): str(value) for key, value in content.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f'--label_names {path}: expected seg35, freesurfer, or a JSON file such as {{"1": "name"}} ({error})'
        ) from error


def fixed_header(path: str) -> Any:
    """The NIfTI header of the fixed file, whose codes the results keep; None for other formats."""
    try:
        image: Any = nib.load(path)
    except ImageFileError:
        return None
    return image.header if isinstance(image, nib.Nifti1Image) else None


def versions() -> dict[str, str]:
    """Of what the result depends on."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "monai": monai.__version__,
        "ignite": ignite.__version__,
        "numpy": np.__version__,
        "SimpleITK": SimpleITK.Version_VersionString(),
    }
