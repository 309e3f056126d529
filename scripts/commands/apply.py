"""`run apply`: take in what an expert knows; carry further images, label maps and points of a registered pair along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, SkipValidation

from scripts.commands.carrying import Carrier
from scripts.commands.one_line import one_line_errors
from scripts.commands.options import given
from scripts.core.checked import Labels, Number, Truth, check, checked
from scripts.core.device import usable_device
from scripts.core.errors import DataError
from scripts.core.seg35 import read_names
from scripts.data.corrections import read_correction
from scripts.data.pair_again import prepare_again, registered_images
from scripts.evidence.knowledge import Knowledge
from scripts.evidence.landmarks import read_landmarks
from scripts.outputs import ResultHandler, all_handlers
from scripts.outputs.filing import by_handlers, file_result
from scripts.outputs.folder import DIAGNOSTICS, check_folder
from scripts.posterior.conclusions import conclude
from scripts.posterior.conditioning import check_conditionable, condition_again
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.posterior_file import load
from scripts.posterior.settings import Clock, Settings

Text = Annotated[str | None, BeforeValidator(given)]
Texts = Annotated[
    str | list[str] | None, BeforeValidator(lambda value: value if isinstance(value, list | tuple) else given(value))
]


@checked
class Application:
    """Applies a stored posterior to other files of the same two people, after taking in what an expert knows.

    Images and label maps are those of the moving space and come out on the fixed grid. Points are those of the fixed
    space and come out in the moving space, as transforms of this kind map them. With landmarks or a corrected label map
    the posterior is conditioned on them first, all files of a registration are written for it, and everything else is
    done with it.

    Attributes:
        posterior: path of `posterior.pt`.
        image: another image of the moving space.
        label: a label map of the moving space.
        points: CSV file of points in the fixed space, see :func:`~scripts.files.points.read_points`.
        points_space: RAS or LPS.
        transforms: write every sample as an ITK transform, with a table of weights.
        landmarks: corresponding points, see :func:`~scripts.evidence.landmarks.read_landmarks`.
        landmarks_space: RAS or LPS of a CSV file of them.
        landmark_std: of a landmark's coordinates, mm, where the file does not say.
        corrected_structures: the labels of it that count; None for those that differ from the result's.
        outline_std: of the corrected outlines, mm.
        discrepancy: allow for a local error of the model, see :mod:`~scripts.inference.discrepancy`.
        files: paths by role (fixed, moving, …) instead of those that the posterior remembers.
        settings: of :class:`~scripts.posterior.settings.Settings`, for conditioning; None in it, or nothing, for what
            the registration had.
        report: write `report.html` of a conditioned result.
        handlers: that write a conditioned result instead of those that `run inference` has.
        mode: `samples` for mean and spread over all samples, `mean` for the mean field alone.
        output_dir: where results go; None for the posterior's own folder, or `conditioned` in it.
        label_names: JSON file from label values to names.
    """

    posterior: Text
    image: Text = None
    label: Text = None
    points: Text = None
    points_space: str = "RAS"
    transforms: Truth = False
    landmarks: Texts = None
    landmarks_space: str = "RAS"
    landmark_std: Number = 1.0
    corrected_label: Text = None
    corrected_structures: Labels | None = None
    outline_std: Number = 1.0
    discrepancy: Truth = True
    files: dict[str, Text] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    report: Truth = True
    handlers: SkipValidation[Sequence[ResultHandler] | None] = None
    mode: str = "samples"
    output_dir: Text = None
    label_names: Text = None
    overwrite: Truth = False
    device: Annotated[Any, BeforeValidator(usable_device)] = torch.device("cpu")
    progress: Truth = True
    debug: Truth = False

    def run(self) -> list[Path]:
        """Apply, write, and say what was written; returns the files."""
        with one_line_errors(self.debug):
            files = self._run()
        for path in files:
            print(path)
        return files

    @torch.no_grad()
    def _run(self) -> list[Path]:
        if self.posterior is None:
            raise DataError("--posterior is missing: the posterior.pt of a registration")
        knows = self.landmarks is not None or self.corrected_label is not None
        carried = any(v is not None for v in (self.image, self.label, self.points)) or self.transforms
        if not knows and not carried:
            raise DataError(
                "nothing to apply it to: give --image, --label, --points, --transforms true, --landmarks or "
                "--corrected_label"
            )
        check("mode", self.mode, Literal["mean", "samples"])
        own = Path(self.posterior).expanduser().parent
        folder = own if self.output_dir is None else Path(self.output_dir).expanduser()
        posterior = load(self.posterior, self.device)
        written: list[Path] = []
        if knows:
            folder = own / "conditioned" if self.output_dir is None else folder
            posterior = self._condition(posterior, own, folder)
            written = sorted(path for path in folder.rglob("*") if path.is_file())
        if not carried:
            return written
        if self.label is not None and posterior.spread.local and posterior.images is None:
            named = {role: path for role, path in self.files.items() if path is not None}
            posterior.images = registered_images(posterior.space, posterior.files, named)
        job = Carrier(posterior, folder, self.mode == "samples", self.overwrite)
        if self.image is not None:
            job.take_image(self.image)
        if self.label is not None:
            job.take_label(self.label, read_names(self.label_names))
        if self.points is not None:
            job.take_points(self.points, self.points_space)
        if self.transforms:
            job.take_transforms()
        return written + job.run(self.progress)

    def _condition(self, posterior: Posterior, own: Path, folder: Path) -> Posterior:
        """Condition a registration, whose folder is `own`, and write everything that `run inference` writes."""
        # Everything that is quickly checked, before anything that takes time.
        knowledge, names = self._knowledge(posterior, own), read_names(self.label_names)
        draws, wanted = posterior.draws, {name: v for name, v in self.settings.items() if given(v) is not None}
        settings = Settings(
            **{
                "num_proposals": len(draws.weights), "num_samples": len(draws.resampled),
                "seed": draws.proposals.seed, "progress": self.progress, **posterior.steps, **wanted,
            }
        )  # fmt: skip
        handlers = all_handlers(self.report) if self.handlers is None else self.handlers
        check_conditionable(posterior)
        if own.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"--output_dir {folder} holds the registration itself; choose another folder")
        files = {role: path for role, path in self.files.items() if path is not None}
        sources = {key: str(Path(path).expanduser().resolve()) for key, path in {**posterior.files, **files}.items()}
        # Only an earlier result is replaced on request, never a folder with other things in it.
        overwrite = self.overwrite and (folder / DIAGNOSTICS).is_file()
        if {"fixed", "moving"} <= set(sources):
            check_folder(folder, sources, overwrite)
        clock, (moving_name, fixed_name) = Clock(), posterior.names
        with clock("reading"):
            item = prepare_again(posterior.space, posterior.files, files)
        item |= {"files": sources, "moving_name": moving_name, "fixed_name": fixed_name}
        pair = PairImages.of_item(item, posterior.space.factor, self.device)
        conditioned = condition_again(posterior, pair, knowledge, settings, clock)
        result = conclude(item, pair, conditioned, settings, names, clock)
        result.diagnostics |= {"conditioned_from": str((own / "posterior.pt").resolve()), "device": str(self.device)}
        file_result(conditioned, result, folder, sources, by_handlers(handlers), clock, overwrite)
        return conditioned

    def _knowledge(self, posterior: Posterior, own: Path) -> Knowledge:
        landmarks = correction = None
        if self.landmarks is not None:
            landmarks = read_landmarks(self.landmarks, self.landmarks_space, self.landmark_std)
        if self.corrected_label is not None:
            structures = self.corrected_structures or ()
            correction = read_correction(self.corrected_label, posterior.space.fixed, structures, own, self.outline_std)
        return Knowledge(landmarks, correction, self.discrepancy)
