"""Registers pairs for the app: one at a time, by the bundle's own `run inference`, and not twice."""

from __future__ import annotations

import csv
import json
import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from monai.bundle import ConfigParser

from bundle.monailabel.errors import unprocessable
from bundle.monailabel.studies import Scan
from scripts.commands.apply import Application
from scripts.commands.one_line import EXPECTED, describe
from scripts.core.atomic import write_table
from scripts.evidence.landmarks import COLUMNS
from scripts.outputs.folder import DIAGNOSTICS, write_json
from scripts.outputs.monai_label import FIT, SAMPLING

logger = logging.getLogger(__name__)

_REQUEST = "request.json"


class Job(NamedTuple):
    """What one request wants registered."""

    fixed: Scan  # the image to register to
    moving: Scan  # the image that moves
    label: Path | None  # its label map
    corrected: Path | None  # a corrected label map of the fixed image, to condition on
    options: Mapping[str, Any]  # see :mod:`bundle.monailabel.options`
    device: str  # where to compute

    @property
    def title(self) -> str:
        """For the log."""
        return f"{self.moving.name} to {self.fixed.name}"

    @property
    def settings(self) -> dict[str, Any]:
        """The options that decide about the registration itself."""
        names = ("num_proposals", "num_samples", "seed", "align", "refine_steps", "detail_steps")
        return {name: self.options[name] for name in names}


class Registrations:
    """Results of registrations, made when they are first asked for.

    A result is used again as long as its files and options are the same: asking for the uncertainty after the labels
    costs nothing. Requests that come at the same time wait for each other.
    """

    def __init__(self, root: Path, overrides: Mapping[str, Any]) -> None:
        self.root, self.overrides = root, overrides
        self._queue = threading.Lock()

    def get(self, job: Job, parent: Path) -> Path:
        """The folder with a pair's result, made in `parent`; an HTTPException of 422 says why there is none."""
        wanted = self._description(job)
        for folder in parent.glob("*__to__*"):
            if _read(folder / _REQUEST) == wanted:
                logger.info("%s: registered before, in %s", job.title, folder)
                return folder
        logger.info("%s: registering on %s with %s", job.title, job.device, job.settings)
        start = time.perf_counter()
        folder = self._register(job, parent)
        write_json(wanted, folder / _REQUEST)
        logger.info("%s: done in %.1f s, in %s", job.title, time.perf_counter() - start, folder)
        return folder

    @contextmanager
    def turn(self, job: Job) -> Iterator[None]:
        """Wait until nobody else registers; a result's folder stays as it is until the turn ends."""
        if self._queue.locked():
            logger.info("%s: waiting for another request", job.title)
        with self._queue:
            yield

    def condition(self, job: Job, folder: Path) -> Path:
        """Condition a registration on what an expert knows; HTTPException of 422 with the reason."""
        options = job.options
        with tempfile.TemporaryDirectory() as scratch:
            landmarks = None
            if options["landmarks"]:
                landmarks = f"{scratch}/landmarks.csv"
                rows = ([point["name"], *point["fixed"], *point["moving"]] for point in options["landmarks"])
                write_table(landmarks, ["name", *COLUMNS], rows)
            application = Application(
                posterior=str(folder / "posterior.pt"),
                landmarks=landmarks,
                landmarks_space=options["landmarks_space"],
                landmark_std=options["landmark_std"],
                corrected_label=None if job.corrected is None else str(job.corrected),
                corrected_structures=options["corrected_structures"] or None,
                outline_std=options["outline_std"],
                settings={"progress": "log"},
                report=self.overrides["report"],
                overwrite=True,
                device=job.device,
                debug=True,
            )
            with _refusals(folder.name):
                application.run()
        logger.info("%s: conditioned, in %s", folder.name, folder / "conditioned")
        return folder / "conditioned"

    def _register(self, job: Job, parent: Path) -> Path:
        parser = ConfigParser()
        parser.read_config(str(self.root / "configs" / "inference.json"))
        settings = {
            **self.overrides,
            **job.settings,
            "bundle_root": str(self.root),
            "output_dir": str(parent),
            "fixed": str(job.fixed.path),
            "moving": str(job.moving.path),
            "moving_label": None if job.label is None else str(job.label),
            "device": torch.device(job.device),
            "debug": True,
            "sampler::settings::progress": "log",
        }
        for key, value in settings.items():
            parser[key] = value
        with _refusals(job.title):
            rows = parser.get_parsed_content("evaluator").run()
        return parent / str(rows[0]["name"])

    def _description(self, job: Job) -> dict[str, Any]:
        """What a result depends on, as plain JSON."""
        files = [self.root / "models" / "model.pt", job.fixed.path, job.moving.path, job.label]
        stamps = {str(path): [path.stat().st_size, path.stat().st_mtime_ns] for path in files if path is not None}
        return json.loads(json.dumps({"files": stamps, "options": job.settings, "overrides": self.overrides}))


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Errors that are meant for a person become answers of the server."""
    try:
        yield
    except EXPECTED as error:
        logger.warning("%s: %s", what, describe(error))
        raise unprocessable(describe(error)) from error


def figures_in(folder: Path) -> dict[str, Any]:
    """A result's figures for the answer: the judgement, volumes with intervals, diagnostics."""
    diagnostics = _read(folder / DIAGNOSTICS) or {}
    volumes = []
    if (folder / "volumes.csv").is_file():
        with (folder / "volumes.csv").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                figures = {key: float(row[key]) for key in ("volume_mm3", "lower_95_mm3", "upper_95_mm3")}
                volumes.append({"label": int(row["label"]), "name": row["name"], **figures})
    keys = ("judgement", *SAMPLING, *FIT, "moving", "fixed", "warnings")
    return {**{key: diagnostics.get(key) for key in keys}, "volumes": volumes}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
