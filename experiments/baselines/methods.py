"""The tools: each takes a pair of images and gives a displacement of every voxel.

Packages are imported when a tool is used: each is needed by its own tool alone (see requirements.txt beside this file).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from monai.bundle import ConfigParser, ConfigWorkflow
from monai.data import MetaTensor
from torch import Tensor

from experiments.baselines.displacement import read_displacement
from scripts.core.grid import Grid
from scripts.data.pair_again import prepare_again
from scripts.files.nifti import write_volume
from scripts.outputs.folder import DIAGNOSTICS
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.posterior_file import load

ROOT = Path(__file__).parents[2]
REGISTERING = ("network", "refinement", "detail", "proposals")
"""Parts of this bundle's time that find the field; the others read, check, make maps of the samples, and write."""


class Registered(NamedTuple):
    """What a tool made of a pair."""

    ddf: Tensor  # [3, X, Y, Z], voxels of the array's axes, from the fixed to the moving image
    seconds: float  # of processor time for the registration alone, so that other work on the machine does not count
    around: float = 0.0  # of processor time for what this bundle does around it: reading, checks, maps, files
    samples: tuple[Posterior, PairImages] | None = None  # of this bundle, if they are to be scored


Method = Callable[[MetaTensor, MetaTensor], Registered]
"""From the fixed and the moving image, [1, X, Y, Z] on one grid, to a displacement."""


class Unregistered:
    """No registration at all: the pairs as they are, affinely aligned to a common frame or not."""

    def settings(self) -> dict[str, Any]:
        """Nothing to set."""
        return {}

    def __call__(self, fixed: MetaTensor, moving: MetaTensor) -> Registered:
        """Leave every voxel where it is."""
        del moving
        return Registered(torch.zeros(3, *fixed.shape[1:]), 0.0)


class ConvexAdam:
    """ConvexAdam with MIND features (Siebert et al.), the package's defaults."""

    def settings(self) -> dict[str, Any]:
        """The package's version."""
        return {"convexAdam": importlib.metadata.version("convexAdam")}

    def __call__(self, fixed: MetaTensor, moving: MetaTensor) -> Registered:
        """Register by the package; it gives displacements in voxels, [X, Y, Z, 3]."""
        from convexAdam.convex_adam_MIND import convex_adam_pt

        images = [image.as_subclass(Tensor)[0].numpy() for image in (fixed, moving)]
        start = time.process_time()
        displacement = convex_adam_pt(*images, dtype=torch.float32, verbose=False, device=torch.device("cpu"))
        seconds = time.process_time() - start
        return Registered(torch.from_numpy(np.ascontiguousarray(np.moveaxis(displacement, -1, 0))).float(), seconds)


class Ants:
    """ANTs through antspyx.

    Args:
        transform: ``SyN`` (affine, then diffeomorphic) or ``Affine``.
        iterations: at 8, 4, 2 and 1 mm, as far as the images go; None for the package's defaults, which for SyN are
            40, 20 and 0: none at the images' own resolution, which costs SyN much of its Dice.
    """

    def __init__(self, transform: str, iterations: Sequence[int] | None = None) -> None:
        self.transform, self.iterations = transform, iterations

    def settings(self) -> dict[str, Any]:
        """The kind of transform, its options and the package's version."""
        version = importlib.metadata.version("antspyx")
        return {"transform": self.transform, "iterations": self.iterations, "antspyx": version}

    def options(self, spacing: float) -> dict[str, Any]:
        """Of ``ants.registration``, for images with voxels of so many mm."""
        if self.iterations is None:
            return {}
        return {"reg_iterations": tuple(self.iterations[: max(1, round(math.log2(8 / spacing)) + 1)])}

    def __call__(self, fixed: MetaTensor, moving: MetaTensor) -> Registered:
        """Register files by ANTs, and read the composite of its transforms as one field."""
        import ants

        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            images = [ants.image_read(str(path)) for path in _files(folder, fixed, moving)]
            start = time.process_time()
            # A seed makes ANTs reproducible, on one thread.
            done = ants.registration(
                *images,
                type_of_transform=self.transform,
                outprefix=f"{folder}/out_",
                random_seed=1,
                **self.options(float(fixed.pixdim.mean())),
            )
            seconds = time.process_time() - start
            composite = ants.apply_transforms(
                *images, transformlist=done["fwdtransforms"], compose=f"{folder}/composite_"
            )
            return Registered(_voxels(*read_displacement(composite)), seconds)


class Bundle:
    """This bundle, through files as users run it: `run inference` with its shipped configuration.

    Args:
        options: overrides of configs/inference.json.
        preset: name of a file in configs/presets that overrides it before them.
        samples: keep the posterior, so that its samples can be scored.
    """

    def __init__(self, options: Mapping[str, Any], preset: str | None = None, samples: bool = False) -> None:
        self.options, self.preset, self.samples = dict(options), preset, samples
        names = ["configs/inference.json", *([f"configs/presets/{preset}.json"] if preset else [])]
        self.configs = [str(ROOT / name) for name in names]

    def settings(self) -> dict[str, Any]:
        """The overrides, and a short hash of the weights: results of two models must not get into one folder."""
        parser = ConfigParser()
        parser.read_config(self.configs)
        parser.update({"bundle_root": str(ROOT), **self.options})
        with Path(parser.get_parsed_content("ckpt_path")).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
        settings = {"options": self.options, "preset": self.preset, "weights": digest}
        return {**settings, "samples": True} if self.samples else settings

    def __call__(self, fixed: MetaTensor, moving: MetaTensor) -> Registered:
        """The registration, and all around it but the report: processor time, by their shares of the clock."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = _files(folder, fixed, moving)
            workflow = ConfigWorkflow(
                config_file=self.configs,
                meta_file=str(ROOT / "configs/metadata.json"),
                logging_file=False,
                workflow_type="infer",
                bundle_root=str(ROOT),
                fixed=str(paths[0]),
                moving=str(paths[1]),
                output_dir=str(folder / "out"),
                report=False,
                **self.options,
            )
            workflow.initialize()
            start = time.process_time()
            workflow.run()
            seconds = time.process_time() - start
            (field,) = folder.glob("out/*/displacement.nii.gz")
            parts = json.loads((field.parent / DIAGNOSTICS).read_text(encoding="utf-8"))["seconds"]
            own = seconds * sum(parts.get(part, 0.0) for part in REGISTERING) / sum(parts.values())
            samples = _samples(field.parent / "posterior.pt") if self.samples else None
            return Registered(_voxels(*read_displacement(field)), own, seconds - own, samples)


def make(name: str, options: Mapping[str, Any] | None = None, preset: str | None = None, samples: bool = False) -> Any:
    """The method of this name, one of ``NAMES``; the other arguments are those of :class:`Bundle`."""
    if name == "bundle":
        return Bundle(options or {}, preset, samples)
    if options or preset or samples:
        raise SystemExit(f"only the bundle itself has options here, not {name}")
    return {
        "unregistered": Unregistered,
        "affine": lambda: Ants("Affine"),
        # The iterations of ANTs' own script antsRegistrationSyN.sh.
        "syn": lambda: Ants("SyN", (100, 70, 50, 20)),
        "syn_default": lambda: Ants("SyN"),
        "convexadam": ConvexAdam,
    }[name]()


NAMES = ("unregistered", "affine", "syn", "syn_default", "convexadam", "bundle")


def _samples(path: Path) -> tuple[Posterior, PairImages]:
    """The posterior that was filed, and its pair as it was registered."""
    posterior = load(path)
    item = prepare_again(posterior.space, posterior.files)
    return posterior, PairImages.of_item(item, posterior.space.factor)


def _files(folder: Path, fixed: MetaTensor, moving: MetaTensor) -> list[Path]:
    """Write both images as NIfTI files, both on the fixed image's grid, as pairs are compared voxel by voxel."""
    paths = [folder / "fixed.nii.gz", folder / "moving.nii.gz"]
    for path, image in zip(paths, (fixed, moving), strict=True):
        write_volume(path, image.as_subclass(Tensor)[0].numpy(), Grid.of(fixed))
    return paths


def _voxels(field: np.ndarray, grid: Grid) -> Tensor:
    """RAS mm to voxels of the array's axes, [3, X, Y, Z]."""
    back = np.linalg.inv(grid.affine[:3, :3]).astype(np.float32)
    return torch.from_numpy(np.tensordot(back, field, axes=1))
