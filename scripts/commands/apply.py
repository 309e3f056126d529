"""`run apply`: take in what an expert knows; carry further images, label maps and points of a registered pair along."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scripts.commands.carrying import Carrier
from scripts.commands.conditioned_files import write_conditioned
from scripts.commands.one_line import one_line_errors
from scripts.commands.options import given, truth, usable_device
from scripts.commands.registration_run import read_names
from scripts.core.errors import DataError
from scripts.data.corrections import read_correction
from scripts.evidence.knowledge import Knowledge
from scripts.evidence.landmarks import read_landmarks
from scripts.posterior.settings import Settings
from scripts.posterior.stored import StoredPosterior, load_posterior


class Application:
    """Applies a stored posterior to other files of the same two people, after taking in what an expert knows.

    Images and label maps are those of the moving space and come out on the fixed grid. Points are those of the fixed
    space and come out in the moving space, as transforms of this kind map them. With landmarks or a corrected label map
    the posterior is conditioned on them first, all files of a registration are written for it, and everything else is
    done with it.

    Args:
        posterior: path of `posterior.pt`.
        image: another image of the moving space.
        label: a label map of the moving space.
        points: CSV file of points in the fixed space, see :func:`~scripts.files.points.read_points`.
        points_space: RAS or LPS.
        transforms: write every sample as an ITK transform, with a table of weights.
        landmarks: corresponding points, see :func:`~scripts.evidence.landmarks.read_landmarks`.
        landmarks_space: RAS or LPS of a CSV file of them.
        landmark_std: of a landmark's coordinates, mm, where the file does not say.
        corrected_label: a corrected label map of the fixed image.
        corrected_structures: the labels of it that count; None for those that differ from the result's.
        outline_std: of the corrected outlines, mm.
        discrepancy: allow for a local error of the model, see :mod:`~scripts.inference.discrepancy`.
        files: paths by role (fixed, moving, …) instead of those that the posterior remembers.
        settings: of :class:`~scripts.posterior.settings.Settings`, for conditioning; None in it, or nothing, for what
            the registration had.
        report: write `report.html` of a conditioned result.
        mode: `samples` for mean and spread over all samples, `mean` for the mean field alone.
        output_dir: where results go; None for the posterior's own folder, or `conditioned` in it.
        label_names: JSON file from label values to names.
        overwrite: replace files that exist.
        device: where to compute.
        progress: show a bar.
        debug: show tracebacks.
    """

    def __init__(
        self,
        posterior: str | None,
        image: str | None = None,
        label: str | None = None,
        points: str | None = None,
        points_space: str = "RAS",
        transforms: bool = False,
        landmarks: str | Sequence[str] | None = None,
        landmarks_space: str = "RAS",
        landmark_std: float = 1.0,
        corrected_label: str | None = None,
        corrected_structures: int | Sequence[int] | None = None,
        outline_std: float = 1.0,
        discrepancy: bool = True,
        files: Mapping[str, str | None] | None = None,
        settings: Mapping[str, Any] | None = None,
        report: bool = True,
        mode: str = "samples",
        output_dir: str | None = None,
        label_names: str | None = None,
        overwrite: bool = False,
        device: torch.device | str = "cpu",
        progress: bool = True,
        debug: bool = False,
    ) -> None:
        self.posterior, self.image, self.label, self.points = (given(v) for v in (posterior, image, label, points))
        self.points_space, self.mode, self.output_dir = str(points_space), str(mode), given(output_dir)
        self.transforms, self.report = truth("transforms", transforms), truth("report", report)
        self.landmarks = None if landmarks in ("", "null", "None") else landmarks
        self.landmarks_space, self.landmark_std = landmarks_space, landmark_std
        self.corrected_label, self.outline_std = given(corrected_label), outline_std
        self.corrected_structures, self.discrepancy = corrected_structures, truth("discrepancy", discrepancy)
        self.files = {role: str(path) for role, path in (files or {}).items() if given(path) is not None}
        self.settings = {name: value for name, value in (settings or {}).items() if given(value) is not None}
        self.label_names, self.device = given(label_names), usable_device(device)
        self.overwrite, self.debug, self.progress = truth("overwrite", overwrite), truth("debug", debug), progress

    def run(self) -> list[Path]:
        """Apply, write, and say what was written.

        Returns:
            The files.
        """
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
        if self.mode not in ("mean", "samples"):
            raise DataError(f"--mode must be mean or samples, got {self.mode!r}")
        own = Path(str(self.posterior)).expanduser().parent
        folder = own if self.output_dir is None else Path(str(self.output_dir)).expanduser()
        stored = load_posterior(str(self.posterior), self.device)
        written: list[Path] = []
        if knows:
            folder = own / "conditioned" if self.output_dir is None else folder
            stored = self._condition(stored, own, folder)
            written = sorted(path for path in folder.rglob("*") if path.is_file())
        if not carried:
            return written
        job = Carrier(stored, folder, self.mode == "samples", self.overwrite)
        if self.image is not None:
            job.take_image(str(self.image))
        if self.label is not None:
            job.take_label(str(self.label), read_names(self.label_names))
        if self.points is not None:
            job.take_points(str(self.points), self.points_space)
        if self.transforms:
            job.take_transforms()
        return written + job.run(self.progress)

    def _condition(self, stored: StoredPosterior, own: Path, folder: Path) -> StoredPosterior:
        """Condition, and write the result's folder."""
        # Everything that is quickly checked, before anything that takes time.
        landmarks = correction = None
        if self.landmarks is not None:
            landmarks = read_landmarks(self.landmarks, self.landmarks_space, self.landmark_std)
        if self.corrected_label is not None:
            chosen = self.corrected_structures
            structures = [chosen] if isinstance(chosen, int) else list(chosen or [])
            correction = read_correction(self.corrected_label, stored.space.fixed, structures, own, self.outline_std)
        knowledge = Knowledge(landmarks, correction, self.discrepancy)
        names = read_names(self.label_names)
        earlier = stored.posterior
        settings = Settings(
            **{
                "num_proposals": len(earlier.weights), "num_samples": len(earlier.resampled),
                "seed": earlier.proposals.seed, "temperature": stored.temperature, "progress": self.progress,
                **stored.steps, **self.settings,
            }
        )  # fmt: skip
        return write_conditioned(
            stored, knowledge, settings, own, folder, self.files, self.device, names, self.report, self.overwrite
        )
