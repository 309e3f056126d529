"""The result of a registration in one line, with a traffic light for its alignment, its uncertainty and its input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.inference.weights import KHAT_LIMIT
from scripts.posterior.result import StructureVolume
from scripts.report.findings import Findings
from scripts.report.names import finite, percent
from scripts.report.words import (
    DICE_GAIN,
    DICE_LOW,
    ESS_ALONE,
    ESS_FEW,
    FOLDS_MANY,
    FOLDS_SOME,
    NCC_ALIKE,
    NCC_GAIN,
    ORDER,
    WEIGHT_ALONE,
    Level,
    flat_weights,
    missed_volumes,
    mostly_missed,
    tail_shape,
    too_many_missed,
)


@dataclass(frozen=True)
class Light:
    """One lamp of the traffic light: what it is about, its level, and why."""

    subject: str
    level: Level
    text: str


@dataclass(frozen=True)
class Verdict:
    """The result in one line, and the lamps behind it."""

    level: Level
    sentence: str
    lights: tuple[Light, ...]


def alignment_light(diagnostics: Mapping[str, Any]) -> Light:
    """Whether the images match better than before, without folds."""
    before, after = finite(diagnostics.get("ncc_before")), finite(diagnostics.get("ncc_after"))
    dice_before, dice_after = finite(diagnostics.get("dice_before")), finite(diagnostics.get("dice_after"))
    # Of the mean map; where that was not measured, of the samples, which fold rather more.
    folds = finite(diagnostics.get("fold_percent_mean", diagnostics.get("fold_percent")))
    subject = "Alignment"
    if dice_before is not None and dice_after is not None and dice_after < dice_before:
        return Light(subject, "poor", "the labels overlap less than before")
    if before is None or after is None:
        return Light(subject, "unknown", "the similarity of the images was not recorded")
    alike = before >= NCC_ALIKE and after >= NCC_ALIKE
    if after <= before and not alike:
        return Light(subject, "poor", "the images match no better than before")
    if folds is not None and folds > FOLDS_MANY:
        return Light(subject, "poor", f"the map folds in {percent(folds / 100)} of the voxels")
    if folds is not None and folds > FOLDS_SOME:
        return Light(
            subject, "caution", f"the images match better, but the map folds in {percent(folds / 100)} of the voxels"
        )
    if dice_before is not None and dice_after is not None:
        if dice_after < DICE_LOW:
            return Light(
                subject, "caution", f"the images match better, but the labels overlap by {dice_after:.2f} only"
            )
        if dice_after - dice_before < DICE_GAIN and dice_after < NCC_ALIKE:
            return Light(subject, "caution", "the images match better, but the labels overlap hardly more than before")
    if alike:
        return Light(subject, "good", "the images were alike before and still are")
    if after - before < NCC_GAIN:
        return Light(subject, "caution", "the images match hardly better than before")
    smooth = "" if folds is None else " and the map does not fold" if folds == 0 else " and the map hardly folds"
    return Light(subject, "good", f"the images match better than before{smooth}")


def uncertainty_light(
    diagnostics: Mapping[str, Any], findings: Findings, volumes: Sequence[StructureVolume] = ()
) -> Light:
    """Whether the spread of the samples can be taken at face value."""
    ess, weight = finite(diagnostics.get("ess")), finite(diagnostics.get("largest_weight"))
    tail = tail_shape(diagnostics)
    subject = "Uncertainty"
    if findings.std_median is None:
        return Light(subject, "poor", "the samples do not differ, so they say nothing about the uncertainty")
    if (ess is not None and ess < ESS_ALONE) or (weight is not None and weight > WEIGHT_ALONE):
        return Light(subject, "poor", "one sample dominates, so the uncertainty is understated")
    missed, known = missed_volumes(volumes)
    if too_many_missed(missed, known):
        text = (
            f"the fixed labels contradict the uncertainty: {missed} of {known} volumes are outside of their intervals"
        )
        return Light(subject, "poor" if mostly_missed(missed, known) else "caution", text)
    if (tail is not None and tail > KHAT_LIMIT) or (ess is not None and ess < ESS_FEW):
        return Light(subject, "caution", "the uncertainty is rough, as few samples carry most of the weight")
    if ess is None or tail is None:
        return Light(subject, "unknown", "how many samples carry the uncertainty was not recorded")
    if flat_weights(diagnostics):
        return Light(subject, "good", "the uncertainty is what the model has learned from other brains")
    return Light(subject, "good", "the uncertainty rests on enough samples")


def input_light(warnings: Sequence[str]) -> Light:
    """Whether anything was remarkable about the images."""
    if not warnings:
        return Light("Input", "good", "nothing unusual was noticed")
    return Light("Input", "caution", f"{len(warnings)} remark{'s' if len(warnings) > 1 else ''}, see below")


def verdict(
    diagnostics: Mapping[str, Any],
    findings: Findings,
    warnings: Sequence[str],
    volumes: Sequence[StructureVolume] = (),
) -> Verdict:
    """The whole result in one line; its level is that of the worst lamp."""
    alignment, uncertainty, images = (
        alignment_light(diagnostics),
        uncertainty_light(diagnostics, findings, volumes),
        input_light(warnings),
    )
    lights = (alignment, uncertainty, images)
    level = max((light.level for light in lights), key=ORDER.index)
    if alignment.level == "poor":
        lead = "Do not use this registration as it is"
    elif uncertainty.level == "poor":
        lead = "Use the warp with care, and not its uncertainty"
    else:
        leads = {"good": "Looks good", "unknown": "Not fully measured", "caution": "Usable with care"}
        lead = leads[level]
    return Verdict(level, f"{lead}: {alignment.text}; {uncertainty.text}.", lights)
