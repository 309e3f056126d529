"""Results as they are committed: small CSV files, five digits, in docs/results/GROUP/NAME.

NAME.csv has a row for each pair and structure, NAME_pairs.csv a row for each pair; both are cut from the folder that
`run evaluation` or `experiments.baselines` writes. Curves and settings stay there.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.core.atomic import write_text
from scripts.evaluation.pair_result import PAIR_SCORES, STRUCTURE_SCORES, PairResult
from scripts.evaluation.results import ResultsError, read_results

FOLDER = Path("docs/results")
DIGITS = 5
ONE_MM = ("fast", "fast_refined", "detail", "fine", "fine_refined")
"""This bundle's own rows among those of 1 mm files."""
GROUPS = (
    "variants",
    "longer",
    "refined",
    "shipped",
    "baselines",
    "one_mm",
    "timed",
    "perturbed",
    "spread_2mm",
    "spread_1mm",
)

# Name of a file to that in tables, in the tables' order; a name that is not here comes last, as it is.
MODELS = {
    "v_d": "V+D",
    "v_ld": "V+LD",
    "v_c": "V+C",
    "v_lc": "V+LC",
    "i_lc": "I+LC",
    "s_d": "S+D",
    "s_ld": "S+LD",
    "s_c": "S+C",
    "s_lc": "S+LC",
    "s_lc_10l": "S+LC 10L",
    "vxm5": "Vxm5",
    "s_lc_svf": "S+LC 10L, SVF",
    "s_lc_5l": "S+LC 5L",
    "s_lc_20l": "S+LC 20L",
    "s_lc_30l": "S+LC 30L",
    "s_lc_t2": "S+LC T = 2",
    "s_lc_t4": "S+LC T = 4",
    "mean": "mean only",
    "network": "shipped model, network alone",
    "model": "shipped model",
    "unregistered": "unregistered",
    "affine": "affine (ANTs)",
    "syn": "SyN (ANTs)",
    "syn_default": "SyN, fewer iterations",
    "convexadam": "ConvexAdam",
    "fast": "2 mm model",
    "fast_refined": "2 mm model, refined",
    "detail": "2 mm model, refined, detail at 1 mm (default)",
    "fine": "1 mm model",
    "fine_refined": "1 mm model, refined",
    "spread_noise": "smooth noise of 1 mm",
    "v_d_8": "V+D times 8",
    "s_lc_3": "S+LC times 3",
    "blurred": "labels of the mean field, blurred",
    "spread_sir": "S+LC 10L, SIR at T = 0.1 (default before)",
    "curvature": "curvature and local weights (default)",
    "none": "as they are",
    "gamma": "contrast (gamma)",
    "bias": "coil shading",
    "noise": "noise",
    "blur": "blur",
    "strip": "bad skull stripping",
    "rotate": "rotated by 6°",
    "shift": "shifted by 6 mm",
}


def title(name: str) -> str:
    """The name in tables."""
    return MODELS.get(name, name)


def read_group(group: str, folder: Path = FOLDER) -> dict[str, list[PairResult]]:
    """All results of a group, {name: pairs}, in the tables' order; empty if there are none."""
    names = [path.stem.removesuffix("_pairs") for path in (folder / group).glob("*_pairs.csv")]
    order = list(MODELS)
    names.sort(key=lambda name: (order.index(name) if name in MODELS else len(order), name))
    return {name: read(folder / group, name) for name in names}


def read(folder: Path, name: str) -> list[PairResult]:
    """The pairs of one model; curves are empty.

    Raises:
        ResultsError: when the two files do not fit each other.
    """
    structures: dict[str, list[dict[str, str]]] = {}
    for row in _rows(folder / f"{name}.csv"):
        structures.setdefault(row["pair"], []).append(row)
    results = []
    for number, row in enumerate(_rows(folder / f"{name}_pairs.csv")):
        own = structures.get(str(number))
        if own is None:
            raise ResultsError(f"{folder / name}.csv has no structures of pair {number}")
        results.append(
            PairResult(
                row["fixed"],
                row["moving"],
                labels=tuple(int(r["label"]) for r in own),
                structures={score: [_number(r.get(score, "")) for r in own] for score in STRUCTURE_SCORES},
                pair={score: _number(row.get(score, "")) for score in PAIR_SCORES},
                curves={},
            )
        )
    return results


def filed_pairs(group: str, name: str, folder: Path = FOLDER) -> set[tuple[str, str]]:
    """(fixed, moving) of the pairs that are filed already; none if nothing is."""
    if not (folder / group / f"{name}_pairs.csv").is_file():
        return set()
    return {(result.fixed, result.moving) for result in read(folder / group, name)}


def add(
    source: Path, group: str, name: str, folder: Path = FOLDER, merge: bool = False, untimed: bool = False
) -> list[Path]:
    """Cut the committed files from a folder of results; returns their paths.

    Args:
        source: of an evaluation.
        group: one of ``GROUPS``.
        name: of the files.
        folder: of all groups.
        merge: keep the pairs that are filed already and that the source does not have.
        untimed: leave the source's seconds out: they are of another machine than the other rows.

    Raises:
        ResultsError: when the folder holds no complete pair.
    """
    results = list(read_results(source))
    if not results:
        raise ResultsError(f"{source} holds no complete pair: is it the folder of an evaluation?")
    if untimed:
        nothing = dict.fromkeys((score for score in PAIR_SCORES if score.startswith("seconds")), math.nan)
        results = [replace(result, pair={**result.pair, **nothing}) for result in results]
    if merge and filed_pairs(group, name, folder):
        new = {(result.fixed, result.moving) for result in results}
        results += [old for old in read(folder / group, name) if (old.fixed, old.moving) not in new]
    results.sort(key=lambda result: (result.fixed, result.moving))
    structures = [
        [number, label, *(_text(result.structures[score][i]) for score in STRUCTURE_SCORES)]
        for number, result in enumerate(results)
        for i, label in enumerate(result.labels)
    ]
    pairs = [[result.fixed, result.moving, *(_text(result.pair[score]) for score in PAIR_SCORES)] for result in results]
    tables: dict[str, tuple[Sequence[str], Iterable[Sequence[object]]]] = {
        f"{name}.csv": (("pair", "label", *STRUCTURE_SCORES), structures),
        f"{name}_pairs.csv": (("fixed", "moving", *PAIR_SCORES), pairs),
    }
    (folder / group).mkdir(parents=True, exist_ok=True)
    for file, (columns, rows) in tables.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
        write_text(folder / group / file, text.getvalue())
    return [folder / group / file for file in tables]


def common(first: Sequence[PairResult], second: Sequence[PairResult]) -> tuple[list[PairResult], list[PairResult]]:
    """The pairs that both have, in the same order: only those can be compared."""
    others = {(result.fixed, result.moving): result for result in second}
    shared = [result for result in first if (result.fixed, result.moving) in others]
    return shared, [others[result.fixed, result.moving] for result in shared]


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        raise ResultsError(f"{path} is missing")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _text(value: float) -> str:
    """Five digits; nothing for a number that does not exist."""
    return f"{value:.{DIGITS}g}" if math.isfinite(value) else ""


def _number(text: str) -> float:
    return float(text) if text else math.nan
