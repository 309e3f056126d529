"""Tables inside of pages: what stands between two markers is made from the CSV files, the rest stays as it is.

<!-- table: accuracy -->
…
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from experiments.results.result_pictures import links
from experiments.results.result_tables import (
    RANKS,
    SHIPPED,
    TEMPERATURES,
    VARIANTS,
    Group,
    all_groups,
    model_table,
    one_mm_table,
    own_rows,
    performance_table,
    perturbed_table,
    temperature_table,
    tool_table,
)
from experiments.results.spread_tables import coverage_table, spread_table
from experiments.results.store import FOLDER, GROUPS
from experiments.results.targets import targets_table
from experiments.results.volumes import FILE, volume_table
from scripts.core.atomic import write_text

PAGES = (Path("docs/results.md"), Path("docs/README.md"))
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def tables(folder: Path = FOLDER) -> dict[str, Callable[[], str]]:
    """Every table by its name."""
    groups = all_groups(folder)
    variants, longer, refined, shipped, baselines, one_mm, timed, perturbed, two, one = (
        groups[name] for name in GROUPS
    )

    def paper(names: tuple[str, ...], kind: str, group: Group = variants) -> Callable[[], str]:
        return lambda: model_table(group, names, kind)

    return {
        "accuracy": paper(VARIANTS, "Accuracy"),
        "calibration": paper(VARIANTS, "Calibration"),
        "displacement": paper(VARIANTS, "Calibration by displacement"),
        "sampling": paper(VARIANTS, "Sampling"),
        "longer_accuracy": paper(VARIANTS, "Accuracy", longer),
        "longer_calibration": paper(VARIANTS, "Calibration", longer),
        "longer_displacement": paper(VARIANTS, "Calibration by displacement", longer),
        "refined_accuracy": paper(VARIANTS, "Accuracy", refined),
        "refined_calibration": paper(VARIANTS, "Calibration", refined),
        "refined_displacement": paper(VARIANTS, "Calibration by displacement", refined),
        "rank_accuracy": paper(RANKS, "Accuracy"),
        "rank_calibration": paper(RANKS, "Calibration"),
        "temperature_accuracy": paper(TEMPERATURES, "Accuracy"),
        "temperature_calibration": paper(TEMPERATURES, "Calibration"),
        "baselines": lambda: tool_table(baselines, own_rows(variants, refined, shipped)),
        "one_mm": lambda: one_mm_table(one_mm, timed),
        "perturbed": lambda: perturbed_table(perturbed, shipped.get(SHIPPED)),
        "fitted_temperature": lambda: temperature_table(folder / "calibration.json"),
        "targets": lambda: targets_table(variants, longer, refined, baselines, one_mm, timed),
        "spread_2mm": lambda: spread_table(two),
        "spread_1mm": lambda: spread_table(one),
        "coverage": lambda: coverage_table(one.get("curvature", ())),
        "volumes": lambda: volume_table(folder / FILE),
        "figures": lambda: links(folder),
        "performance": lambda: performance_table(shipped, one_mm),
    }


def filled(page: str, made: Mapping[str, Callable[[], str]]) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: when a marker names a table that does not exist.
    """

    def table(match: re.Match[str]) -> str:
        if match[2] not in made:
            raise ValueError(f"there is no table {match[2]!r}; known are {', '.join(made)}")
        return f"{match[1]}\n{made[match[2]]()}\n{match[3]}"

    return _MARKED.sub(table, page)


def outdated(folder: Path = FOLDER, pages: tuple[Path, ...] = PAGES) -> list[Path]:
    """The pages whose tables are not what the CSV files give."""
    made = tables(folder)
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    return [path for path, text in texts.items() if filled(text, made) != text]


def update(folder: Path = FOLDER, pages: tuple[Path, ...] = PAGES) -> list[Path]:
    """Make all tables anew; returns the pages that changed."""
    changed = outdated(folder, pages)
    for path in changed:
        write_text(path, filled(path.read_text(encoding="utf-8"), tables(folder)))
    return changed
