"""Filing one result: a folder that is being filled, and the handlers that write into it."""

from __future__ import annotations

import abc
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import ignite
import monai
import numpy as np
import SimpleITK
import torch
from ignite.engine import Engine, EventEnum

from scripts.files.nifti import header_of, write_volume
from scripts.files.writers import Writers
from scripts.outputs.folder import DIAGNOSTICS, result_folder, write_json
from scripts.posterior.posterior import Posterior
from scripts.posterior.result import RegistrationResult
from scripts.posterior.settings import Clock
from scripts.report.findings import Findings, find
from scripts.report.verdict import verdict


class FilingEvents(EventEnum):
    """When handlers write."""

    FILING = "filing"  # all files that show the result
    REPORTING = "reporting"  # those that also tell of the others and of how long they took


@dataclass(eq=False)
class Filing:
    """One result on its way into files.

    Attributes:
        result: what it says; its diagnostics become `diagnostics.json` at the end.
        folder: to be filled.
        sources: paths of the registered files by role.
        clock: seconds of each part.
        write: writes files in the background; all are there before anything is reported.
    """

    posterior: Posterior
    result: RegistrationResult
    folder: Path
    sources: Mapping[str, str]
    clock: Clock
    write: Writers = field(default_factory=Writers)

    @cached_property
    def findings(self) -> Findings:
        """The numbers behind the report's words."""
        return find(self.result)

    @cached_property
    def header(self) -> Any:
        """The NIfTI header of the fixed file, whose codes the volumes keep."""
        return header_of(self.sources["fixed"])

    def volume(self, name: str, values: np.ndarray, description: str = "") -> None:
        """Write a volume on the fixed grid, soon."""
        self.write(
            write_volume, self.folder / name, values, self.result.grid, header=self.header, description=description
        )


class ResultHandler(abc.ABC):
    """Base of the handlers: writes some of a result's files.

    Attached to the evaluator of `run inference`; called by hand where there is none, see :func:`by_handlers`.
    """

    event = FilingEvents.FILING

    def attach(self, engine: Engine) -> None:
        """Write whenever the engine files a result, which is in its `state.filing` then."""
        engine.add_event_handler(self.event, lambda: self(engine.state.filing))  # type: ignore[attr-defined]

    @abc.abstractmethod
    def __call__(self, filing: Filing) -> None:
        """Write."""


def file_result(
    posterior: Posterior,
    result: RegistrationResult,
    folder: Path,
    sources: Mapping[str, str],
    fire: Callable[[Filing, FilingEvents], None],
    clock: Clock,
    overwrite: bool = False,
) -> None:
    """File a result in a folder that takes its name when all is there, `diagnostics.json` last.

    Args:
        folder: the final name.

    Raises:
        DataError: see :func:`~scripts.outputs.folder.result_folder`.
    """
    diagnostics = result.diagnostics
    diagnostics |= {"files": dict(sources), "warnings": result.warnings, "versions": versions()}
    with result_folder(folder, sources, overwrite) as part:
        filing = Filing(posterior, result, part, sources, clock)
        with clock("writing"), filing.write:
            fire(filing, FilingEvents.FILING)
        volumes = result.labels.volumes if result.labels is not None else []
        judged = verdict(diagnostics, filing.findings, result.warnings, volumes)
        diagnostics |= {"judgement": judged.sentence, "seconds": clock.seconds}
        fire(filing, FilingEvents.REPORTING)
        write_json(diagnostics, part / DIAGNOSTICS)


def by_handlers(handlers: Sequence[ResultHandler]) -> Callable[[Filing, FilingEvents], None]:
    """For :func:`file_result`: handlers that are attached to no engine."""

    def fire(filing: Filing, event: FilingEvents) -> None:
        for handler in handlers:
            if handler.event is event:
                handler(filing)

    return fire


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
