"""The report's figures as rows of text: key figures, volumes with their intervals, diagnostics, times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scripts.posterior.result import StructureVolume
from scripts.report.colors import nice_ceiling
from scripts.report.findings import Findings
from scripts.report.names import figure, number, percent, plain_name, real


class Figure(NamedTuple):
    """A key figure: what it is, its value, and a word about it."""

    label: str
    value: str
    hint: str


class VolumeRow(NamedTuple):
    """One structure of the table; positions on the chart are percent of its width, 50 is the mean."""

    name: str
    mean: str
    interval: str
    fixed: str
    dice: str
    left: float
    right: float
    truth: float | None
    outside: bool  # the fixed image's own volume is not in the interval


def key_figures(diagnostics: Mapping[str, Any], findings: Findings) -> list[Figure]:
    """The figures that a reader wants first, as far as they are there."""
    figures = []
    for name, label in (("ncc", "Similarity (local NCC)"), ("dice", "Label overlap (Dice)")):
        before, after = figure(diagnostics, f"{name}_before"), figure(diagnostics, f"{name}_after")
        if not math.isnan(after):
            start = "" if math.isnan(before) else f"{before:.2f} → "
            figures.append(Figure(label, f"{start}{after:.2f}", "before → after; 1 is perfect"))
    failed = figure(diagnostics, "failure_probability")
    if not math.isnan(failed):
        figures.append(Figure("Did it fail?", percent(failed), "probability, by what is known without labels"))
    if findings.std_median is not None:
        hint = f"half of the brain is below; {percent(0.95)} below {number(findings.std_high, 2)} mm"
        figures.append(Figure("Uncertainty", f"{number(findings.std_median, 2)} mm", hint))
    for key, what in (("fold_percent_mean", "of the mean map"), ("fold_percent", "mean over the samples")):
        folds = figure(diagnostics, key)
        if not math.isnan(folds):
            figures.append(Figure("Folded voxels", percent(folds / 100), f"{what}; 0 is ideal"))
            break
    ess, total = figure(diagnostics, "ess"), figure(diagnostics, "num_proposals")
    if not math.isnan(ess) and diagnostics.get("spread", "network") == "network":
        drawn = "" if math.isnan(total) else f"of {total:,.0f} drawn; "
        figures.append(Figure("Effective samples", number(ess, 2), f"{drawn}how many carry the result"))
    khat = real(diagnostics.get("khat"))
    if not math.isnan(khat):
        figures.append(Figure("Pareto k̂", number(khat, 2), "of the weights; above 0.7 is unreliable"))
    return figures


def volume_rows(volumes: Sequence[StructureVolume]) -> tuple[list[VolumeRow], float]:
    """Rows of the table of volumes, and the chart's half width as a share of the mean.

    The chart shows intervals relative to each structure's mean, as structures differ in size a thousandfold.
    """
    spans = [0.05]
    for volume in volumes:
        if volume.mean > 0:
            ends = np.array([volume.lower, volume.upper, real(volume.fixed)])
            spans.append(float(np.nanmax(np.abs(ends / volume.mean - 1))))
    # A few structures may run over the edge: they must not squeeze all others.
    limit = min(nice_ceiling(float(np.percentile(spans, 90))), 1.0)

    def position(value: float, mean: float) -> float:
        share = (value / mean - 1) / limit if mean > 0 else 0.0
        return 50 + 50 * min(1.0, max(-1.0, share))

    rows = []
    for volume in volumes:
        fixed = real(volume.fixed)
        rows.append(
            VolumeRow(
                name=plain_name(volume.name),
                mean=_text(volume.mean),
                interval=f"{_text(volume.lower)} – {_text(volume.upper)}",
                fixed=_text(fixed),
                dice=_text(volume.dice, ".3f"),
                left=position(volume.lower, volume.mean),
                right=position(volume.upper, volume.mean),
                truth=None if math.isnan(fixed) else position(fixed, volume.mean),
                outside=not (math.isnan(fixed) or volume.lower <= fixed <= volume.upper),
            )
        )
    return rows, limit


def _text(value: float | None, style: str = ",.0f") -> str:
    """A volume without decimals, or another number in its own style; '–' where there is none."""
    return "–" if math.isnan(real(value)) else f"{value:{style}}"


_DIAGNOSTICS = (
    ("model", "Model", ""),
    ("alignment", "Alignment before", "what was done before the network"),
    ("num_proposals", "Proposals drawn", ""),
    ("num_samples", "Samples kept", "drawn from the proposals by weight"),
    ("unique_samples", "Different samples", "among those kept"),
    ("spread", "Spread of the samples", "curvature: of the images; network: the paper's; noise: a baseline"),
    ("failure_probability", "Probability of a failure", "from signs that need no labels"),
    ("ess", "Effective sample size", "1 / Σw²"),
    ("largest_weight", "Largest weight", "of one proposal"),
    ("khat", "Pareto k̂", "below 0.7 the weights can be trusted"),
    ("temperature", "Temperature T", "sharpens the weights: softmax(T · log α / σ_α)"),
    ("scale", "Scale σ_α", "spread of log α that counts as one"),
    ("ncc_before", "NCC before", "mean squared local correlation in the brain"),
    ("ncc_after", "NCC after", "of the mean warp"),
    ("ncc_window", "NCC window", "voxels along its edge, as in the model"),
    ("dice_before", "Dice before", "mean over structures"),
    ("dice_mean_field", "Dice of the mean warp", "of the labels that it carries over"),
    ("dice_after", "Dice after", "of the most probable labels"),
    ("fold_percent_mean", "Folds of the mean map", "% of the voxels"),
    ("fold_percent", "Folds of the samples", "% of the voxels, on average"),
    ("std_mean_mm", "Mean uncertainty", "mm, standard deviation in the brain"),
    ("std_95_mm", "High uncertainty", "mm, 95\u202f% of the brain are below"),
    ("inverse_error_mm", "Inverse error", "mm, forward and back, on average"),
    ("inverse_largest_error_mm", "Largest inverse error", "mm, at the worst voxel"),
    ("refine_steps", "Refinement steps", "of this pair, before drawing"),
    ("refine_gain_log_posterior", "Gain by refinement", "in the log posterior"),
    ("detail_steps", "Detail steps", "after that, at twice the resolution"),
    ("detail_gain_log_posterior", "Gain by detail", "in the log posterior at that resolution"),
    ("work_shape", "Voxels inside", "of the grid that the network saw"),
    ("work_spacing_mm", "Spacing inside", "mm, of that grid"),
    ("modes_p_value", "p of one mode", "chance of such groups among samples of one cloud"),
    ("seed", "Seed", "the same seed gives the same result"),
    ("device", "Device", ""),
)
_ELSEWHERE = {
    "calibrated",
    "failure_reason",
    "failure_signs",
    "seconds",
    "versions",
    "ess_share",
    "moving",
    "fixed",
    "modes_distinct",
}


def diagnostic_rows(diagnostics: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Name, value and explanation of every diagnostic that is there; unknown ones come last, under their own names."""
    known = {key for key, _, _ in _DIAGNOSTICS} | _ELSEWHERE
    others = [
        (key, key, "")
        for key, value in diagnostics.items()
        if key not in known and isinstance(value, (str, int, float))
    ]
    return [
        (name, _value(key, diagnostics[key]), hint)
        for key, name, hint in (*_DIAGNOSTICS, *others)
        if diagnostics.get(key) is not None
    ]


def _value(key: str, value: Any) -> str:
    if isinstance(value, (str, bool)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return " × ".join(number(part, 3) for part in value)
    if key == "largest_weight":
        return percent(value)
    # A seed is written as it is.
    return str(value) if key == "seed" else number(value, 4)


def time_rows(diagnostics: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Name of a part of the work, its share of the whole in percent, and its seconds as text."""
    seconds = diagnostics.get("seconds", {})
    # A total among the parts would count everything twice.
    total = seconds.get("total") or sum(seconds.values()) or 1.0
    return [
        (name.replace("_", " "), min(100.0, 100 * value / total), f"{value:,.1f} s") for name, value in seconds.items()
    ]
