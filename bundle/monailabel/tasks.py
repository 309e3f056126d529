"""What one can ask of the app. All tasks register the same way and differ in what they return."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
from monailabel.interfaces.tasks.infer_v2 import InferTask, InferType
from monailabel.utils.others.generic import device_list

from bundle.monailabel.errors import not_found
from bundle.monailabel.options import parse_options, shared_options
from bundle.monailabel.registrations import figures_in
from scripts.core.seg35 import SEG35

CONDITIONED = {
    "labels": "labels.nii.gz",
    "uncertainty": "uncertainty_std.nii.gz",
    "warped": "warped.nii.gz",
    "transform": "transform.h5",
}
"""What the task `condition` can return."""


class RegistrationTask(InferTask):
    """One of the app's models, as MONAI Label calls them.

    Args:
        description: for people.
        needs_labels: whether the moving image must have a label map.
        extra: options of this task alone, with their defaults.
        pick: from a result's folder and the options to the file to return.
        ids: the images of the datastore, for the panel of a viewer.
        kind: MONAI Label's type; its Slicer module lists segmentations.
    """

    def __init__(
        self,
        description: str,
        pick: Callable[[Path, Mapping[str, Any]], Path],
        ids: Callable[[], list[str]],
        needs_labels: bool = False,
        extra: Mapping[str, Any] | None = None,
        kind: InferType = InferType.OTHERS,
    ) -> None:
        labels = {label.name: number for number, label in SEG35.items()} if needs_labels else {}
        super().__init__(type=kind, labels=labels, dimension=3, description=description)
        self.needs_labels, self.pick, self.ids = needs_labels, pick, ids
        self.defaults = {**shared_options(), **(extra or {})}

    def is_valid(self) -> bool:
        """Always: the bundle brings its weights."""
        return True

    def config(self) -> dict[str, Any]:
        """Options as a panel shows them."""
        shown = {name: "" if default is None else default for name, default in self.defaults.items()}
        return {**shown, "moving": sorted(self.ids()) or "", "device": device_list()}

    def options(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The request's options, checked; see :func:`~bundle.monailabel.options.parse_options`."""
        return parse_options(request, self.defaults)

    def __call__(self, request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """The answer from a finished registration.

        Args:
            request: `folder`, the result's, and the checked `options`.

        Returns:
            A copy of the file, which the server removes after sending it, and the result's figures.
        """
        folder, options = Path(request["folder"]), request["options"]
        source = self.pick(folder, options)
        if not source.is_file():
            raise not_found(f"this registration has no {source.name}")
        suffix = ".nii.gz" if source.name.endswith(".nii.gz") else source.suffix
        with tempfile.NamedTemporaryFile(suffix=suffix, delete=False) as copy:
            pass
        if source.name == "uncertainty_std.nii.gz":
            _first_volume(source, Path(copy.name))
        else:
            shutil.copyfile(source, copy.name)
        figures = figures_in(folder)
        figures["label_names"] = {volume["name"]: volume["label"] for volume in figures["volumes"]}
        return copy.name, figures


def tasks(ids: Callable[[], list[str]]) -> dict[str, InferTask]:
    """The app's tasks by name.

    Args:
        ids: gives the images of the datastore.
    """

    def mode_file(folder: Path, options: Mapping[str, Any]) -> Path:
        number = options["mode"]
        name = f"mode{number}_warped.nii.gz" if options["format"] == "warped" else f"mode{number}_transform.h5"
        if not (folder / "modes" / name).is_file():
            count = len(list((folder / "modes").glob("*_warped.nii.gz")))
            raise not_found(f"there is no mode {number}: the samples fall into {count} groups")
        return folder / "modes" / name

    def transform_file(folder: Path, options: Mapping[str, Any]) -> Path:
        return folder / ("transform.h5" if options["format"] == "h5" else "displacement.nii.gz")

    return {
        "propagate_labels": RegistrationTask(
            "Carry the labels of another image over to this one: the most probable label of every voxel",
            lambda folder, options: folder / "labels.nii.gz",
            ids,
            needs_labels=True,
            kind=InferType.SEGMENTATION,
        ),
        "condition": RegistrationTask(
            "The labels again, after taking in corresponding points or a corrected label map of this image",
            lambda folder, options: folder / CONDITIONED[options["output"]],
            ids,
            needs_labels=True,
            extra={
                "output": list(CONDITIONED),
                "landmarks": None,
                "landmarks_space": ["RAS", "LPS"],
                "landmark_std": 1.0,
                "corrected_tag": "",
                "corrected_structures": "",
                "outline_std": 1.0,
            },
            kind=InferType.SEGMENTATION,
        ),
        "register": RegistrationTask(
            "Register another image to this one: that image, warped",
            lambda folder, options: folder / "warped.nii.gz",
            ids,
        ),
        "uncertainty": RegistrationTask(
            "Standard deviation of the displacement between another image and this one, in mm",
            lambda folder, options: folder / "uncertainty_std.nii.gz",
            ids,
        ),
        "transform": RegistrationTask(
            "The transform between another image and this one, for ITK and Slicer",
            transform_file,
            ids,
            extra={"format": ["h5", "nii.gz"]},
        ),
        "mode": RegistrationTask(
            "One of the groups among the samples: its warped image or its transform",
            mode_file,
            ids,
            extra={"mode": 1, "format": ["warped", "transform"]},
        ),
    }


def _first_volume(source: Path, target: Path) -> None:
    """The first volume of a 4-D file as a 3-D file."""
    image: Any = nib.load(source)
    nib.save(image.slicer[..., 0], target)
