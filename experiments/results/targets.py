"""What should have come out, and whether it did: each target with its measured numbers, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from experiments.results.result_tables import NOTHING, OURS, markdown, seconds
from experiments.results.store import ONE_MM, common, title
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.summary_table import summarize_results

Group = Mapping[str, Sequence[PairResult]]
REFERENCE, SVF, TOOLS = "v_lc", "s_lc_svf", ("convexadam", "syn")


class Target(NamedTuple):
    """One line: what was asked for, what was measured, and the verdict."""

    wanted: str
    measured: str
    reached: bool

    def row(self) -> list[str]:
        """Cells of the table."""
        return [self.wanted, self.measured, "yes" if self.reached else "**no**"]


class Scores(NamedTuple):
    """The numbers that targets speak of."""

    dice: float
    oracle: float
    ause: float
    ece: float
    spearman: float
    folds: float
    pairs: int

    @classmethod
    def of(cls, results: Sequence[PairResult]) -> Scores:
        """Means over structures and pairs, as in the tables."""
        summary = summarize_results(results)
        structures = summary["structures"]
        dice, oracle, ause, ece = (
            structures[name]["mean"] for name in ("dice_mean", "dice_oracle", "ause_label", "ece")
        )
        spearman, folds = summary["spearman"]["label_entropy"]["mean"], summary["pairs"]["fold_mean"]["mean"]
        return cls(dice, oracle, ause, ece, spearman, folds, summary["num_pairs"])


COLUMNS = ("Network alone", "Trained longer", "Refined")
ALONE = ("fast", "fine")
"""Of the 1 mm rows, those without refinement."""


def targets_table(variants: Group, longer: Group, refined: Group, baselines: Group, one_mm: Group, timed: Group) -> str:
    """All targets for which there are results: of the networks alone, after longer training, and with refinement."""
    columns = [
        {
            line.wanted: line
            for line in (*against_variational(group), *against_tools(group, baselines), *velocity(group))
        }
        for group in (variants, longer, refined)
    ]
    for column, names in ((columns[0], ALONE), (columns[-1], [name for name in ONE_MM if name not in ALONE])):
        column |= {line.wanted: line for line in at_one_mm(one_mm, timed, names)}
    wanted = list(dict.fromkeys(name for column in columns for name in column))
    if not wanted:
        return NOTHING
    rows = [[name, *(cell for column in columns for cell in _cells(column.get(name)))] for name in wanted]
    verdicts = []
    for column, name in zip(columns, COLUMNS, strict=True):
        reached = sum(line.reached for line in column.values())
        verdicts.append(f"{name.lower()} {reached} of {len(column)}")
    header = ["Target", *(cell for name in COLUMNS for cell in (name, "Reached"))]
    return f"{markdown(header, rows)}\nReached: {', '.join(verdicts)}.\n"


def _cells(line: Target | None) -> list[str]:
    return line.row()[1:] if line else ["–", "–"]


def against_variational(variants: Group) -> list[Target]:
    """S+LC 10L against V+LC, on the pairs that both have."""
    if OURS not in variants or REFERENCE not in variants:
        return []
    ours, theirs = (Scores.of(part) for part in common(variants[OURS], variants[REFERENCE]))
    names = f"{title(OURS)} against {title(REFERENCE)}"
    gain, gap = ours.dice - theirs.dice, ours.oracle - ours.dice
    return [
        _ratio(f"{names}: AUSE_label at most 0.8 times", ours.ause, theirs.ause, 0.8),
        _ratio(f"{names}: ECE at most 0.85 times", ours.ece, theirs.ece, 0.85),
        Target(
            f"{names}: Spearman lower by 0.2 or more",
            f"{ours.spearman:.3f} against {theirs.spearman:.3f}: {_lower(theirs.spearman - ours.spearman)}",
            theirs.spearman - ours.spearman >= 0.2,
        ),
        Target(
            f"{names}: Dice of the mean field not lower",
            f"{ours.dice:.4f} against {theirs.dice:.4f}: {gain:+.4f}",
            gain >= 0,
        ),
        Target(
            f"{title(OURS)}: Oracle at least 0.008 above the mean field",
            f"{ours.oracle:.4f} and {ours.dice:.4f}: {gap:+.4f}",
            gap >= 0.008,
        ),
    ]


def against_tools(variants: Group, baselines: Group) -> list[Target]:
    """The mean field's Dice and the time against ConvexAdam and SyN, on the same pairs."""
    lines = []
    if OURS not in variants:
        return []
    for tool, wanted, bar in (
        ("convexadam", "above ConvexAdam's", 0.0),
        ("syn", "within 0.01 of SyN's or better", -0.01),
    ):
        if tool not in baselines:
            continue
        own, other = common(variants[OURS], baselines[tool])
        if not own:
            continue
        ours, theirs = Scores.of(own), Scores.of(other)
        difference = ours.dice - theirs.dice
        measured = f"{ours.dice:.4f} against {theirs.dice:.4f} on {len(own)} pairs: {difference:+.4f}"
        reached = difference > bar if tool == "convexadam" else difference >= bar
        lines.append(Target(f"{title(OURS)}: Dice of the mean field {wanted}, 2 mm", measured, reached))
        lines.append(_time(f"{title(OURS)}: far below the time of {title(tool)} (a third), 2 mm", own, other))
    return lines


def velocity(variants: Group) -> list[Target]:
    """The SVF variant against the displacement variant."""
    if SVF not in variants:
        return []
    lines = [
        Target("SVF: folds at most 0.01 %", f"{(folds := Scores.of(variants[SVF]).folds):.4f} %", folds <= 0.01),
    ]
    if OURS in variants:
        ours, theirs = (Scores.of(part) for part in common(variants[SVF], variants[OURS]))
        difference = ours.dice - theirs.dice
        measured = f"{ours.dice:.4f} against {theirs.dice:.4f}: {difference:+.4f}"
        wanted = f"SVF: Dice within 0.005 of {title(OURS)}"
        lines.append(Target(wanted, measured, abs(difference) <= 0.005 or difference > 0))
    return lines


def at_one_mm(one_mm: Group, timed: Group, names: Sequence[str] = ONE_MM) -> list[Target]:
    """The bundle on 1 mm files against ConvexAdam: Dice, and a fraction of its time where both were timed.

    Args:
        one_mm: results of 1 mm files.
        timed: those that were timed in one go.
        names: rows of this bundle's own.
    """
    if "convexadam" not in one_mm:
        return []
    lines = []
    for name in names:
        if name not in one_mm:
            continue
        own, other = common(one_mm[name], one_mm["convexadam"])
        if own:
            difference = Scores.of(own).dice - Scores.of(other).dice
            measured = f"{Scores.of(own).dice:.4f} against {Scores.of(other).dice:.4f} on {len(own)} pairs"
            wanted = f"1 mm files, {title(name)}: Dice above ConvexAdam's"
            lines.append(Target(wanted, f"{measured}: {difference:+.4f}", difference > 0))
        if name in timed and "convexadam" in timed:
            wanted = f"1 mm files, {title(name)}: a fraction of ConvexAdam's time for the registration itself (a third)"
            lines.append(_time(wanted, timed[name], timed["convexadam"]))
    return lines


def _ratio(wanted: str, ours: float, theirs: float, bar: float) -> Target:
    return Target(wanted, f"{ours:.4f} against {theirs:.4f}: {ours / theirs:.3f} times", ours <= bar * theirs)


def _time(wanted: str, own: Sequence[PairResult], other: Sequence[PairResult]) -> Target:
    ours, theirs = seconds(own), seconds(other)
    return Target(wanted, f"{ours:.1f} s against {theirs:.1f} s", ours <= theirs / 3)


def _lower(by: float) -> str:
    return f"lower by {by:.3f}" if by >= 0 else f"higher by {-by:.3f}"
