"""Carrying images, label maps and points along with every sample of a posterior, in one pass."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor

from scripts.core.atomic import check_writable, part_of, put_in_place
from scripts.core.errors import DataError
from scripts.core.grid import Grid, are_apart, bounds_text
from scripts.core.pair_keys import stem
from scripts.core.progress import Progress
from scripts.data.loading import LoadVolumed
from scripts.files.itk_spline import check_replaceable, write_samples
from scripts.files.nifti import write_volume
from scripts.files.points import check_inside, read_points, write_points
from scripts.posterior.label_volumes import LabelAccumulator, write_volumes
from scripts.posterior.posterior import Posterior


class Carrier:
    """One pass over the samples for everything that is to be carried along.

    Args:
        all_samples: the mean and spread over all samples; else the mean field alone.

    Raises:
        DataError: by its `take_…`, for files that cannot be read, or results that exist.
    """

    def __init__(self, posterior: Posterior, folder: Path, all_samples: bool, overwrite: bool) -> None:
        self.posterior, self.space = posterior, posterior.space
        self.folder, self.all_samples, self.overwrite = folder.expanduser(), all_samples, overwrite
        self.image: tuple[Tensor, Grid, str] | None = None
        self.labels: tuple[LabelAccumulator, str] | None = None
        self.points: tuple[Any, str] | None = None
        self.transforms: Path | None = None
        self.files: list[Path] = []

    def take_image(self, path: str) -> None:
        """Another image of the moving space."""
        volume = self._load(path, "image")
        self.image = (volume.as_tensor()[0], Grid.of(volume), stem(path))
        self._reserve(*(f"{stem(path)}_{kind}.nii.gz" for kind in self._kinds("warped", "mean", "std")))

    def take_label(self, path: str, names: dict[int, str]) -> None:
        """A label map of the moving space, and names of its values."""
        volume = self._load(path, "label")
        grid = Grid.of(volume)
        label = volume.as_tensor()[0].round().to(torch.int32)
        errors, blur = self.posterior.calibration.volumes, self.posterior.spread.blur if self.all_samples else 0.0
        self.labels = (LabelAccumulator(label, self.space, names, None, grid, errors, blur), stem(path))
        kinds = self._kinds("labels", "probability", "entropy")
        self._reserve(*(f"{stem(path)}_{kind}.nii.gz" for kind in kinds), f"{stem(path)}_volumes.csv")

    def take_points(self, path: str, space: str) -> None:
        """Points of the fixed space, RAS or LPS."""
        points = read_points(path, space)
        check_inside(points, self.space.fixed, space)
        self.points = (points, stem(path))
        self._reserve(f"{stem(path)}_moved.csv")

    def take_transforms(self) -> None:
        """The samples themselves, as ITK transforms; earlier ones are replaced as a whole, nothing else is."""
        check_writable(self.folder)
        self.transforms = self.folder / "transforms"
        if self.transforms.exists():
            if not self.overwrite:
                raise DataError(f"{self.transforms} exists; say --overwrite true, or choose another --output_dir")
            check_replaceable(self.transforms)

    def run(self, progress: bool) -> list[Path]:
        """Go through the samples and write; returns the files."""
        mean = self.space.displacement(self.posterior.mean[None])[0].cpu()
        places, weights = [], []
        total = torch.zeros(self.space.fixed.shape, dtype=torch.float64)
        squares = torch.zeros_like(total)
        dense = self.image is not None or self.labels is not None
        for count, points in self._fields(progress) if dense or self.points is not None else ():
            weights.append(float(count))
            if dense:
                displacement = mean if not self.all_samples else self.space.displacement(points[None])[0].cpu()
                if self.labels is not None:
                    local = self.posterior.local_weights if self.all_samples else None
                    self.labels[0].add(displacement, count, None if local is None else local(displacement))
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
            ras = self.points[0].ras
            at_mean = ras + self.space.displacement_at(self.posterior.mean.cpu().numpy(), ras)
            errors = self.posterior.calibration.points
            write_points(self.points[0], np.stack(places), weights, path, self.space.align(at_mean), errors)
        if self.transforms is not None:
            samples = ((index, times, points.cpu().numpy()) for index, times, points in self.posterior.samples())
            self.files += self._write_transforms(self.transforms, samples)
        return self.files

    def _fields(self, progress: bool) -> Any:
        """(how often, control points) of every sample, or of the mean alone."""
        if not self.all_samples:
            yield 1, self.posterior.mean
            return
        count = int(self.posterior.draws.resampled.unique().numel())
        with Progress("samples", count, progress) as advance:
            for done, (_, times, points) in enumerate(self.posterior.samples(), 1):
                yield times, points
                advance(done)

    def _write_transforms(self, folder: Path, samples: Iterable[tuple[int, int, np.ndarray]]) -> list[Path]:
        """Beside the final name, then renamed: samples of another number must not stay among the new ones."""
        part = part_of(folder)
        try:
            names = [path.name for path in write_samples(part, samples, self.space)]
            put_in_place(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return [folder / name for name in names]

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
