"""What one can ask of the app. All tasks register the same way and differ in what they return."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
from monailabel.interfaces.tasks.infer_v2 import InferTask, InferType
from monailabel.utils.others.generic import device_list

from bundle.monailabel.errors import not_found
from bundle.monailabel.options import shared_options
from bundle.monailabel.registrations import figures_in
from scripts.core.seg35 import SEG35

# What a task can return, where there is a choice.
CONDITIONED = {
    "labels": "labels.nii.gz",
    "uncertainty": "uncertainty_std.nii.gz",
    "warped": "warped.nii.gz",
    "transform": "transform.h5",
}
TRANSFORMS = {"h5": "transform.h5", "nii.gz": "displacement.nii.gz"}
MODES = {"warped": "modes/mode{mode}_warped.nii.gz", "transform": "modes/mode{mode}_transform.h5"}


class RegistrationTask(InferTask):
    """One of the app's models, as MONAI Label calls them.

    Args:
        pick: from the options to the name of the result's file to return.
        needs_labels: whether the moving image must have a label map. Then it is a segmentation for MONAI Label, whose
            Slicer module lists these.
    """

    def __init__(
        self,
        description: str,
        pick: Callable[[Mapping[str, Any]], str],
        ids: Callable[[], list[str]],
        needs_labels: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        kind = InferType.SEGMENTATION if needs_labels else InferType.OTHERS
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

    def __call__(self, request: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """A copy of a finished registration's file, which the server removes after sending it; and figures."""
        folder, options = Path(request["folder"]), request["options"]
        source = folder / self.pick(options)
        if not source.is_file():
            if "mode" in options:
                groups = len(list((folder / "modes").glob("*_warped.nii.gz")))
                raise not_found(f"there is no mode {options['mode']}: the samples fall into {groups} groups")
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
    """The app's tasks by name; `ids` gives the images of the datastore."""
    task = partial(RegistrationTask, ids=ids)
    evidence = {
        "landmarks": None,
        "landmarks_space": ["RAS", "LPS"],
        "landmark_std": 1.0,
        "corrected_tag": "",
        "corrected_structures": "",
        "outline_std": 1.0,
    }
    return {
        "propagate_labels": task(
            "Carry the labels of another image over to this one: the most probable label of every voxel",
            lambda options: "labels.nii.gz",
            needs_labels=True,
        ),
        "condition": task(
            "The labels again, after taking in corresponding points or a corrected label map of this image",
            lambda options: CONDITIONED[options["output"]],
            needs_labels=True,
            extra={"output": list(CONDITIONED), **evidence},
        ),
        "register": task("Register another image to this one: that image, warped", lambda options: "warped.nii.gz"),
        "uncertainty": task(
            "Standard deviation of the displacement between another image and this one, in mm",
            lambda options: "uncertainty_std.nii.gz",
        ),
        "transform": task(
            "The transform between another image and this one, for ITK and Slicer",
            lambda options: TRANSFORMS[options["format"]],
            extra={"format": list(TRANSFORMS)},
        ),
        "mode": task(
            "One of the groups among the samples: its warped image or its transform",
            lambda options: MODES[options["format"]].format(**options),
            extra={"mode": 1, "format": list(MODES)},
        ),
    }


def _first_volume(source: Path, target: Path) -> None:
    """The first volume of a 4-D file as a 3-D file."""
    image: Any = nib.load(source)
    nib.save(image.slicer[..., 0], target)
