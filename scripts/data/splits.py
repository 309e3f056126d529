"""Who is in which split: split files, the rule that stands in for them, and the check that nobody is in two."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.core.errors import DataError, repeated, shorten
from scripts.data.dataset_folders import Scan, read_json

HELD_OUT = 0.15
"""Share of people for val, and the same for test, where no file says who they are; at least one person each."""


@dataclass(frozen=True)
class Split:
    """Content of a split file."""

    parts: dict[str, list[str]]  # names of scans in train, val, test or any other part
    same_person: list[list[str]]  # groups of names that are scans of one person


def read_split(path: Path) -> Split:
    """Read ``{"train": [...], "val": [...], "test": [...], "same_person": [[a, b], ...]}``; the last is optional.

    Entries that are not lists (a comment, a date) are passed over.

    Raises:
        DataError: when the file is missing, is not JSON (with the line), or a list holds something other than names.
    """
    if not path.is_file():
        raise DataError(f"split file {path} does not exist")
    content = read_json(path)
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object such as {{'train': [...], 'val': [...]}}")
    groups = content.pop("same_person", [])
    parts = {name: names for name, names in content.items() if isinstance(names, list)}
    for part, names in parts.items():
        if not all(isinstance(name, str) for name in names):
            raise DataError(f"{path}: {part!r} must be a list of names")
        if twice := repeated(names):
            raise DataError(f"{path}: {part!r} lists a scan twice: {shorten(twice)}")
    if not (isinstance(groups, list) and all(isinstance(group, list) and len(group) > 1 for group in groups)):
        raise DataError(f"{path}: 'same_person' must be a list of lists of at least two names")
    return Split(parts, groups)


def default_parts(scans: Sequence[Scan]) -> dict[str, list[str]]:
    """Divide people into train, val and test when no file says how; the scans of one person stay together.

    People are put in the order of a hash of their names, so that neither their numbers nor the sites behind these
    decide; then the first ones are taken for test, the next for val. It is the same on every machine.

    Raises:
        DataError: when there are fewer than three people.
    """
    people = sorted({scan["person"] for scan in scans}, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    each = max(1, round(HELD_OUT * len(people)))
    if len(people) <= 2 * each:
        raise DataError(
            f"cannot divide {len(people)} people into train, val and test with a share of {HELD_OUT} held out: "
            "write a split file, or ask for the split 'all'"
        )
    part_of = dict.fromkeys(people, "train")
    part_of |= dict.fromkeys(people[:each], "test") | dict.fromkeys(people[each : 2 * each], "val")
    parts: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for scan in scans:
        parts[part_of[scan["person"]]].append(scan["name"])
    return parts


def merge_people(scans: Sequence[Scan], groups: Iterable[Sequence[str]]) -> None:
    """Give the scans of each group one person, in place; groups that overlap become one."""
    person_of = {scan["name"]: scan["person"] for scan in scans}
    for group in groups:
        members = {person_of[name] for name in group if name in person_of}
        for name, person in person_of.items():
            if person in members:
                person_of[name] = min(members)
    for scan in scans:
        scan["person"] = person_of[scan["name"]]


def check_people(people: Mapping[str, set[str]]) -> None:
    """Make sure that no person is in two splits. Raises DataError with the names of those who are, and their splits."""
    parts_of: dict[str, list[str]] = {}
    for part, persons in people.items():
        for person in persons:
            parts_of.setdefault(person, []).append(part)
    twice = [f"{person} ({', '.join(parts)})" for person, parts in sorted(parts_of.items()) if len(parts) > 1]
    if twice:
        raise DataError(f"{len(twice)} people are in more than one split: {shorten(twice)}")
