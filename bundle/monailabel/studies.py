"""The studies folder as MONAI Label's datastore, with ids and tags that cannot lead out of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from monailabel.datastore.local import LocalDatastore
from monailabel.interfaces.exception import ImageNotFoundException, LabelNotFoundException

from bundle.monailabel.errors import bad_request, forbidden, not_found
from scripts.core.errors import shorten

_PLAIN = re.compile(r"[^\x00-\x1f/\\]{1,200}")


class Scan(NamedTuple):
    """An image that may be registered."""

    name: str  # its id in the datastore, or the name of an uploaded file
    path: Path  # of the file
    stored: bool = True  # whether it is in the datastore, so that results can be saved beside it


@contextmanager
def _known() -> Iterator[None]:
    """An image or a label that the datastore does not have is answered with 404."""
    try:
        yield
    except (ImageNotFoundException, LabelNotFoundException) as error:
        raise not_found(str(error.msg)) from error


class StudyFolder(LocalDatastore):
    """MONAI Label's local datastore; what it would answer with an internal error gets a status of its own."""

    @property
    def folder(self) -> Path:
        """The studies folder."""
        return Path(self._datastore_path).resolve()

    def scan(self, name: str, role: str) -> Scan:
        """The image with an id, or at a path inside of the folder; `role` (fixed, moving) is for messages.

        Raises:
            HTTPException: 400 without a name, 403 for paths outside of the folder, 404 for what is not there.
        """
        if not name:
            raise bad_request(f"no {role} image is named; the datastore has {self._some_ids()}")
        known = self.list_images()
        if name in known:
            return Scan(name, Path(self.get_image_uri(name)))
        if os.sep in name or "\\" in name or name in (".", ".."):
            path = (self.folder / name).resolve()
            if not path.is_relative_to(self.folder):
                raise forbidden(
                    f"the {role} image {name} is outside of the studies folder; name an image by its id, or upload it "
                    "as a session"
                )
            for other in known:
                if Path(self.get_image_uri(other)) == path:
                    return Scan(other, path)
        raise not_found(f"there is no {role} image {name!r} in the datastore; it has {self._some_ids()}")

    def label_of(self, scan: Scan, tag: str) -> Path | None:
        """The label map of an image under a tag, if there is one."""
        uri = self.get_label_uri(scan.name, tag) if scan.stored else ""
        return Path(uri) if uri and Path(uri).is_file() else None

    def add_image(self, image_id: str, image_filename: str, image_info: dict[str, Any]) -> str:
        """Add an image; 400 for an id that is no plain file name."""
        check_name("id", image_id or Path(image_filename).name)
        return super().add_image(image_id, image_filename, image_info)

    @_known()
    def save_label(self, image_id: str, label_filename: str, label_tag: str, label_info: dict[str, Any]) -> str:
        """Save a label; 400 for a tag that is no plain folder name, 404 for an unknown image."""
        check_name("tag", label_tag)
        return super().save_label(image_id, label_filename, label_tag, label_info)

    @_known()
    def remove_image(self, image_id: str) -> None:
        """Remove an image; 404 for an unknown one."""
        super().remove_image(image_id)

    @_known()
    def update_image_info(self, image_id: str, info: dict[str, Any]) -> None:
        """Note something about an image; 404 for an unknown one."""
        super().update_image_info(image_id, info)

    @_known()
    def update_label_info(self, label_id: str, label_tag: str, info: dict[str, Any]) -> None:
        """Note something about a label; 404 for an unknown one."""
        super().update_label_info(label_id, label_tag, info)

    def _some_ids(self) -> str:
        return shorten(sorted(self.list_images()), 8) or "none"


def check_name(what: str, value: str) -> None:
    """Refuse, with 400, an id or a tag that is no plain name of a file or folder."""
    text = str(getattr(value, "value", value))
    if not _PLAIN.fullmatch(text) or text.startswith("."):
        raise bad_request(f"the {what} {text!r} cannot be used: no slashes, no control characters, no dot in front")
