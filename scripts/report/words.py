"""Where not to trust a registration, in plain sentences made from its figures.

Everything here is a pure function of numbers. The limits are rules of thumb and stand at the top, where they can be
questioned; a figure that is missing is NaN and never counted as good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from scripts.inference.weights import KHAT_LIMIT
from scripts.posterior.failure import FAILED
from scripts.posterior.result import StructureVolume
from scripts.report.findings import CERTAIN, Findings
from scripts.report.names import enumerate_words, figure, number, percent, plain_name, real

FAILED_PERHAPS = 0.2  # probability of a failure that is worth a word
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


class Remark(NamedTuple):
    """A judgement of a part of the result: what it is about, how grave it is, and why."""

    title: str
    level: Level
    text: str


def cautions(
    diagnostics: Mapping[str, Any],
    findings: Findings,
    warnings: Sequence[str] = (),
    volumes: Sequence[StructureVolume] = (),
    mode_weights: Sequence[float] = (),
) -> list[Remark]:
    """Where not to trust the result: the gravest first, each with what it means and what to do about it."""
    found = [
        *[Remark("A remark about the input", "caution", _sentence(warning)) for warning in warnings],
        *_failure(diagnostics),
        *_fit(diagnostics),
        *_folds(diagnostics, findings),
        *_weights(diagnostics, findings),
        *_tail(diagnostics),
        *_places(findings),
        *_label_words(findings),
        *_volume_words(volumes),
        *_mode_words(diagnostics, findings, mode_weights),
    ]
    return sorted(found, key=lambda remark: -ORDER.index(remark.level))


def _failure(diagnostics: Mapping[str, Any]) -> list[Remark]:
    """Whether it has failed, by what is known without labels."""
    failed = figure(diagnostics, "failure_probability")
    level = level_of_failure(failed)
    if level in ("good", "unknown"):
        return []
    text = f"By what similar registrations looked like, this one has failed with a probability of {percent(failed)}:"
    text += f" {diagnostics.get('failure_reason', '')}. Look at the pictures before using any of it."
    return [Remark("It may have failed", level, text)]


def level_of_failure(failed: float) -> Level:
    """How grave a probability of failure is."""
    if math.isnan(failed):
        return "unknown"
    return "poor" if failed > FAILED else "caution" if failed > FAILED_PERHAPS else "good"


def _fit(diagnostics: Mapping[str, Any]) -> list[Remark]:
    found = []
    before, after = figure(diagnostics, "ncc_before"), figure(diagnostics, "ncc_after")
    if after - before < NCC_GAIN and min(before, after) < NCC_ALIKE:
        text = f"The local correlation (NCC) went from {number(before)} to {number(after)}."
        text += " Look at the differences above, and check that both scans show the same kind of image and overlap."
        found.append(Remark("The images hardly match better", "poor" if after <= before else "caution", text))
    before, after = figure(diagnostics, "dice_before"), figure(diagnostics, "dice_after")
    if after < before:
        text = f"The mean Dice overlap fell from {number(before)} to {number(after)}."
        found.append(Remark("The labels overlap less than before", "poor", text))
    elif before <= after < DICE_LOW or (after - before < DICE_GAIN and after < NCC_ALIKE):
        text = f"The mean Dice overlap went from {number(before)} to {number(after)}, whatever the images say."
        text += " Check that both label maps use the same numbers for the same structures."
        found.append(Remark("The labels do not fit well", "caution", text))
    error = figure(diagnostics, "inverse_error_mm")
    if error > INVERSE_LIMIT:
        text = f"Going there and back misses by {number(error, 2)} mm on average: the inverse is only approximate."
        found.append(Remark("The inverse is inexact", "caution", text))
    return found


def _folds(diagnostics: Mapping[str, Any], findings: Findings) -> list[Remark]:
    mean, samples = figure(diagnostics, "fold_percent_mean"), figure(diagnostics, "fold_percent")
    place = f" Folds are most probable in the {findings.fold_place.name}." if findings.fold_place else ""
    if mean > FOLDS_SOME:
        text = f"In {percent(mean / 100)} of the voxels the mean map turns space inside out: it is wrong there.{place}"
        return [Remark("The map folds", "poor" if mean > FOLDS_MANY else "caution", text)]
    if samples > FOLDS_SOME:
        share = f"samples fold in {percent(samples / 100)} of the voxels.{place}"
        # Folds may cancel in the mean. Where the mean was not measured, nothing good is said of it.
        if math.isnan(mean):
            return [Remark("Some samples fold", "caution", f"Single {share}")]
        return [Remark("Some samples fold", "note", f"The mean map is smooth, but single {share}")]
    if findings.likely_folds:
        text = f"{findings.likely_folds:,} voxels fold in more than half of the samples.{place}"
        return [Remark("Some samples fold", "note", text)]
    return []


def _weights(diagnostics: Mapping[str, Any], findings: Findings) -> list[Remark]:
    if findings.std_median is None:
        text = "All samples are the same: uncertainty, probabilities and intervals carry no information."
        return [Remark("No spread at all", "poor", text)]
    if not weighs(diagnostics):
        return []
    ess, weight = figure(diagnostics, "ess"), figure(diagnostics, "largest_weight")
    total = figure(diagnostics, "num_proposals")
    of_total = "" if math.isnan(total) else f" of {total:,.0f}"
    share = "" if math.isnan(weight) else f" The largest weight is {percent(weight)}."
    advice = "Draw more proposals, or run again with another seed and compare."
    if ess < ESS_ALONE or weight > WEIGHT_ALONE:
        text = "Nearly everything rests on a single sample, so the true uncertainty is larger than shown."
        text += "" if math.isnan(ess) else f" The effective sample size is {number(ess, 2)}{of_total}."
        return [Remark("One sample dominates", "poor", f"{text}{share} {advice}")]
    if flat_weights(diagnostics):
        text = f"The effective sample size is {number(ess, 2)}{of_total}: this pair's images hardly prefer any"
        text += " sample to another. How far samples spread is what the model has learned from other brains, and"
        text += " neither that size nor k̂ would warn of a spread that is wrong for this pair."
        return [Remark("The weights are nearly equal", "note", text)]
    if ess < ESS_FEW:
        text = f"The weighted result is worth about {number(ess, 2)} independent samples{of_total}.{share} {advice}"
        return [Remark("Few samples count", "caution", text)]
    return []


def weighs(diagnostics: Mapping[str, Any]) -> bool:
    """Whether fields have weights of their own, so that figures about these mean something."""
    return diagnostics.get("spread", "network") == "network"


def flat_weights(diagnostics: Mapping[str, Any]) -> bool:
    """Whether all proposals count nearly alike, so that figures about the weights say nothing."""
    return figure(diagnostics, "ess") > ESS_FLAT * figure(diagnostics, "num_proposals") > ESS_FEW


def _tail(diagnostics: Mapping[str, Any]) -> list[Remark]:
    khat, temperature = real(diagnostics.get("khat")), figure(diagnostics, "temperature")
    if not khat > KHAT_LIMIT:
        return []
    if math.isinf(khat):
        text = "Too few different weights to judge their tail (Pareto k̂)."
    elif khat > 1:
        text = f"Pareto k̂ is {number(khat, 2)}. Above 1, weighted averages need not settle, however many are drawn."
    else:
        text = f"Pareto k̂ is {number(khat, 2)}. Above {KHAT_LIMIT}, weighted averages settle too slowly to be trusted."
    if temperature > 1:
        text += f" The weights are sharpened on purpose (temperature {number(temperature, 2)}), which raises k̂."
    text += " Another seed may give another uncertainty: take maps, probabilities and intervals as rough."
    return [Remark("The weights have a heavy tail", "caution", text)]


def _places(findings: Findings) -> list[Remark]:
    if findings.std_median is None:
        return []
    text = ""
    if findings.regions:
        names = [f"the {region.name} ({number(region.std, 2)} mm)" for region in findings.regions]
        text = f"On average the uncertainty is largest in {enumerate_words(names)}. "
    if place := findings.most_uncertain:
        text += f"Its peak, the brain's ends aside, is in the {place.name}, at {place.coordinates}:"
        text += f" {number(place.value, 2)} mm. "
    half, most = number(findings.std_median, 2), number(findings.std_high, 2)
    text += f"Half of the brain is below {half} mm, {percent(0.95)} below {most} mm."
    if findings.std_median > STD_WIDE:
        return [Remark("Uncertain nearly everywhere", "caution", text)]
    return [Remark("The least certain places", "note", text)]


def _label_words(findings: Findings) -> list[Remark]:
    if not findings.uncertain_labels:
        return []
    share = percent(findings.uncertain_labels)
    text = f"{share} of the labeled voxels have a label less probable than {percent(CERTAIN)}: the bands above."
    return [Remark("Uncertain label boundaries", "note", text)]


def _volume_words(volumes: Sequence[StructureVolume]) -> list[Remark]:
    found = []
    widths = [(volume, (volume.upper - volume.lower) / volume.mean) for volume in volumes if volume.mean > 0]
    wide = sorted((pair for pair in widths if pair[1] > INTERVAL_WIDE), key=lambda pair: -pair[1])
    if wide:
        names = [plain_name(volume.name) for volume, _ in wide[:4]]
        names += [f"{len(wide) - 4} more"] if len(wide) > 4 else []
        limit = percent(INTERVAL_WIDE)
        text = f"The {percent(0.95)} interval spans more than {limit} of the volume for {enumerate_words(names)}."
        found.append(Remark("Wide volume intervals", "note", text))
    missed, known = missed_volumes(volumes)
    if level := level_of_missed(missed, known):
        text = f"For {missed} of {known} structures the volume in the fixed image's own labels lies outside of"
        text += f" the {percent(0.95)} interval: the intervals are too narrow for this pair."
        found.append(Remark("Volumes outside of their intervals", level, text))
    return found


def missed_volumes(volumes: Sequence[StructureVolume]) -> tuple[int, int]:
    """How many structures of the fixed image's own labels have a volume outside of its interval, and of how many."""
    known = [(volume, fixed) for volume in volumes if (fixed := real(volume.fixed)) > 0]
    return sum(not volume.lower <= fixed <= volume.upper for volume, fixed in known), len(known)


def level_of_missed(missed: int, known: int) -> Level | None:
    """How bad it is that intervals miss so many volumes; None if it is not: even perfect ones miss one in twenty."""
    if missed <= max(1.0, 0.1 * known):
        return None
    return "poor" if 2 * missed > known else "caution"


def _mode_words(diagnostics: Mapping[str, Any], findings: Findings, weights: Sequence[float]) -> list[Remark]:
    if not diagnostics.get("modes_distinct", True):
        return []  # one cloud of samples, cut in two
    large = [weight for weight in weights if weight >= MODE_LARGE]
    if len(large) < 2 or findings.mode_place is None:
        return []
    shares = enumerate_words([percent(weight) for weight in large])
    place = findings.mode_place.name
    text = f"The samples form {len(large)} larger groups ({shares}), which differ most in the {place}."
    return [Remark("More than one answer", "note", f"{text} The mean lies between them and may fit none.")]


def _sentence(text: str) -> str:
    """Text with a full stop at its end."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
