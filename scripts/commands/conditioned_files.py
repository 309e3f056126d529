"""The folder of a conditioned result: the files of a registration, for the posterior that knows more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from scripts.core.errors import DataError
from scripts.data.pair_again import prepare_again
from scripts.evidence.knowledge import Knowledge
from scripts.outputs.filing import ResultHandler, by_handlers, file_result
from scripts.outputs.folder import DIAGNOSTICS, check_folder
from scripts.posterior.conclusions import conclude
from scripts.posterior.conditioning import check_conditionable, condition_again
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.settings import Clock, Settings


def write_conditioned(
    posterior: Posterior,
    knowledge: Knowledge,
    settings: Settings,
    own: Path,
    folder: Path,
    files: Mapping[str, str],
    handlers: Sequence[ResultHandler],
    device: torch.device,
    label_names: Mapping[int, str],
    overwrite: bool = False,
) -> Posterior:
    """Condition a registration on what is known and write everything that `run inference` writes.

    Args:
        own: the registration's folder.
        files: paths by role instead of those that the posterior remembers.

    Returns:
        The conditioned posterior.

    Raises:
        DataError: when something is wrong with what was given.
    """
    check_conditionable(posterior)
    if own.resolve().is_relative_to(folder.resolve()):
        raise DataError(f"--output_dir {folder} holds the registration itself; choose another folder")
    sources = {key: str(Path(path).expanduser().resolve()) for key, path in {**posterior.files, **files}.items()}
    # Only an earlier result is replaced on request, never a folder with other things in it.
    overwrite = overwrite and (folder / DIAGNOSTICS).is_file()
    if {"fixed", "moving"} <= set(sources):
        check_folder(folder, sources, overwrite)
    clock, (moving_name, fixed_name) = Clock(), posterior.names
    with clock("reading"):
        item = prepare_again(posterior.space, posterior.files, files)
    item |= {"files": sources, "moving_name": moving_name, "fixed_name": fixed_name}
    pair = PairImages.of_item(item, posterior.space.factor, device)
    given = condition_again(posterior, pair, knowledge, settings, clock)
    result = conclude(item, pair, given, settings, label_names, clock)
    result.diagnostics |= {"conditioned_from": str((own / "posterior.pt").resolve()), "device": str(device)}
    file_result(given, result, folder, sources, by_handlers(handlers), clock, overwrite)
    return given
