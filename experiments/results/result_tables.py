"""The tables of the results page, as Markdown."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.results.store import GROUPS, ONE_MM, common, read_group, title
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.summary_table import TABLES, Column, Summary, summarize_results

NOTHING = "Not measured yet.\n"
VARIANTS = ("v_d", "v_ld", "v_c", "v_lc", "i_lc", "s_d", "s_ld", "s_c", "s_lc", "s_lc_10l", "vxm5", "s_lc_svf")
RANKS = ("s_lc_5l", "s_lc_10l", "s_lc_20l", "s_lc", "s_lc_30l")
TEMPERATURES = ("s_lc_t2", "s_lc", "s_lc_t4")
# The comparison's own S+LC 10L, trained as its other rows; the weights that the bundle ships are a group of their own.
OURS = "s_lc_10l"
SHIPPED, UNREFINED = "model", "network"
DEFAULT = "detail"
"""Of the 1 mm rows, what `run inference` does by default."""

Group = Mapping[str, Sequence[PairResult]]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the first column to the left, numbers to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cell(summary: Summary, column: Column) -> str:
    """Mean (deviation) of one column; a dash where it does not exist."""
    _, (group, score), deviation, (decimals, deviation_decimals) = column
    values = summary[group][score]
    # Accuracy over structures, too: the console's tables follow the paper, these the columns that were asked for.
    deviation = "std_structures" if "std_structures" in values else deviation
    mean, std = values["mean"], values[deviation]
    if not math.isfinite(mean):
        return "–"
    return f"{mean:.{decimals}f}" + (f" ({std:.{deviation_decimals}f})" if math.isfinite(std) else "")


def model_table(group: Group, names: Sequence[str], kind: str) -> str:
    """One of the paper's tables (a key of ``TABLES``) for the models among ``names`` that have results."""
    chosen = {name: group[name] for name in names if name in group}
    if not chosen:
        return NOTHING
    columns = TABLES[kind]
    rows = []
    for name, results in chosen.items():
        summary = summarize_results(results)
        rows.append([title(name), str(summary["num_pairs"]), *(cell(summary, column) for column in columns)])
    return markdown(["Model", "Pairs", *(column[0] for column in columns)], rows)


def seconds(results: Sequence[PairResult]) -> float:
    """Median seconds of a registration where they were taken: network and proposals; of a tool, all it does."""
    taken = [result.pair["seconds_network"] + result.pair["seconds_proposals"] for result in results]
    return statistics.median(known) if (known := [value for value in taken if math.isfinite(value)]) else math.nan


def own_rows(variants: Group, refined: Group, shipped: Group) -> dict[str, Sequence[PairResult]]:
    """Models of our own for the table of tools, by their titles there."""
    rows = {f"{title(name)}, network alone": variants[name] for name in ("v_lc", OURS) if name in variants}
    rows |= {f"{title(name)}, refined": refined[name] for name in ("v_lc", OURS) if name in refined}
    return rows | {title(name): shipped[name] for name in (UNREFINED, SHIPPED) if name in shipped}


def around(results: Sequence[PairResult]) -> float:
    """Median seconds of what this bundle does around a registration: reading, checks, maps, files."""
    return statistics.median(result.pair["seconds_evaluation"] for result in results)


def one_mm_table(group: Group, timed: Group) -> str:
    """Dice and folds on 1 mm files, and the seconds of those that were timed in one go.

    Each row stands beside the default on the very same pairs; tools that take minutes have fewer of them.
    """
    if not group:
        return NOTHING
    rows = []
    for name, results in group.items():
        summary = summarize_results(results)
        dice, folds = (summary[part][score] for part, score in (("structures", "dice_mean"), ("pairs", "fold_mean")))
        _, default = common(results, group.get(DEFAULT, ()))
        times = timed.get(name)
        rows.append(
            [
                title(name),
                str(len(results)),
                f"{summary['pairs']['dice_before']['mean']:.3f}",
                f"{dice['mean']:.3f} ({dice['std_structures']:.2f})",
                f"{summarize_results(default)['structures']['dice_mean']['mean']:.3f}" if default else "–",
                f"{folds['mean']:.3f}",
                f"{seconds(times):.0f}" if times else "–",
                f"{taken:.0f}" if times and (taken := around(times)) > 0 else "–",
            ]
        )
    header = ["Method", "Pairs", "DSC before", "DSC of the (mean) field", "Default on these pairs", "Fold %"]
    return markdown([*header, "Seconds of registration", "around it"], rows)


def tool_table(group: Group, own: Group | None = None) -> str:
    """Dice, folds and time of tools, with models of our own (by their titles), on pairs of the longest list.

    A tool may have been run on fewer pairs: beside its Dice stands that of the shipped model on the very same ones.
    """
    if not group:
        return NOTHING
    reference = max(group.values(), key=len)
    ours = (own or {}).get(title(SHIPPED))
    rows = []
    for name, results in {**{title(name): results for name, results in group.items()}, **(own or {})}.items():
        same, _ = common(results, reference)
        if not same:
            continue
        summary = summarize_results(same)
        dice, folds = (summary[part][score] for part, score in (("structures", "dice_mean"), ("pairs", "fold_mean")))
        row = [
            name,
            str(len(same)),
            f"{summary['pairs']['dice_before']['mean']:.3f}",
            f"{dice['mean']:.3f} ({dice['std_structures']:.2f})",
            f"{folds['mean']:.3f}",
            f"{taken:.1f}" if (taken := seconds(same)) > 0 else "–",
        ]
        if ours:
            _, counterparts = common(same, ours)
            row.append(
                f"{summarize_results(counterparts)['structures']['dice_mean']['mean']:.3f}" if counterparts else "–"
            )
        rows.append(row)
    header = ["Method", "Pairs", "DSC before", "DSC of the (mean) field", "Fold %", "Seconds"]
    return markdown([*header, "Shipped model on these pairs"] if ours else header, rows)


def perturbed_table(group: Group, undisturbed: Sequence[PairResult] | None) -> str:
    """Dice of the shipped model on disturbed pairs, beside the same pairs as they are."""
    if not group:
        return NOTHING
    rows = []
    for name, results in group.items():
        summary = summarize_results(results)
        before, after = summary["pairs"]["dice_before"]["mean"], summary["structures"]["dice_mean"]["mean"]
        loss = "–"
        if undisturbed:
            plain, same = common(undisturbed, results)
            if plain:
                ours, theirs = (summarize_results(part)["structures"]["dice_mean"]["mean"] for part in (plain, same))
                loss = f"{theirs - ours:+.3f}"
        ece = summary["structures"]["ece"]["mean"]
        rows.append([title(name), str(len(results)), f"{before:.3f}", f"{after:.3f}", loss, f"{ece:.4f}"])
    header = ["Moving scans", "Pairs", "DSC unregistered", "DSC registered", "against undisturbed", "ECE"]
    return markdown(header, rows)


def temperature_table(path: Path) -> str:
    """What `run calibration` changed, from its calibration.json."""
    if not path.is_file():
        return NOTHING
    report = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for when in ("before", "after"):
        row = report[when]
        numbers = (f"{row[score]:.4f}" for score in ("dice_mean", "ause_label", "ece", "label_entropy"))
        rows.append([when, f"{row['temperature']:g}", f"{row['scale']:.4g}", *numbers, f"{row['ess']:.1f}"])
    table = markdown(["", "T", "σ_α", "DSC", "AUSE_label ↓", "ECE ↓", "Label entropy", "ESS"], rows)
    drawn = f"{report['num_samples']} of {report['num_proposals']} proposals"
    return (
        f"{table}\nChosen by {report['criterion'].upper()} among temperatures whose Dice is within "
        f"{report['dice_tolerance']:g} of the best, on {report['pairs']} validation pairs, {drawn}, "
        f"{report['refine_steps']} steps of refinement.\n"
    )


def performance_table(shipped: Group, one_mm: Group) -> str:
    """The model card's summary of the shipped weights."""
    rows, scores = [], (("dice_mean", 3), ("dice_oracle", 3), ("ause_label", 4), ("ece", 4))
    for name, note in ((SHIPPED, ""), (UNREFINED, ", without refinement")):
        if name not in shipped:
            continue
        summary = summarize_results(shipped[name])
        numbers = [f"{summary['structures'][score]['mean']:.{digits}f}" for score, digits in scores]
        before, folds = (summary["pairs"][score]["mean"] for score in ("dice_before", "fold_mean"))
        rows.append([f"2 mm{note}", str(summary["num_pairs"]), f"{before:.3f}", *numbers, f"{folds:.3f}"])
    for name in ONE_MM:
        if name in one_mm:
            summary = summarize_results(one_mm[name])
            before, folds = (summary["pairs"][score]["mean"] for score in ("dice_before", "fold_mean"))
            own = summary["structures"]
            sampled = math.isfinite(own["ece"]["mean"])
            numbers = [f"{own[s]['mean']:.{d}f}" if sampled or s == "dice_mean" else "–" for s, d in scores]
            rows.append(
                [f"1 mm files, {title(name)}", str(summary["num_pairs"]), f"{before:.3f}", *numbers, f"{folds:.3f}"]
            )
    if not rows:
        return NOTHING
    header = ["Scans", "Pairs", "DSC before", "DSC", "Oracle DSC", "AUSE_label", "ECE", "Fold %"]
    return markdown(header, rows)


def all_groups(folder: Path) -> dict[str, dict[str, list[PairResult]]]:
    """Every group of results, by its name."""
    return {group: read_group(group, folder) for group in GROUPS}
