"""The folder of a conditioned result: the files of a registration, for the posterior that knows more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from scripts.commands.registration_run import fixed_header, versions
from scripts.commands.result_folder import DIAGNOSTICS, check_folder, result_folder, write_json, write_result
from scripts.core.errors import DataError
from scripts.data.pair_again import prepare_again
from scripts.evidence.knowledge import Knowledge
from scripts.posterior.conditioning import check_conditionable, condition_pair
from scripts.posterior.settings import Clock, Settings
from scripts.posterior.stored import StoredPosterior
from scripts.report.page import write_report


def write_conditioned(
    stored: StoredPosterior,
    knowledge: Knowledge,
    settings: Settings,
    own: Path,
    folder: Path,
    files: Mapping[str, str],
    device: torch.device,
    label_names: Mapping[int, str],
    report: bool = True,
    overwrite: bool = False,
) -> StoredPosterior:
    """Condition a registration on what is known and write everything that `run inference` writes.

    Args:
        stored: its posterior.
        knowledge: what is known.
        settings: how many proposals and so on.
        own: the registration's folder.
        folder: where the result goes.
        files: paths by role instead of those that the posterior remembers.
        device: where to compute.
        label_names: of the moving label map's values.
        report: also write `report.html`.
        overwrite: replace a result of other files.

    Returns:
        The conditioned posterior.

    Raises:
        DataError: when something is wrong with what was given.
    """
    check_conditionable(stored)
    if own.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"--output_dir {folder} holds the registration itself; choose another folder")
    sources = {key: str(Path(path).expanduser().resolve()) for key, path in {**stored.files, **files}.items()}
    # Only an earlier result is replaced on request, never a folder with other things in it.
    overwrite = overwrite and (folder / DIAGNOSTICS).is_file()
    if {"fixed", "moving"} <= set(sources):
        check_folder(folder, sources, overwrite)
    clock = Clock()
    with clock("reading"):
        item = prepare_again(stored.space, stored.files, files)
    given, result = condition_pair(item, stored, knowledge, settings, device, label_names, clock)
    given.files = sources
    result.diagnostics |= {
        "files": sources,
        "conditioned_from": str((own / "posterior.pt").resolve()),
        "warnings": result.warnings,
        "versions": versions(),
        "device": str(device),
        "seconds": clock.seconds,
    }
    with result_folder(folder, sources, overwrite, keep=True) as part:
        with clock("writing"):
            write_result(given, result, part, fixed_header(sources["fixed"]))
        if report:
            with clock("report"):
                write_report(result, part / "report.html")
        write_json(result.diagnostics, part / DIAGNOSTICS)
    return given
