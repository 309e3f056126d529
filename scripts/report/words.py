"""Where not to trust a registration, in plain sentences made from its figures.

Everything here is a pure function of numbers. The limits are rules of thumb and stand at the top, where they can be
questioned; a figure that is missing is never counted as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scripts.inference.weights import KHAT_LIMIT
from scripts.posterior.result import StructureVolume
from scripts.report.findings import CERTAIN, Findings
from scripts.report.names import enumerate_words, finite, number, percent, plain_name

NCC_GAIN = 0.01  # a smaller gain is hardly an improvement
NCC_ALIKE = 0.9  # images that were this similar before need no improvement
DICE_GAIN, DICE_LOW = 0.01, 0.5  # a smaller gain is hardly one; a lower overlap after all is poor
FOLDS_SOME, FOLDS_MANY = 0.1, 1.0  # percent of the voxels
INVERSE_LIMIT = 0.1  # mm
ESS_ALONE, ESS_FEW = 2.0, 10.0  # effective samples: one dominates, few count
ESS_FLAT = 0.9  # share of the proposals that are effective: all count nearly alike
WEIGHT_ALONE = 0.5  # of the largest weight
STD_WIDE = 2.0  # mm, of half of the brain
INTERVAL_WIDE = 0.2  # width of a 95 % interval in volumes
MODE_LARGE = 0.15  # share of the samples that makes a second mode worth a word

Level = Literal["good", "unknown", "note", "caution", "poor"]
ORDER: tuple[Level, ...] = ("good", "unknown", "note", "caution", "poor")
LEVEL_WORDS: dict[Level, str] = {
    "good": "good",
    "unknown": "not measured",
    "note": "note",
    "caution": "take care",
    "poor": "do not rely on it",
}


def tail_shape(diagnostics: Mapping[str, Any]) -> float | None:
    """Pareto k̂; unlike other figures it may be infinite, which is the worst it can be."""
    value = diagnostics.get("khat")
    try:
        khat = float(value) if value is not None else math.nan
    except (TypeError, ValueError):
        return None
    return None if math.isnan(khat) else khat


@dataclass(frozen=True)
class Caution:
    """One reason not to trust a part of the result, and what to do about it."""

    level: Level
    title: str
    text: str


def cautions(
    diagnostics: Mapping[str, Any],
    findings: Findings,
    warnings: Sequence[str] = (),
    volumes: Sequence[StructureVolume] = (),
    mode_weights: Sequence[float] = (),
) -> list[Caution]:
    """Where not to trust the result: the gravest first, each with what it means."""
    found = [
        *[Caution("caution", "A remark about the input", _sentence(warning)) for warning in warnings],
        *_similarity(diagnostics),
        *_folds(diagnostics, findings),
        *_weights(diagnostics, findings),
        *_tail(diagnostics),
        *_places(findings),
        *_label_words(findings),
        *_volume_words(volumes),
        *_mode_words(diagnostics, findings, mode_weights),
    ]
    return sorted(found, key=lambda caution: -ORDER.index(caution.level))


def _similarity(diagnostics: Mapping[str, Any]) -> list[Caution]:
    found = []
    before, after = finite(diagnostics.get("ncc_before")), finite(diagnostics.get("ncc_after"))
    if before is not None and after is not None and after - before < NCC_GAIN and min(before, after) < NCC_ALIKE:
        level: Level = "poor" if after <= before else "caution"
        change = f"The local correlation (NCC) went from {number(before)} to {number(after)}."
        advice = "Look at the differences above, and check that both scans show the same kind of image and overlap."
        found.append(Caution(level, "The images hardly match better", f"{change} {advice}"))
    before, after = finite(diagnostics.get("dice_before")), finite(diagnostics.get("dice_after"))
    if before is not None and after is not None:
        if after < before:
            text = f"The mean Dice overlap fell from {number(before)} to {number(after)}."
            found.append(Caution("poor", "The labels overlap less than before", text))
        elif after < DICE_LOW or (after - before < DICE_GAIN and after < NCC_ALIKE):
            text = f"The mean Dice overlap went from {number(before)} to {number(after)}, whatever the images say."
            text += " Check that both label maps use the same numbers for the same structures."
            found.append(Caution("caution", "The labels do not fit well", text))
    error = finite(diagnostics.get("inverse_error_mm"))
    if error is not None and error > INVERSE_LIMIT:
        text = f"Going there and back misses by {number(error, 2)} mm on average: the inverse is only approximate."
        found.append(Caution("caution", "The inverse is inexact", text))
    return found


def _folds(diagnostics: Mapping[str, Any], findings: Findings) -> list[Caution]:
    mean, samples = finite(diagnostics.get("fold_percent_mean")), finite(diagnostics.get("fold_percent"))
    place = f" Folds are most probable in the {findings.fold_place.name}." if findings.fold_place else ""
    if mean is not None and mean > FOLDS_SOME:
        level: Level = "poor" if mean > FOLDS_MANY else "caution"
        text = f"In {percent(mean / 100)} of the voxels the mean map turns space inside out: it is wrong there.{place}"
        return [Caution(level, "The map folds", text)]
    if samples is not None and samples > FOLDS_SOME:
        # Folds may cancel in the mean. Where the mean was not measured, nothing good is said of it.
        mean_map = "The mean map is smooth, but single" if mean is not None else "Single"
        text = f"{mean_map} samples fold in {percent(samples / 100)} of the voxels.{place}"
        return [Caution("note" if mean is not None else "caution", "Some samples fold", text)]
    if findings.likely_folds:
        text = f"{findings.likely_folds:,} voxels fold in more than half of the samples.{place}"
        return [Caution("note", "Some samples fold", text)]
    return []


def _weights(diagnostics: Mapping[str, Any], findings: Findings) -> list[Caution]:
    if findings.std_median is None:
        text = "All samples are the same: uncertainty, probabilities and intervals carry no information."
        return [Caution("poor", "No spread at all", text)]
    ess, weight = finite(diagnostics.get("ess")), finite(diagnostics.get("largest_weight"))
    total = finite(diagnostics.get("num_proposals"))
    of_total = "" if total is None else f" of {total:,.0f}"
    share = "" if weight is None else f" The largest weight is {percent(weight)}."
    advice = "Draw more proposals, or run again with another seed and compare."
    if (ess is not None and ess < ESS_ALONE) or (weight is not None and weight > WEIGHT_ALONE):
        size = "" if ess is None else f" The effective sample size is {number(ess, 2)}{of_total}."
        text = "Nearly everything rests on a single sample, so the true uncertainty is larger than shown."
        text = f"{text}{size}{share} {advice}"
        return [Caution("poor", "One sample dominates", text)]
    if flat_weights(diagnostics):
        text = f"The effective sample size is {number(ess or 0.0, 2)}{of_total}: this pair's images hardly prefer any"
        text += " sample to another. How far samples spread is what the model has learned from other brains, and"
        text += " neither that size nor k̂ would warn of a spread that is wrong for this pair."
        return [Caution("note", "The weights are nearly equal", text)]
    if ess is not None and ess < ESS_FEW:
        text = f"The weighted result is worth about {number(ess, 2)} independent samples{of_total}.{share} {advice}"
        return [Caution("caution", "Few samples count", text)]
    return []


def flat_weights(diagnostics: Mapping[str, Any]) -> bool:
    """Whether all proposals count nearly alike, so that figures about the weights say nothing."""
    ess, total = finite(diagnostics.get("ess")), finite(diagnostics.get("num_proposals"))
    return ess is not None and total is not None and ess > ESS_FLAT * total > ESS_FEW


def _tail(diagnostics: Mapping[str, Any]) -> list[Caution]:
    khat, temperature = tail_shape(diagnostics), finite(diagnostics.get("temperature"))
    if khat is None or khat <= KHAT_LIMIT:
        return []
    if math.isinf(khat):
        meaning = "Too few different weights to judge their tail (Pareto k̂)."
    elif khat > 1:
        meaning = f"Pareto k̂ is {number(khat, 2)}. Above 1, weighted averages need not settle, however many are drawn."
    else:
        meaning = (
            f"Pareto k̂ is {number(khat, 2)}. Above {KHAT_LIMIT}, weighted averages settle too slowly to be trusted."
        )
    sharp = (
        ""
        if temperature is None or temperature <= 1
        else (f" The weights are sharpened on purpose (temperature {number(temperature, 2)}), which raises k̂.")
    )
    advice = " Another seed may give another uncertainty: take maps, probabilities and intervals as rough."
    return [Caution("caution", "The weights have a heavy tail", meaning + sharp + advice)]


def _places(findings: Findings) -> list[Caution]:
    if findings.std_median is None or findings.std_high is None:
        return []
    text = ""
    if findings.regions:
        names = [f"the {region.name} ({number(region.std, 2)} mm)" for region in findings.regions]
        text = f"On average the uncertainty is largest in {enumerate_words(names)}. "
    if findings.most_uncertain:
        place = findings.most_uncertain
        x, y, z = (f"{round(value):d}".replace("-", "−") for value in place.world)
        where = f"in the {place.name}, at ({x}, {y}, {z}) mm RAS"
        text += f"Its peak, the brain's ends aside, is {where}: {number(place.value, 2)} mm. "
    half, most = number(findings.std_median, 2), number(findings.std_high, 2)
    text += f"Half of the brain is below {half} mm, {percent(0.95)} below {most} mm."
    wide = findings.std_median > STD_WIDE
    return [
        Caution(
            "caution" if wide else "note", "Uncertain nearly everywhere" if wide else "The least certain places", text
        )
    ]


def _label_words(findings: Findings) -> list[Caution]:
    share = findings.uncertain_labels
    if not share:
        return []
    text = (
        f"{percent(share)} of the labeled voxels have a label less probable than {percent(CERTAIN)}: the bands above."
    )
    return [Caution("note", "Uncertain label boundaries", text)]


def _volume_words(volumes: Sequence[StructureVolume]) -> list[Caution]:
    found = []
    wide = [
        volume for volume in volumes if volume.mean > 0 and volume.upper - volume.lower > INTERVAL_WIDE * volume.mean
    ]
    if wide:
        wide.sort(key=lambda volume: -(volume.upper - volume.lower) / volume.mean)
        names = [plain_name(volume.name) for volume in wide[:4]]
        names += [f"{len(wide) - 4} more"] if len(wide) > 4 else []
        limit = percent(INTERVAL_WIDE)
        text = f"The {percent(0.95)} interval spans more than {limit} of the volume for {enumerate_words(names)}."
        found.append(Caution("note", "Wide volume intervals", text))
    missed, known = missed_volumes(volumes)
    if too_many_missed(missed, known):
        text = f"For {missed} of {known} structures the volume in the fixed image's own labels lies outside of"
        text += f" the {percent(0.95)} interval: the intervals are too narrow for this pair."
        level: Level = "poor" if mostly_missed(missed, known) else "caution"
        found.append(Caution(level, "Volumes outside of their intervals", text))
    return found


def missed_volumes(volumes: Sequence[StructureVolume]) -> tuple[int, int]:
    """How many structures of the fixed image's own labels have a volume outside of its interval, and of how many."""
    known = [(volume, fixed) for volume in volumes if (fixed := finite(volume.fixed)) is not None and fixed > 0]
    return sum(not volume.lower <= fixed <= volume.upper for volume, fixed in known), len(known)


def too_many_missed(missed: int, known: int) -> bool:
    """Whether intervals are too narrow; even perfect ones miss one in twenty."""
    return missed > max(1.0, 0.1 * known)


def mostly_missed(missed: int, known: int) -> bool:
    """Whether intervals are of no use: they miss more than they hit."""
    return 2 * missed > known


def _mode_words(diagnostics: Mapping[str, Any], findings: Findings, weights: Sequence[float]) -> list[Caution]:
    if not diagnostics.get("modes_distinct", True):
        return []  # one cloud of samples, cut in two
    large = [weight for weight in weights if weight >= MODE_LARGE]
    if len(large) < 2 or findings.mode_place is None:
        return []
    shares = enumerate_words([percent(weight) for weight in large])
    place = findings.mode_place
    text = f"The samples form {len(large)} larger groups ({shares}), which differ most in the {place.name}."
    text += " The mean lies between them and may fit none."
    return [Caution("note", "More than one answer", text)]


def _sentence(text: str) -> str:
    """Text with a full stop at its end."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
