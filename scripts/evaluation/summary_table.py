"""Summaries of many pairs, and the paper's tables as text, one row a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from scripts.evaluation.calibration import spearman_per_structure
from scripts.evaluation.pair_result import PAIR_SCORES, STRUCTURE_SCORES, PairResult
from scripts.evaluation.results import ResultsError, structure_name

Summary = dict[str, Any]

# A column: its title, where in the summary its number is, the name of its deviation, and decimals of both.
Column = tuple[str, tuple[str, str], str, tuple[int, int]]
_DICE, _FOLD, _SCORE, _RANK = (3, 2), (3, 2), (4, 3), (3, 3)
TABLES: dict[str, tuple[Column, ...]] = {
    # The paper's deviations: over pairs for accuracy, over structures for calibration.
    "Accuracy": (
        ("μ (DSC)", ("structures", "dice_mu"), "std_pairs", _DICE),
        ("mean (DSC)", ("structures", "dice_mean"), "std_pairs", _DICE),
        ("Oracle (DSC)", ("structures", "dice_oracle"), "std_pairs", _DICE),
        ("μ fold %", ("pairs", "fold_mu"), "std_pairs", _FOLD),
        ("mean fold %", ("pairs", "fold_mean"), "std_pairs", _FOLD),
        ("Oracle fold %", ("pairs", "fold_oracle"), "std_pairs", _FOLD),
    ),
    "Calibration": (
        ("AUSE_label ↓", ("structures", "ause_label"), "std_structures", _SCORE),
        ("ECE ↓", ("structures", "ece"), "std_structures", _SCORE),
        ("Label entropy", ("structures", "label_entropy"), "std_structures", _SCORE),
        ("Spearman r: entropy & DSC", ("spearman", "label_entropy"), "std_structures", _RANK),
    ),
    "Calibration by displacement": (
        ("AUSE_disp ↓", ("structures", "ause_displacement"), "std_structures", _SCORE),
        ("Displacement variance (mm²)", ("structures", "displacement_variance"), "std_structures", _SCORE),
        ("Spearman r: variance & DSC", ("spearman", "displacement_variance"), "std_structures", _RANK),
    ),
    "Proper scores": (
        ("labels (DSC)", ("structures", "dice_labels"), "std_pairs", _SCORE),
        ("sample (DSC)", ("structures", "dice_sample"), "std_pairs", _SCORE),
        ("Brier ↓", ("structures", "brier"), "std_pairs", _SCORE),
        ("Log score ↓", ("structures", "log_score"), "std_pairs", _SCORE),
        ("Brier, classes ↓", ("pairs", "brier_classes"), "std_pairs", _SCORE),
        ("Log score, classes ↓", ("pairs", "log_score_classes"), "std_pairs", _SCORE),
        ("sample fold %", ("pairs", "fold_samples"), "std_pairs", _SCORE),
    ),
    "Volumes": (
        ("in 50 %", ("structures", "inside_50"), "std_structures", _DICE),
        ("in 80 %", ("structures", "inside_80"), "std_structures", _DICE),
        ("in 95 %", ("structures", "inside_95"), "std_structures", _DICE),
        ("width of 95 %", ("structures", "width_95"), "std_structures", _DICE),
        ("mean z²", ("structures", "volume_z_square"), "std_structures", _DICE),
    ),
    "Landmarks": (
        ("before, mm", ("pairs", "tre_before"), "std_pairs", _DICE),
        ("TRE, mm", ("pairs", "tre"), "std_pairs", _DICE),
        ("χ²/3", ("pairs", "landmark_chi2"), "std_pairs", _DICE),
        ("χ²/3 with raters", ("pairs", "landmark_chi2_raters"), "std_pairs", _DICE),
        ("in 95 %", ("pairs", "landmarks_inside_95"), "std_pairs", _DICE),
        ("in 95 % with raters", ("pairs", "landmarks_inside_95_raters"), "std_pairs", _DICE),
    ),
    "Sampling": (
        ("ESS", ("pairs", "ess"), "std_pairs", (1, 1)),
        ("k-hat", ("pairs", "khat"), "std_pairs", (2, 2)),
        ("Largest weight", ("pairs", "max_weight"), "std_pairs", (3, 3)),
        ("Unique", ("pairs", "unique"), "std_pairs", (1, 1)),
        ("DSC before", ("pairs", "dice_before"), "std_pairs", _DICE),
        ("NCC² before", ("pairs", "ncc_before"), "std_pairs", _DICE),
        ("NCC² after", ("pairs", "ncc_after"), "std_pairs", _DICE),
        ("Seconds a pair", ("pairs", "seconds"), "std_pairs", (1, 1)),
    ),
}


def summarize_results(results: Sequence[PairResult]) -> Summary:
    """Reduce the scores of many pairs to what tables show.

    A structure's score is its mean over the pairs that have it; the score of a model is the mean of its structures.
    Deviations are those of a sample (n − 1): ``std_structures`` of the structures' scores, ``std_pairs`` of the pairs'
    means over structures.

    Returns:
        ``num_pairs``; ``structures`` and ``pairs``: {score: {mean, std_structures, std_pairs}}; ``spearman``: rank
        correlation of two uncertainties with Dice of the mean field (decision 19); ``per_structure``: {name: {score:
        mean}}. Numbers that do not exist are NaN.

    Raises:
        ResultsError: when there are no pairs, or they have different labels.
    """
    if not results:
        raise ResultsError("there are no pairs to summarize")
    if len({result.labels for result in results}) > 1:
        raise ResultsError("the pairs were evaluated on different labels")
    scores = {  # each [P, S]
        name: torch.tensor([result.structures[name] for result in results], dtype=torch.float64)
        for name in STRUCTURE_SCORES
    }
    ranks = {
        name: spearman_per_structure(scores[name], scores["dice_mean"])
        for name in ("label_entropy", "displacement_variance")
    }
    pairs = {name: torch.tensor([result.pair[name] for result in results], dtype=torch.float64) for name in PAIR_SCORES}
    pairs["seconds"] = pairs["seconds_network"] + pairs["seconds_proposals"] + pairs["seconds_evaluation"]
    structures = {}
    for name, values in scores.items():
        by_structure = values.nanmean(0)
        structures[name] = {
            "mean": float(by_structure.nanmean()),
            "std_structures": _deviation(by_structure),
            "std_pairs": _deviation(values.nanmean(1)),
        }
    return {
        "num_pairs": len(results),
        "structures": structures,
        "pairs": {name: {"mean": _finite_mean(v), "std_pairs": _deviation(v)} for name, v in pairs.items()},
        "spearman": {name: {"mean": float(v.nanmean()), "std_structures": _deviation(v)} for name, v in ranks.items()},
        "per_structure": {
            structure_name(label): {
                **{name: float(values[:, i].nanmean()) for name, values in scores.items()},
                **{f"spearman_{name}": float(values[i]) for name, values in ranks.items()},
            }
            for i, label in enumerate(results[0].labels)
        },
    }


def format_tables(summaries: Mapping[str, Summary]) -> str:
    """The paper's tables with the models as rows: mean (standard deviation), ``-`` for what does not exist."""
    parts = []
    for title, columns in TABLES.items():
        deviation = "structures" if columns[0][2] == "std_structures" else "pairs"
        rows = [["Model", "Pairs", *(column[0] for column in columns)]]
        for name, summary in summaries.items():
            rows.append([name, str(summary["num_pairs"]), *(_cell(summary, column) for column in columns)])
        if all(cell == "-" for row in rows[1:] for cell in row[2:]):
            continue  # nobody has such figures
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        lines.insert(1, "  ".join("-" * width for width in widths))
        parts.append("\n".join([f"{title}: mean (standard deviation over {deviation})", *lines]))
    return "\n\n".join(parts)


def to_json(summary: Mapping[str, Any]) -> str:
    """Strict JSON text, with null for NaN and infinity, which JSON does not know."""

    def clean(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(item) for key, item in value.items()}
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(clean(summary), indent=2, allow_nan=False) + "\n"


def _cell(summary: Summary, column: Column) -> str:
    _, (group, score), deviation, (decimals, deviation_decimals) = column
    mean, std = summary[group][score]["mean"], summary[group][score][deviation]
    if not math.isfinite(mean):
        return "-"
    return f"{mean:.{decimals}f} " + (f"({std:.{deviation_decimals}f})" if math.isfinite(std) else "(-)")


def _finite_mean(values: Tensor) -> float:
    """Mean of the finite numbers of shape [P]: a k̂ without enough weights to fit is infinite."""
    return float(values[values.isfinite()].mean())


def _deviation(values: Tensor) -> float:
    """Sample standard deviation of the finite numbers of shape [N]; NaN for fewer than two."""
    values = values[values.isfinite()]
    return float(values.std()) if len(values) > 1 else math.nan
