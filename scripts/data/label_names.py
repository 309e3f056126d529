"""Names of label values: from a file, or one of the tables that are known here."""

from __future__ import annotations

import json
from pathlib import Path

from scripts.core.errors import DataError
from scripts.core.seg35 import SEG35

NAMES = {
    "seg35": {number: label.name for number, label in SEG35.items()},
    "freesurfer": {label.freesurfer_id: label.name for label in SEG35.values()},
}
"""Tables of names that one can ask for instead of naming a file."""


def read_names(path: str | None) -> dict[int, str]:
    """Label names from a JSON file {"1": "name", …}, or of `seg35` or `freesurfer`; empty without anything."""
    if path is None:
        return {}
    if path in NAMES:
        return NAMES[path]
    try:
        content = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        return {int(key): str(value) for key, value in content.items()}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            f'--label_names {path}: expected seg35, freesurfer, or a JSON file such as {{"1": "name"}} ({error})'
        ) from error
