"""The result of a registration in one line, with a traffic light for its alignment, its uncertainty and its input."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scripts.inference.weights import KHAT_LIMIT
from scripts.posterior.result import StructureVolume
from scripts.report import words
from scripts.report.findings import Findings
from scripts.report.names import figure, percent, real
from scripts.report.words import Level, Remark


class Verdict(NamedTuple):
    """The result in one line, and the lamps of the traffic light behind it."""

    level: Level
    sentence: str
    lights: tuple[Remark, ...]


def verdict(
    diagnostics: Mapping[str, Any],
    findings: Findings,
    warnings: Sequence[str],
    volumes: Sequence[StructureVolume] = (),
) -> Verdict:
    """The whole result in one line; its level is that of the worst lamp."""
    alignment = Remark("Alignment", *_alignment(diagnostics))
    uncertainty = Remark("Uncertainty", *_uncertainty(diagnostics, findings, volumes))
    lights = (alignment, uncertainty, Remark("Input", *_input(warnings)))
    level = max((light.level for light in lights), key=words.ORDER.index)
    failed = figure(diagnostics, "failure_probability")
    if words.level_of_failure(failed) == "poor":
        lead = f"It has probably failed ({percent(failed)}: {diagnostics.get('failure_reason')})"
    elif alignment.level == "poor":
        lead = "Do not use this registration as it is"
    elif uncertainty.level == "poor":
        lead = "Use the warp with care, and not its uncertainty"
    else:
        lead = {"good": "Looks good", "unknown": "Not fully measured", "caution": "Usable with care"}[level]
    return Verdict(level, f"{lead}: {alignment.text}; {uncertainty.text}.", lights)


def _alignment(diagnostics: Mapping[str, Any]) -> tuple[Level, str]:
    """Whether the images match better than before, without folds, and nothing says that it failed."""
    failed = figure(diagnostics, "failure_probability")
    if (level := words.level_of_failure(failed)) in ("poor", "caution"):
        return level, f"it may have failed ({percent(failed)}): {diagnostics.get('failure_reason')}"
    before, after = figure(diagnostics, "ncc_before"), figure(diagnostics, "ncc_after")
    dice_before, dice_after = figure(diagnostics, "dice_before"), figure(diagnostics, "dice_after")
    # Of the mean map; where that was not measured, of the samples, which fold rather more.
    folds = figure(diagnostics, "fold_percent_mean" if "fold_percent_mean" in diagnostics else "fold_percent")
    if dice_after < dice_before:
        return "poor", "the labels overlap less than before"
    if math.isnan(after - before):
        return "unknown", "the similarity of the images was not recorded"
    alike = min(before, after) >= words.NCC_ALIKE
    if after <= before and not alike:
        return "poor", "the images match no better than before"
    if folds > words.FOLDS_MANY:
        return "poor", f"the map folds in {percent(folds / 100)} of the voxels"
    if folds > words.FOLDS_SOME:
        return "caution", f"the images match better, but the map folds in {percent(folds / 100)} of the voxels"
    if dice_before <= dice_after < words.DICE_LOW:
        return "caution", f"the images match better, but the labels overlap by {dice_after:.2f} only"
    if dice_after - dice_before < words.DICE_GAIN and dice_after < words.NCC_ALIKE:
        return "caution", "the images match better, but the labels overlap hardly more than before"
    if alike:
        return "good", "the images were alike before and still are"
    if after - before < words.NCC_GAIN:
        return "caution", "the images match hardly better than before"
    smooth = "" if math.isnan(folds) else f" and the map {'hardly folds' if folds else 'does not fold'}"
    return "good", f"the images match better than before{smooth}"


def _uncertainty(
    diagnostics: Mapping[str, Any], findings: Findings, volumes: Sequence[StructureVolume]
) -> tuple[Level, str]:
    """Whether the spread of the samples can be taken at face value."""
    ess, khat = figure(diagnostics, "ess"), real(diagnostics.get("khat"))
    if findings.std_median is None:
        return "poor", "the samples do not differ, so they say nothing about the uncertainty"
    if ess < words.ESS_ALONE or figure(diagnostics, "largest_weight") > words.WEIGHT_ALONE:
        return "poor", "one sample dominates, so the uncertainty is understated"
    if not words.weighs(diagnostics) and not volumes_known(volumes):
        if diagnostics.get("calibrated"):
            return "good", "intervals were calibrated on other people"
        return "unknown", "whether the uncertainty holds was not checked"
    missed, known = words.missed_volumes(volumes)
    if level := words.level_of_missed(missed, known):
        outside = f"{missed} of {known} volumes are outside of their intervals"
        return level, f"the fixed labels contradict the uncertainty: {outside}"
    if not words.weighs(diagnostics):
        return "good", f"{known - missed} of {known} volumes lie in their intervals"
    if khat > KHAT_LIMIT or ess < words.ESS_FEW:
        return "caution", "the uncertainty is rough, as few samples carry most of the weight"
    if math.isnan(ess) or math.isnan(khat):
        return "unknown", "how many samples carry the uncertainty was not recorded"
    if words.flat_weights(diagnostics):
        return "good", "the uncertainty is what the model has learned from other brains"
    return "good", "the uncertainty rests on enough samples"


def volumes_known(volumes: Sequence[StructureVolume]) -> bool:
    """Whether the fixed image's own labels can say anything about the intervals."""
    return words.missed_volumes(volumes)[1] > 0


def _input(warnings: Sequence[str]) -> tuple[Level, str]:
    """Whether anything was remarkable about the images."""
    if not warnings:
        return "good", "nothing unusual was noticed"
    return "caution", f"{len(warnings)} remark{'s' if len(warnings) > 1 else ''}, see below"
