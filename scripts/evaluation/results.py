"""Results on disk, pair by pair: an evaluation of hours that is interrupted goes on where it stopped.

A folder holds ``pairs.csv`` (a row a pair and structure), ``curves.jsonl`` (a line a pair) and ``pair_summaries.csv``
(a row a pair). The last is written last: a pair without its row there was not finished, and is dropped when read.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.core.atomic import write_text
from scripts.core.errors import shorten
from scripts.core.seg35 import SEG35
from scripts.evaluation.pair_result import PAIR_SCORES, STRUCTURE_SCORES, PairResult

STRUCTURES_FILE, CURVES_FILE, PAIRS_FILE = "pairs.csv", "curves.jsonl", "pair_summaries.csv"
SETTINGS_FILE = "settings.json"
STRUCTURE_COLUMNS = ("fixed", "moving", "label", "structure", *STRUCTURE_SCORES)
PAIR_COLUMNS = ("fixed", "moving", "structures", *PAIR_SCORES)

PathLike = str | os.PathLike[str]


class ResultsError(ValueError):
    """A folder of results that cannot be read, or must not be continued."""


def structure_name(label: int) -> str:
    """FreeSurfer's name of a seg35 label, ``label-N`` for any other."""
    return SEG35[label].name if label in SEG35 else f"label-{label}"


class ResultStore:
    """The results of one model in a folder; complete pairs only.

    Args:
        resume: go on with the pairs that the folder holds; otherwise they are deleted.
    """

    def __init__(self, folder: PathLike, resume: bool = True) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            for name in (PAIRS_FILE, STRUCTURES_FILE, CURVES_FILE, SETTINGS_FILE):
                (self.folder / name).unlink(missing_ok=True)
        self.results = read_results(self.folder)
        # What was dropped must also leave the files: new rows are appended behind.
        for name, text in _as_texts(self.results).items():
            path = self.folder / name
            if path.exists() and path.read_text(encoding="utf-8") != text:
                write_text(path, text)

    def __len__(self) -> int:
        return len(self.results)

    def __contains__(self, names: tuple[str, str]) -> bool:
        """Whether the pair (fixed, moving) is done."""
        return any((result.fixed, result.moving) == tuple(names) for result in self.results)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """Note how the results are made; ResultsError rather than mixing them with those of other settings."""
        path = self.folder / SETTINGS_FILE
        text = json.dumps(settings, indent=2, sort_keys=True)
        if self.results and path.exists():
            now, before = json.loads(text), json.loads(path.read_text(encoding="utf-8"))
            # First what has another value, then what only one of the two has.
            names = sorted({*now, *before}, key=lambda key: (key not in now or key not in before, key))
            changed = [key for key in names if now.get(key) != before.get(key)]
            if changed:
                details = shorten([f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in changed])
                raise ResultsError(
                    f"{self.folder} holds {len(self)} pairs of other settings: {details}. "
                    "Choose another output_dir, or start over with resume=False"
                )
        write_text(path, text + "\n")

    def add(self, result: PairResult) -> None:
        """Append one pair; after an interruption it is in the folder completely or not at all."""
        for name, text in _as_texts([result]).items():
            path = self.folder / name
            new = not path.exists()
            with path.open("a", encoding="utf-8", newline="\n") as file:
                file.write(text if new or name == CURVES_FILE else text.partition("\n")[2])  # without the header
                file.flush()
                os.fsync(file.fileno())  # the order of the files on disk is the order in which they are written
        self.results.append(result)


def read_results(folder: PathLike) -> list[PairResult]:
    """The complete pairs of a folder, in the order in which they were added; ResultsError for other columns."""
    folder = Path(folder)
    structures: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _read_rows(folder / STRUCTURES_FILE, STRUCTURE_COLUMNS):
        structures.setdefault((row["fixed"], row["moving"]), []).append(row)
    curves = {}
    for line in _complete_lines(folder / CURVES_FILE):
        entry = json.loads(line)
        curves[entry.pop("fixed"), entry.pop("moving")] = entry
    results = []
    for row in _read_rows(folder / PAIRS_FILE, PAIR_COLUMNS):
        names = (row["fixed"], row["moving"])
        rows = structures.get(names, [])[-int(row["structures"]) :]
        if names not in curves or len(rows) != int(row["structures"]):
            continue
        results.append(
            PairResult(
                *names,
                labels=tuple(int(r["label"]) for r in rows),
                structures={name: [float(r[name]) for r in rows] for name in STRUCTURE_SCORES},
                pair={name: float(row[name]) for name in PAIR_SCORES},
                curves=curves[names],
            )
        )
    return results


def _as_texts(results: Iterable[PairResult]) -> dict[str, str]:
    """Contents of the three files, headers included, in the order in which they are to be written."""
    structure_rows: list[list[object]] = []
    pair_rows: list[list[object]] = []
    lines = []
    for result in results:
        names = [result.fixed, result.moving]
        for i, label in enumerate(result.labels):
            scores = [result.structures[name][i] for name in STRUCTURE_SCORES]
            structure_rows.append([*names, label, structure_name(label), *scores])
        pair_rows.append([*names, len(result.labels), *(result.pair[name] for name in PAIR_SCORES)])
        lines.append(json.dumps({"fixed": result.fixed, "moving": result.moving, **result.curves}) + "\n")
    return {
        STRUCTURES_FILE: csv_text(STRUCTURE_COLUMNS, structure_rows),
        CURVES_FILE: "".join(lines),
        PAIRS_FILE: csv_text(PAIR_COLUMNS, pair_rows),
    }


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Numbers as Python prints them, so that they are read back to the last bit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _complete_lines(path: Path) -> list[str]:
    """Lines of a file without a last one that was not finished."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return text.split("\n")[:-1]


def _read_rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    lines = _complete_lines(path)
    if not lines:
        return []
    reader = csv.DictReader(lines)
    if tuple(reader.fieldnames or ()) != tuple(columns):
        raise ResultsError(f"{path} has other columns than this version writes: start over with resume=False")
    return list(reader)
