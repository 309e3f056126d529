"""The scans of a split, and the pairs among them: what training and evaluation iterate over.

subjects = load_datalist("data/oasis2mm", split="val")
pairs = subject_pairs(subjects, num_pairs=100)
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.core.errors import DataError, repeated, shorten
from scripts.data.dataset_folders import SPLIT_FILE, SYNTHETIC, Cohort, Scan, read_cohort, synthetic_cohort
from scripts.data.splits import HELD_OUT, Split, check_people, default_parts, merge_people, read_split

logger = logging.getLogger(__name__)

ALL = "all"
"""The split that has every scan."""

PathLike = str | Path
Pair = tuple[int, int]


class Datalist(list[Scan]):
    """The scans of a split: a list of items for dictionary transforms, which also knows the pairs that files listed."""

    def __init__(self, scans: Sequence[Scan] = ()) -> None:
        super().__init__(scans)
        # Indices (fixed, moving) by cohort; a cohort without such a list is not a key.
        self.listed_pairs: dict[str, list[Pair]] = {}


def load_datalist(
    dataset_dir: PathLike | Sequence[PathLike] | None = None,
    split: str = "train",
    split_file: PathLike | None = None,
    *,
    same_person: Sequence[Sequence[str]] = (),
    require_labels: bool = True,
    synthetic: Mapping[str, Any] | None = None,
) -> Datalist:
    """Find the scans of a split.

    Args:
        dataset_dir: a folder (see :mod:`scripts.data.dataset_folders`), the path of a list, or several of them. None or
            an empty string stands for synthetic brains.
        split: train, val, test or another name that the split file has; ``all`` for every scan.
        split_file: JSON with the names in each split; relative to ``dataset_dir``, else to the working directory.
            Without it: ``split.json`` in the folder if there is one, else what the layout itself says, else a fixed
            rule (:func:`~scripts.data.splits.default_parts`).
        same_person: groups of names of scans of one person, beside those in the split file.
        require_labels: whether every scan needs a label map. If not, scans without one have no ``label``.
        synthetic: num_subjects, seed, shape and spacing, see :func:`~scripts.data.dataset_folders.synthetic_cohort`.

    Returns:
        The scans in order of their cohorts and names.

    Raises:
        DataError: when a folder, a file or a split is missing, a list is malformed, a split is empty, or a person is
            in two splits.
    """
    if not dataset_dir:
        cohorts = [synthetic_cohort(**(synthetic or {}))]
    else:
        cohorts = [read_cohort(path) for path in ([dataset_dir] if isinstance(dataset_dir, PathLike) else dataset_dir)]
    for cohort in cohorts:
        if twice := repeated(scan["name"] for scan in cohort.scans):
            raise DataError(f"{cohort.source} has several scans of the same name: {shorten(twice)}")
    parts = _assign(cohorts, split, split_file, same_person)
    if split != ALL and all(split not in part for part in parts):
        known = sorted({name for part in parts for name in part})
        raise DataError(f"unknown split {split!r}; known are {', '.join([*known, ALL])}")

    chosen = Datalist()
    for cohort, part in zip(cohorts, parts, strict=True):
        wanted = {scan["name"] for scan in cohort.scans} if split == ALL else set(part.get(split, []))
        start = len(chosen)
        chosen += [_check_files(scan, require_labels) for scan in cohort.scans if scan["name"] in wanted]
        index = {chosen[i]["name"]: i for i in range(start, len(chosen))}
        pairs = [(index[a], index[b]) for a, b in cohort.pairs if a in index and b in index]
        if pairs:
            chosen.listed_pairs[cohort.source] = pairs
    if not chosen:
        raise DataError(f"the split {split!r} of {', '.join(cohort.source for cohort in cohorts)} is empty")
    _make_names_unique(chosen)
    people = len({scan["person"] for scan in chosen})
    logger.info("split %s: %d scans of %d people from %d dataset(s)", split, len(chosen), people, len(cohorts))
    return chosen


def subject_pairs(subjects: Sequence[Scan], num_pairs: int | None = None, seed: int = 0) -> list[Pair]:
    """Pairs of subjects to register: all ordered pairs within each cohort, or those that its files list.

    Of all pairs, two scans of one person are none: their registration says little about that of two people.

    Args:
        num_pairs: keep only so many, drawn without replacement; all if there are fewer. None keeps all.

    Returns:
        Sorted indices (fixed, moving) into ``subjects``: n · (n - 1) for n people of one cohort.

    Raises:
        DataError: when no pair is left.
        ValueError: when ``num_pairs`` is not positive.
    """
    if num_pairs is not None and num_pairs < 1:
        raise ValueError(f"num_pairs must be positive, got {num_pairs} instead")
    listed = subjects.listed_pairs if isinstance(subjects, Datalist) else {}
    members: dict[str, list[int]] = {}
    for index, scan in enumerate(subjects):
        members.setdefault(scan["cohort"], []).append(index)
    pairs: list[Pair] = []
    for cohort, indices in members.items():
        pairs += listed.get(cohort) or [
            (i, j) for i, j in itertools.permutations(indices, 2) if subjects[i]["person"] != subjects[j]["person"]
        ]
    if not pairs:
        raise DataError(f"no pairs among {len(subjects)} scans: a pair needs two people of the same dataset")
    if num_pairs is None or num_pairs >= len(pairs):
        return sorted(pairs)
    chosen = np.random.default_rng(seed).choice(len(pairs), num_pairs, replace=False)
    return sorted(pairs[k] for k in chosen)


def _assign(
    cohorts: list[Cohort], split: str, split_file: PathLike | None, same_person: Sequence[Sequence[str]]
) -> list[dict[str, list[str]]]:
    """Names in each split of each cohort, after the checks on people and on names that no scan has."""
    parts: list[dict[str, list[str]]] = []
    known: dict[Path, set[str]] = {}  # a split file may serve several cohorts
    groups = list(same_person)
    for cohort in cohorts:
        path = _find_split_file(cohort, split_file)
        names = {scan["name"] for scan in cohort.scans}
        content = read_split(path) if path else Split(cohort.splits, [])
        groups += content.same_person
        merge_people(cohort.scans, [*same_person, *content.same_person])
        parts.append(content.parts)
        if path:
            known[path] = known.get(path, set()) | names
            logger.info("%s: %d scans, split by %s", cohort.source, len(names), path)
        elif not (cohort.splits or cohort.pairs or split == ALL):  # a rule would cut pairs that are listed
            parts[-1] = default_parts(cohort.scans)
            text = "%s: no split file; people are divided by a hash of their names, %g %% each for val and test"
            logger.info(text, cohort.source, 100 * HELD_OUT)
    for path, names in known.items():
        missing = sorted({name for part in read_split(path).parts.values() for name in part} - names)
        if missing:
            raise DataError(f"{path} lists {len(missing)} scans that are not there: {shorten(missing)}")
    unknown = {name for group in groups for name in group} - {s["name"] for cohort in cohorts for s in cohort.scans}
    if unknown:
        logger.warning("same_person names scans that are not there: %s", shorten(sorted(unknown)))

    people: dict[str, set[str]] = {}
    for cohort, part in zip(cohorts, parts, strict=True):
        person = {scan["name"]: scan["person"] for scan in cohort.scans}
        for name, scans in part.items():
            people.setdefault(name, set()).update(person[scan] for scan in scans if scan in person)
    check_people(people)
    return parts


def _find_split_file(cohort: Cohort, split_file: PathLike | None) -> Path | None:
    source = Path(cohort.source)
    folder = source.parent if source.is_file() else source
    if split_file is None or split_file == "":
        default = folder / SPLIT_FILE
        return default if default.is_file() and cohort.source != SYNTHETIC else None
    inside = folder / split_file
    return inside if inside.is_file() else Path(split_file).expanduser()


def _check_files(scan: Scan, require_labels: bool) -> Scan:
    """The scan, with its label dropped if it is missing and not required."""
    if "synthetic" in scan:
        return scan
    if not Path(scan["image"]).is_file():
        raise DataError(f"the image of {scan['name']} is missing: {scan['image']}")
    if "label" in scan and Path(scan["label"]).is_file():
        return scan
    if require_labels:
        path = scan.get("label", "none is listed")
        raise DataError(
            f"the label of {scan['name']} is missing: {path} (labels are optional with require_labels=False)"
        )
    scan.pop("label", None)
    return scan


def _make_names_unique(scans: list[Scan]) -> None:
    """Put the folder's name before names that several cohorts have, because results are filed under names."""
    shared = set(repeated(scan["name"] for scan in scans))
    for scan in scans:
        if scan["name"] in shared:
            scan["name"] = f"{Path(scan['cohort']).stem}_{scan['name']}"
    if twice := repeated(scan["name"] for scan in scans):
        raise DataError(f"the datasets share names of scans: {shorten(twice)}; is one of them given twice?")
