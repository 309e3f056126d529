"""The app: which images a request means, in which order requests are served, where results are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monailabel.config import settings
from monailabel.interfaces.app import MONAILabelApp
from monailabel.tasks.activelearning.first import First
from monailabel.tasks.activelearning.random import Random
from monailabel.utils.others.generic import name_to_device

from bundle.monailabel.errors import bad_request, forbidden, not_found
from bundle.monailabel.options import parse_options, read_overrides
from bundle.monailabel.registrations import Job, Registrations
from bundle.monailabel.studies import Scan, StudyFolder, check_name
from bundle.monailabel.tasks import RegistrationTask, tasks
from bundle.pack import ROOT, version

RESULTS = "registrations"
"""Folder in the studies folder with the complete results, as `run inference` writes them."""


class RegistrationApp(MONAILabelApp):
    """Registers images of the datastore, or an uploaded one to them.

    Args:
        conf: `report` false leaves out the report of each result; `overrides` is a JSON object with more settings of
            `configs/inference.json`.

    Raises:
        DataError: for other overrides.
    """

    def __init__(self, app_dir: str, studies: str, conf: Mapping[str, str] | None = None) -> None:
        conf = dict(conf or {})
        overrides = read_overrides(conf.get("overrides", "{}"))
        overrides["report"] = conf.get("report", "true").lower() in ("true", "1", "yes")
        self.registrations = Registrations(ROOT, overrides)
        super().__init__(
            app_dir=app_dir,
            studies=studies,
            conf=conf,
            name="Structured SIR registration",
            description="Registration of brain MRI with its uncertainty: labels, maps, transforms, modes",
            version=version(),
        )

    def init_datastore(self) -> StudyFolder:
        """The studies folder; remote datastores hold no NIfTI files."""
        if self.studies.startswith(("http://", "https://")):
            raise ValueError(f"--studies must be a folder, got {self.studies}")
        return StudyFolder(
            self.studies,
            extensions=settings.MONAI_LABEL_DATASTORE_FILE_EXT,
            auto_reload=settings.MONAI_LABEL_DATASTORE_AUTO_RELOAD,
            read_only=settings.MONAI_LABEL_DATASTORE_READ_ONLY,
        )

    def init_infers(self) -> dict[str, Any]:
        """See :func:`~bundle.monailabel.tasks.tasks`."""
        return tasks(lambda: self.datastore().list_images())

    def init_strategies(self) -> dict[str, Any]:
        """Which image to label next."""
        return {"first": First(), "random": Random()}

    def next_sample(self, request: dict[str, Any]) -> dict[str, Any]:
        """The next image to label; 404 for an unknown strategy."""
        strategy = request.get("strategy") or "random"
        if strategy not in self._strategies:
            raise not_found(f"there is no strategy {strategy!r}; there are {', '.join(self._strategies)}")
        return super().next_sample(request)

    def infer(self, request: Mapping[str, Any], datastore: StudyFolder | None = None) -> dict[str, Any]:
        """Serve one request.

        Args:
            request: `model`, the task; `image`, the fixed image's id; `moving`, that of the other; options.

        Raises:
            HTTPException: 4xx for what is wrong with the request.
        """
        store = datastore or self.datastore()
        task = self._infers.get(str(request.get("model")))
        if not isinstance(task, RegistrationTask):
            raise not_found(f"there is no model {request.get('model')!r}; there are {', '.join(self._infers)}")
        options = parse_options(request, task.defaults)
        fixed = self._fixed(request, store)
        moving = store.scan(options["moving"], "moving")
        if fixed.path == moving.path:
            raise bad_request(f"fixed and moving are the same image, {fixed.name}")
        label = store.label_of(moving, options["moving_tag"])
        if label is None and task.needs_labels:
            tags = ", ".join(store.get_labels_by_image_id(moving.name)) or "none"
            raise not_found(f"{moving.name} has no labels with the tag {options['moving_tag']!r}; its tags: {tags}")
        corrected = _corrected(options, fixed, store) if "landmarks" in options else None
        tag = str(request.get("label_tag") or f"{request['model']}_from_{moving.name}")
        save = fixed.stored and str(request.get("save_label", True)).lower() not in ("false", "0", "no")
        if save:
            check_name("tag", tag)  # before the work, not when its result is saved
        job = Job(fixed, moving, label, corrected, options, _device(request))
        with tempfile.TemporaryDirectory() as scratch:
            file, figures, folder = self._work(task, job, store.folder / RESULTS if fixed.stored else Path(scratch))
        if save:
            place = folder.relative_to(store.folder).as_posix()
            figures["saved"] = {"image": fixed.name, "tag": tag, "folder": place}
            store.save_label(fixed.name, file, tag, {"model": request["model"], "params": dict(figures)})
        return {"label": fixed.name if save else file, "tag": tag, "file": file, "params": figures}

    def _work(self, task: RegistrationTask, job: Job, parent: Path) -> tuple[str, dict[str, Any], Path]:
        """The answer's file and figures, and the folder of the result that they are from."""
        with self.registrations.turn(job):
            folder = self.registrations.get(job, parent)
            if "landmarks" in job.options:
                folder = self.registrations.condition(job, folder)
            file, figures = task({"folder": folder, "options": job.options})
        return file, figures, folder

    def _fixed(self, request: Mapping[str, Any], store: StudyFolder) -> Scan:
        """The fixed image: an uploaded one of a session, else one of the datastore."""
        name = request.get("image")
        if not isinstance(name, str):
            raise bad_request("no fixed image is named: give image, its id, or the session of an upload")
        sessions = self.sessions()
        if request.get("session") and sessions is not None:
            path, uploads = Path(name).resolve(), Path(sessions.store_path).resolve()
            if not path.is_relative_to(uploads):
                raise forbidden("the image of a session must be an uploaded one")
            if not path.is_file():
                raise bad_request("a session must hold one file; folders and several files are not read")
            return Scan(path.name, path, stored=False)
        return store.scan(name, "fixed")


def _corrected(options: Mapping[str, Any], fixed: Scan, store: StudyFolder) -> Path | None:
    """The corrected label map of the fixed image that a request names by its tag."""
    tag = options["corrected_tag"]
    if not tag and not options["landmarks"]:
        raise bad_request("nothing to take in: give landmarks, or the corrected_tag of labels saved for this image")
    corrected = store.label_of(fixed, tag) if tag else None
    if tag and corrected is None:
        raise not_found(f"{fixed.name} has no labels with the tag {tag!r}")
    return corrected


def _device(request: Mapping[str, Any]) -> str:
    device = str(name_to_device(request.get("device")))
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise bad_request(f"device must be cpu or cuda, got {request.get('device')!r}")
    return device
