"""How honest samples around the same means are: proper scores of each kind of spread, and intervals of volumes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from experiments.results.result_tables import NOTHING, Group, markdown
from experiments.results.store import title
from experiments.results.volumes import PARTS, part_of
from scripts.evaluation.pair_result import LEVELS, PairResult
from scripts.evaluation.summary_table import summarize_results

COLUMNS = (
    ("DSC of the labels", "structures", "dice_labels", 4),
    ("DSC of a sample", "structures", "dice_sample", 4),
    ("Brier ↓", "structures", "brier", 4),
    ("Log score ↓", "structures", "log_score", 4),
    ("ECE ↓", "structures", "ece", 4),
    ("AUSE ↓", "structures", "ause_label", 4),
    ("Brier, all classes ↓", "pairs", "brier_classes", 4),
    ("Log score, all classes ↓", "pairs", "log_score_classes", 4),
    ("Folds of samples %", "pairs", "fold_samples", 3),
)


def spread_table(group: Group) -> str:
    """A row for each spread: means over pairs and structures."""
    if not group:
        return NOTHING
    rows = []
    for name, results in group.items():
        summary = summarize_results(results)
        values = [(summary[part][score]["mean"], digits) for _, part, score, digits in COLUMNS]
        cells = [f"{value:.{digits}f}" if math.isfinite(value) else "–" for value, digits in values]
        rows.append([title(name), str(summary["num_pairs"]), *cells])
    return markdown(["Samples", "Pairs", *(column[0] for column in COLUMNS)], rows)


def coverage_table(results: Sequence[PairResult]) -> str:
    """Shares of volumes in their intervals, how wide these are, and the error of the expected volume, by part."""
    if not results:
        return NOTHING
    columns = [*(f"inside_{level}" for level in LEVELS), "width_95", "volume", "volume_true", "volume_z_square"]
    found = [
        (part_of(label), dict(zip(columns, values, strict=True)))
        for result in results
        for label, *values in zip(result.labels, *(result.structures[name] for name in columns), strict=True)
        if math.isfinite(result.structures["volume_true"][result.labels.index(label)])
    ]
    groups = {"all 31 structures": [row for _, row in found]}
    groups |= {name: [row for part, row in found if part == name] for name in PARTS}
    lines = []
    for name, rows in ((name, rows) for name, rows in groups.items() if rows):
        inside = [f"{100 * statistics.fmean(row[f'inside_{level}'] for row in rows):.0f} %" for level in LEVELS]
        width = statistics.median(row["width_95"] for row in rows)
        error = statistics.median(abs(row["volume"] / row["volume_true"] - 1) for row in rows)
        rms = math.sqrt(statistics.fmean(row["volume_z_square"] for row in rows))
        lines.append([name, str(len(rows)), *inside, f"{100 * width:.0f} %", f"{100 * error:.0f} %", f"{rms:.2f}"])
    header = ["Structures", "Volumes", *(f"in {level} %" for level in LEVELS), "Width of 95 %", "Error", "rms of z"]
    return (
        f"{markdown(header, lines)}\n{len(results)} pairs; width and error are medians, as shares of the true volume.\n"
    )
