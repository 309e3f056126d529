"""Find the scans of a dataset, whichever of the usual layouts it is stored in.

| what lies in the folder | layout |
|---|---|
| ``*_dataset.json`` or ``dataset.json`` | Learn2Reg: training, registration_val, registration_test |
| folders with ``aligned_norm.nii.gz`` and ``aligned_seg35.nii.gz`` | neurite-OASIS |
| one ``.csv`` or ``.json`` | a list of ``image[,label]`` or of pairs ``fixed,moving[,fixed_label,moving_label]`` |

Instead of the folder, the path of a list may be given. Only names and paths are collected; no volume is opened.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from scripts.core.errors import DataError, shorten
from scripts.core.pair_keys import stem
from scripts.synthetic.subjects import cohort_seeds

IMAGE, LABEL = "aligned_norm.nii.gz", "aligned_seg35.nii.gz"
"""File names of the neurite-OASIS layout."""
SPLIT_FILE = "split.json"
"""Where a folder says who is in which split."""
SYNTHETIC = "synthetic"
"""Source of a cohort that lies on no disk."""

_SPLIT_OF_KEY = {"train": "train", "training": "train", "val": "val", "validation": "val", "test": "test",
                 "testing": "test", "training_paired_images": "train", "registration_train": "train",
                 "registration_val": "val", "registration_test": "test"}  # fmt: skip
_SESSION = re.compile(r"(_MR\d+|_ses-[^_]+.*)$")


class Scan(TypedDict):
    """One scan, as an item for dictionary transforms.

    ``name`` is unique in a datalist; ``person`` is the same for all scans of a person; ``cohort`` is the dataset that
    it comes from. ``image`` and ``label`` are paths; a synthetic scan has ``synthetic`` (seed, shape, spacing) instead.
    """

    name: str
    person: str
    cohort: str
    image: NotRequired[str]
    label: NotRequired[str]
    synthetic: NotRequired[dict[str, Any]]


@dataclass
class Cohort:
    """What one dataset holds."""

    source: str  # the folder or list that was read
    scans: list[Scan]  # sorted by name
    splits: dict[str, list[str]] = field(default_factory=dict)  # names in each, as far as the layout itself tells
    pairs: list[tuple[str, str]] = field(default_factory=list)  # names (fixed, moving) of those that are listed


def read_cohort(dataset_dir: str | Path) -> Cohort:
    """Find the scans in a folder in one of the layouts above, or those named by a ``.csv`` or ``.json`` list.

    Raises:
        DataError: when the folder is missing, nothing known is in it, or a list is malformed (with the line).
    """
    path = Path(dataset_dir).expanduser()
    if path.is_file():
        return _read_list(path)
    if not path.is_dir():
        raise DataError(f"dataset_dir {path} does not exist")
    # split.json and the like describe scans, they do not list them.
    lists = [p for p in sorted(path.iterdir()) if p.suffix in (".csv", ".json") and not p.name.startswith("split")]
    learn2reg = [p for p in lists if p.name == "dataset.json" or p.name.endswith("_dataset.json")]
    folders = sorted({p.parent.name for file in (IMAGE, LABEL) for p in path.glob(f"*/{file}")})
    if folders and not learn2reg:
        # That a file of a scan is missing is found out when its split is asked for.
        rows = [
            _Row(str(path), None, {"name": name, "image": f"{name}/{IMAGE}", "label": f"{name}/{LABEL}"})
            for name in folders
        ]
        return _Book(rows, path, str(path)).cohort()
    found = learn2reg or lists
    if len(found) > 1:
        names = shorten([p.name for p in found])
        raise DataError(f"{path} holds several lists ({names}): give the path of one of them as dataset_dir")
    if not found:
        raise DataError(
            f"no scans found in {path}: looked for */{IMAGE} (neurite-OASIS), *_dataset.json (Learn2Reg) "
            "and a .csv or .json list"
        )
    return _read_list(found[0], source=path)


def synthetic_cohort(num_subjects: int = 20, seed: int = 0, shape: Any = (80, 96, 112), spacing: float = 2.0) -> Cohort:
    """People made from a seed (:func:`~scripts.synthetic.subjects.cohort_seeds`); painted when they are loaded."""
    scans: list[Scan] = []
    for index, number in enumerate(cohort_seeds(num_subjects, seed)):
        name = f"synthetic_{index:04d}"
        recipe = {"seed": number, "shape": tuple(shape), "spacing": spacing}
        scans.append({"name": name, "person": name, "cohort": SYNTHETIC, "synthetic": recipe})
    return Cohort(SYNTHETIC, scans)


def person_of(name: str) -> str:
    """The person behind a scan's name: without OASIS's ``_MR2`` or BIDS's ``_ses-02``, which count visits."""
    return _SESSION.sub("", name)


class _Row(NamedTuple):
    """One entry of a list."""

    where: str  # for messages
    split: str | None
    fields: dict[str, str]


def _read_list(path: Path, source: Path | None = None) -> Cohort:
    rows = list(_csv_rows(path) if path.suffix.lower() == ".csv" else _json_rows(path))
    if not rows:
        raise DataError(f"{path} lists no scans")
    return _Book(rows, path.parent, str(source or path)).cohort()


def _csv_rows(path: Path) -> Iterator[_Row]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True)
        try:
            header = [column.strip().lower() for column in next(reader, [])]
            if "image" not in header and not {"fixed", "moving"} <= set(header):
                raise DataError(f"{path}, line 1: the header must name image[,label] or fixed,moving, got {header}")
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                where = f"{path}, line {reader.line_num}"
                if len(cells) != len(header):
                    raise DataError(f"{where}: expected {len(header)} fields as in the header, got {len(cells)}")
                fields = {key: cell.strip() for key, cell in zip(header, cells, strict=True) if cell.strip()}
                yield _Row(where, fields.pop("split", None), fields)
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, line {reader.line_num}: {error}") from error


def read_json(path: Path) -> Any:
    """Content of a JSON file. Raises DataError with the line, when it is not valid JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error


def _json_rows(path: Path) -> Iterator[_Row]:
    content = read_json(path)
    if isinstance(content, list):
        content = {"": content}
    if not isinstance(content, dict) or not {"", *_SPLIT_OF_KEY} & content.keys():
        raise DataError(f"{path}: expected a list, or an object with one of {', '.join(_SPLIT_OF_KEY)}")
    held_out = {
        row[role]
        for key in ("registration_val", "registration_test")
        for row in content.get(key) or []
        if isinstance(row, dict)
        for role in ("fixed", "moving")
        if role in row
    }
    for key, entries in content.items():
        if key and key not in _SPLIT_OF_KEY:
            continue  # name, description, numTraining …
        if not isinstance(entries, list):
            raise DataError(f"{path}: {key!r} must be a list, got {type(entries).__name__}")
        split = _SPLIT_OF_KEY.get(key)
        for index, entry in enumerate(entries):
            where = f"{path}, {key or 'entry '}[{index}]"
            fields = {"image": entry} if isinstance(entry, str) else entry
            if not isinstance(fields, dict):
                raise DataError(f"{where}: expected an object or a path, got {type(entry).__name__}")
            fields = {name: value for name, value in fields.items() if isinstance(value, str)}
            # Learn2Reg's "training" is what lies in imagesTr, the people of registration_val included.
            again = split == "train" and not held_out.isdisjoint(fields.values())
            if again and "fixed" in fields:
                continue
            yield _Row(where, fields.pop("split", None) if not key else None if again else split, fields)


class _Book:
    """Scans by their paths, as rows name them: names can be chosen only when all paths are known."""

    def __init__(self, rows: list[_Row], root: Path, source: str) -> None:
        self.root, self.source = root, source
        self.scans: dict[str, dict[str, str]] = {}
        self.splits: dict[str, dict[str, None]] = {}  # paths in order, each once
        self.pairs: list[tuple[str, str]] = []
        # Single images first: they carry the labels of those that pairs name again.
        for row in sorted(rows, key=lambda row: "fixed" in row.fields):
            self._add(row)

    def _add(self, row: _Row) -> None:
        """Take in the image or the pair of a row."""
        if {"fixed", "moving"} <= row.fields.keys():
            paths = [self._scan(row, role, f"{role}_label") for role in ("fixed", "moving")]
            self.pairs.append((paths[0], paths[1]))
        elif "image" in row.fields:
            paths = [self._scan(row, "image", "label")]
            self.scans[paths[0]].update({key: row.fields[key] for key in ("name", "person") if key in row.fields})
        else:
            raise DataError(f"{row.where}: expected image, or fixed and moving, got {sorted(row.fields)}")
        if row.split:
            split = _SPLIT_OF_KEY.get(row.split, row.split)
            self.splits.setdefault(split, {}).update(dict.fromkeys(paths))

    def _scan(self, row: _Row, image_field: str, label_field: str) -> str:
        path = str(self.root / row.fields[image_field])
        scan = self.scans.setdefault(path, {"image": path})
        label = row.fields.get(label_field)
        if label is not None:
            label = str(self.root / label)
            if scan.setdefault("label", label) != label:
                raise DataError(f"{row.where}: {path} has two labels, {scan['label']} and {label}")
        elif "label" not in scan:
            # Learn2Reg's pairs name images only; labels lie under the same name beside them.
            image = Path(path)
            twin = image.parent.with_name(image.parent.name.replace("images", "labels")) / image.name
            if twin != image and twin.is_file():
                scan["label"] = str(twin)
        return path

    def cohort(self) -> Cohort:
        """All that was read, under names instead of paths."""
        names = {path: scan.get("name", "") for path, scan in self.scans.items()}
        names |= _unique_names([path for path, name in names.items() if not name])
        scans: list[Scan] = []
        for path, fields in self.scans.items():
            name = names[path]
            person = fields.get("person") or person_of(name)
            scan: Scan = {"name": name, "person": person, "cohort": self.source, "image": path}
            if "label" in fields:
                scan["label"] = fields["label"]
            scans.append(scan)
        splits = {split: [names[path] for path in paths] for split, paths in self.splits.items()}
        pairs = [(names[fixed], names[moving]) for fixed, moving in self.pairs]
        return Cohort(self.source, sorted(scans, key=lambda scan: scan["name"]), splits, pairs)


def _unique_names(paths: list[str]) -> dict[str, str]:
    """A short name for each path: the file's, else its folder's, else both, whichever tells all of them apart."""
    stems = [stem(path) for path in paths]
    folders = [Path(path).parent.name for path in paths]
    both = [f"{folder}_{file}" for folder, file in zip(folders, stems, strict=True)]
    for names in (stems, folders, both):
        if len(set(names)) == len(paths):
            return dict(zip(paths, names, strict=True))
    return dict(zip(paths, (path.strip("/").replace("/", "_") for path in paths), strict=True))
