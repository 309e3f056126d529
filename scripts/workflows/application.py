"""`run apply`: carry further images, label maps and points of a registered pair along, with all that is uncertain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor
from tqdm import tqdm

from scripts.alignment.checks import are_apart, bounds_text
from scripts.data.errors import DataError
from scripts.data.loading import LoadVolumed
from scripts.io.atomic import check_writable
from scripts.io.grid import Grid
from scripts.io.nifti import write_volume
from scripts.io.posterior_file import StoredPosterior, load_posterior
from scripts.summary.labels import LabelAccumulator, write_volumes
from scripts.workflows.errors import one_line_errors
from scripts.workflows.options import given, truth, usable_device
from scripts.workflows.pair_list import stem
from scripts.workflows.points import check_inside, read_points, write_points
from scripts.workflows.registration import read_names


class Application:
    """Applies a stored posterior to other files of the same two people.

    Images and label maps are those of the moving space and come out on the fixed grid. Points are those of the fixed
    space and come out in the moving space, as transforms of this kind map them.

    Args:
        posterior: path of `posterior.pt`.
        image: another image of the moving space.
        label: a label map of the moving space.
        points: CSV file of points in the fixed space, see :func:`~scripts.workflows.points.read_points`.
        points_space: RAS or LPS.
        mode: `samples` for mean and spread over all samples, `mean` for the mean field alone.
        output_dir: where results go; None for the posterior's own folder.
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
        if self.image is None and self.label is None and self.points is None:
            raise DataError("nothing to apply it to: give --image, --label or --points")
        if self.mode not in ("mean", "samples"):
            raise DataError(f"--mode must be mean or samples, got {self.mode!r}")
        path = Path(self.posterior).expanduser()
        stored = load_posterior(path, self.device)
        folder = path.parent if self.output_dir is None else Path(self.output_dir)
        job = _Job(stored, folder, self.mode == "samples", self.overwrite)
        if self.image is not None:
            job.take_image(self.image)
        if self.label is not None:
            job.take_label(self.label, read_names(self.label_names))
        if self.points is not None:
            job.take_points(self.points, self.points_space)
        return job.run(self.progress)


class _Job:
    """One pass over the samples for everything that is to be carried along."""

    def __init__(self, stored: StoredPosterior, folder: Path, all_samples: bool, overwrite: bool) -> None:
        self.stored, self.space = stored, stored.space
        self.folder, self.all_samples, self.overwrite = folder.expanduser(), all_samples, overwrite
        self.image: tuple[Tensor, Grid, str] | None = None
        self.labels: tuple[LabelAccumulator, str] | None = None
        self.points: tuple[Any, str] | None = None
        self.files: list[Path] = []

    def take_image(self, path: str) -> None:
        volume = self._load(path, "image")
        self.image = (volume.as_tensor()[0], Grid.of(volume), stem(path))
        self._reserve(*(f"{stem(path)}_{kind}.nii.gz" for kind in self._kinds("warped", "mean", "std")))

    def take_label(self, path: str, names: dict[int, str]) -> None:
        volume = self._load(path, "label")
        grid = Grid.of(volume)
        label = volume.as_tensor()[0].round().to(torch.int32)
        self.labels = (LabelAccumulator(label, self.space, names, source=grid), stem(path))
        kinds = self._kinds("labels", "probability", "entropy")
        self._reserve(*(f"{stem(path)}_{kind}.nii.gz" for kind in kinds), f"{stem(path)}_volumes.csv")

    def take_points(self, path: str, space: str) -> None:
        points = read_points(path, space)
        check_inside(points, self.space.fixed, space)
        self.points = (points, stem(path))
        self._reserve(f"{stem(path)}_moved.csv")

    def run(self, progress: bool) -> list[Path]:
        mean = self.space.displacement(self.stored.mean[None])[0].cpu()
        places, weights = [], []
        total = torch.zeros(self.space.fixed.shape, dtype=torch.float64)
        squares = torch.zeros_like(total)
        dense = self.image is not None or self.labels is not None
        for count, points in self._fields(progress):
            weights.append(float(count))
            if dense:
                displacement = mean if not self.all_samples else self.space.displacement(points[None])[0].cpu()
                if self.labels is not None:
                    self.labels[0].add(displacement, count)
                if self.image is not None and self.all_samples:
                    warped = self.space.warp(self.image[0], displacement, self.image[1]).double()
                    # Welford: the spread of bright voxels must not drown in their brightness.
                    delta = warped - total
                    total += delta * (count / sum(weights))
                    squares += count * delta * (warped - total)
            if self.points is not None:
                ras = self.points[0].ras
                moved = ras + self.space.displacement_at(points.cpu().numpy(), ras)
                places.append(self.space.align(moved))
        if self.image is not None:
            warped = self.space.warp(self.image[0], mean, self.image[1])
            self._volume(f"{self.image[2]}_warped.nii.gz", warped.numpy())
            if self.all_samples:
                spread = (squares / max(sum(weights) - 1, 1)).sqrt().float()
                self._volume(f"{self.image[2]}_mean.nii.gz", total.float().numpy())
                self._volume(f"{self.image[2]}_std.nii.gz", spread.numpy())
        if self.labels is not None:
            self._write_labels(*self.labels)
        if self.points is not None:
            path = self.folder / f"{self.points[1]}_moved.csv"
            write_points(self.points[0], np.stack(places), weights, path)
        return self.files

    def _fields(self, progress: bool) -> Any:
        """(how often, control points) of every sample, or of the mean alone."""
        if not self.all_samples:
            yield 1, self.stored.mean
            return
        count = int(self.stored.posterior.resampled.unique().numel())
        for _, times, points in tqdm(self.stored.samples(), total=count, desc="samples", disable=not progress):
            yield times, points

    def _write_labels(self, labels: LabelAccumulator, name: str) -> None:
        result = labels.result()
        self._volume(f"{name}_labels.nii.gz", result.label)
        if self.all_samples:
            self._volume(f"{name}_probability.nii.gz", result.probability)
            self._volume(f"{name}_entropy.nii.gz", result.entropy)
        write_volumes(result.volumes, self.folder / f"{name}_volumes.csv")

    def _volume(self, name: str, values: np.ndarray) -> None:
        write_volume(self.folder / name, values, self.space.fixed)

    def _kinds(self, always: str, *of_samples: str) -> tuple[str, ...]:
        return (always, *of_samples) if self.all_samples else (always,)

    def _reserve(self, *names: str) -> None:
        """Note the files to come; before the work, not after it, say that they are there already."""
        check_writable(self.folder)
        for path in (self.folder / name for name in names):
            if (path.exists() and not self.overwrite) or path in self.files:
                raise DataError(f"{path} exists; say --overwrite true, or choose another --output_dir")
            self.files.append(path)

    def _load(self, path: str, role: str) -> MetaTensor:
        """Read a volume of the moving space."""
        volume = LoadVolumed((role,))({role: str(Path(path).expanduser())})[role]
        grid, moving = Grid.of(volume), self.space.moving
        if are_apart(grid, moving):
            raise DataError(
                f"{role} {path}: it does not lie where the moving image was: it covers {bounds_text(grid)}, "
                f"the moving image {bounds_text(moving)}"
            )
        return volume
