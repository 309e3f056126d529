"""Which pairs to register: one given on the command line, many in a CSV file, or the built-in example."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from monai.data import Dataset

from scripts.commands.options import given
from scripts.core.errors import DataError, shorten
from scripts.core.grid import Grid
from scripts.core.pair_keys import FILE_KEYS, stem
from scripts.core.processes import ALONE, Processes
from scripts.evidence.point_files import read_table
from scripts.files.nifti import write_volume
from scripts.posterior.settings import Clock
from scripts.synthetic.subjects import synthesize_subject

EXAMPLE_SEED = 2026
"""Not among the people of the synthetic cohort that trainings draw from."""


class PairFiles(Dataset):
    """The pairs as a MONAI dataset: `data` holds dictionaries of paths, items are prepared by `transform`.

    The list is made when it is first needed: errors in it are the user's, and MONAI would bury them under its own if
    they were raised while the config is read. An item that cannot be prepared has the error under `failed`: a pair
    that is broken must not keep the others from being registered.

    Args:
        transform: the preprocessing, see :func:`~scripts.data.pair_input.pair_input_transforms`.
        options: of :func:`pair_list`.
    """

    def __init__(self, transform: Callable[[Any], Any], **options: Any) -> None:
        super().__init__(data=[], transform=transform)
        self.options = options
        self._listed = False
        self.processes = ALONE

    def find(self) -> list[dict[str, Any]]:
        """Make the list, once, the same in all processes; raises what :func:`pair_list` raises."""
        if not self._listed:
            # One of several processes looks for them: the example is written while it does.
            self.processes = Processes.current()
            found = json.dumps(pair_list(**self.options)) if self.processes.is_first else ""
            self.data, self._listed = json.loads(self.processes.from_first(found)), True
        return list(self.data)

    def __len__(self) -> int:
        return len(self.find())

    def _transform(self, index: int) -> dict[str, Any]:
        """A prepared pair, with the paths of its files by role under `files` and a `clock`."""
        pair, clock = self.find()[index], Clock()
        about = {"name": pair["name"], "files": sources_of(pair), "clock": clock}
        try:
            with clock("reading and aligning"):
                return {**self.transform(pair), **about}
        except Exception as error:
            return {**about, "failed": error}


def sources_of(pair: Mapping[str, Any]) -> dict[str, str]:
    """Absolute paths of a pair's files by role."""
    return {key: str(Path(pair[key]).resolve()) for key in FILE_KEYS if key in pair}


def pair_list(
    fixed: str | None = None,
    moving: str | None = None,
    pairs: str | None = None,
    example_dir: str | Path = "output/example",
    **others: str | None,
) -> list[dict[str, Any]]:
    """The pairs as dictionaries of paths.

    Args:
        pairs: CSV file with the columns fixed, moving and optionally fixed_label, moving_label, fixed_mask,
            moving_mask, name; paths are relative to the file.
        example_dir: where the example pair is written if none of the above is given.

    Returns:
        Dictionaries with the given paths, `fixed_name`, `moving_name`, and `name`, under which the result is filed.
        Files are not opened here: a pair that is broken must not keep the others from being registered.

    Raises:
        DataError: for one image without the other, a list together with single files, or a malformed list.
    """
    files = {"fixed": fixed, "moving": moving, **others}
    unknown = set(files) - set(FILE_KEYS)
    if unknown:
        raise DataError(f"unknown files: {', '.join(sorted(unknown))}")
    named = {key: text for key, path in files.items() if (text := given(path)) is not None}
    if (listed := given(pairs)) is not None:
        if named:
            raise DataError(f"give either --pairs or single files, not both (got {', '.join(named)})")
        return _unique(_read(Path(listed).expanduser()))
    if not named:
        return [example_pair(Path(example_dir))]
    missing = [role for role in ("fixed", "moving") if role not in named]
    if missing:
        raise DataError(f"--{missing[0]} is missing: a registration needs --fixed and --moving")
    return [_named({key: str(Path(path).expanduser()) for key, path in named.items()})]


def example_pair(folder: Path) -> dict[str, Any]:
    """Two synthetic brains with label maps as files, stored in different orientations as real ones are."""
    item: dict[str, Any] = {}
    for number, role in enumerate(("fixed", "moving")):
        subject = synthesize_subject(seed=EXAMPLE_SEED + number)
        grid = Grid(tuple(subject.image.shape), subject.affine)
        image, label = subject.image, subject.label
        if role == "moving":
            image, label = image[::-1, :, ::-1], label[::-1, :, ::-1]
            affine = grid.affine.copy()
            affine[:3, 3] += affine[:3, [0, 2]] @ (np.array(grid.shape)[[0, 2]] - 1)
            affine[:3, [0, 2]] *= -1
            grid = Grid(grid.shape, affine)
        for key, values in ((role, image), (f"{role}_label", label)):
            path = folder / f"{'label' if key.endswith('label') else 'brain'}_{'AB'[number]}.nii.gz"
            write_volume(path, values.copy(), grid)
            item[key] = str(path)
    return _named(item)


def _read(path: Path) -> list[dict[str, Any]]:
    columns, rows = read_table(path, "--pairs")
    if not rows:
        raise DataError(f"--pairs {path}: no pairs; expected a header 'fixed,moving' and a line for each pair")
    unknown = [column for column in columns if column not in (*FILE_KEYS, "name")]
    if unknown or not {"fixed", "moving"} <= set(columns):
        allowed = ", ".join((*FILE_KEYS, "name"))
        got = ", ".join(columns)
        raise DataError(f"--pairs {path}: columns must be fixed, moving and some of {allowed}; got {got}")
    out = []
    for number, row in enumerate(rows, start=2):
        files = {key: row[key].strip() for key in FILE_KEYS if (row.get(key) or "").strip()}
        if "fixed" not in files or "moving" not in files:
            raise DataError(f"--pairs {path}, line {number}: fixed or moving is empty")
        absolute = {key: str(path.parent / Path(value).expanduser()) for key, value in files.items()}
        name = (row.get("name") or "").strip()
        out.append(_named(absolute, name))
    return out


def _named(item: Mapping[str, str], name: str = "") -> dict[str, Any]:
    moving, fixed = stem(item["moving"]), stem(item["fixed"])
    if moving == fixed:  # files that only their folders tell apart
        moving, fixed = (_with_folder(item[role], name) for role, name in (("moving", moving), ("fixed", fixed)))
    folder = name or f"{moving}__to__{fixed}"
    if folder in (".", "..") or any(character in folder for character in "/\\"):
        raise DataError(f"the name {folder!r} cannot be a folder")
    return {**item, "moving_name": moving, "fixed_name": fixed, "name": folder}


def _unique(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the folders' names before names that several pairs share: results are filed under names."""
    counts = Counter(item["name"] for item in items)
    for item in items:
        if counts[item["name"]] > 1:
            for role in ("moving", "fixed"):
                item[f"{role}_name"] = _with_folder(item[role], stem(item[role]))
            item["name"] = f"{item['moving_name']}__to__{item['fixed_name']}"
    twice = [name for name, count in Counter(item["name"] for item in items).items() if count > 1]
    if twice:
        raise DataError(f"several pairs are called {shorten(twice)}; add a column 'name' to tell them apart")
    return items


def _with_folder(path: str, name: str) -> str:
    return f"{Path(path).absolute().parent.name}_{name}"
