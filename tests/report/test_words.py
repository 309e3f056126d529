"""Words made from figures: names, the verdict, and where not to trust a result."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scripts.posterior.result import StructureVolume
from scripts.report.findings import Findings, Place, Region
from scripts.report.names import direction, enumerate_words, figure, number, percent, plain_name, real
from scripts.report.verdict import verdict
from scripts.report.words import cautions

from .conftest import DIAGNOSTICS

PEAK = Place((1, 2, 3), (-40.0, 45.2, 20.0), "left cerebral cortex", 2.6)
FINDINGS = Findings(
    center=(5, 5, 5),
    std_median=0.5,
    std_high=1.4,
    most_uncertain=PEAK,
    regions=(Region("left amygdala", 1.9), Region("right amygdala", 1.5)),
    likely_folds=0,
    fold_place=None,
    uncertain_labels=None,
    mode_place=None,
)


def changed(**figures) -> dict:
    return {**DIAGNOSTICS, **figures}


def titles(diagnostics, findings=FINDINGS, **others) -> dict[str, str]:
    return {caution.title: caution.level for caution in cautions(diagnostics, findings, **others)}


def text_of(title: str, diagnostics, findings=FINDINGS, **others) -> str:
    (text,) = [caution.text for caution in cautions(diagnostics, findings, **others) if caution.title == title]
    return text


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        ((-0.8, 0.7, 0.9), "left anterior superior"),
        ((0.8, -0.7, -0.9), "right posterior inferior"),
        ((0.1, 0.0, -0.5), "inferior"),
        ((0.0, 0.2, -0.3), "central"),
    ],
)
def test_directions_follow_ras(offset, words):
    assert direction(offset) == words


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.041234, 3, "0.0412"),
        (12345.6, 3, "12,346"),
        (1200, 4, "1,200"),
        (9.96, 2, "10"),
        (-0.6, 2, "-0.6"),
        (0, 3, "0"),
        (math.nan, 3, "–"),
        (None, 3, "–"),
        ("?", 3, "–"),
        (math.inf, 3, "∞"),
    ],
)
def test_numbers_have_significant_digits_and_no_exponent(value, digits, text):
    assert number(value, digits) == text


def test_names_and_lists_read_like_sentences():
    assert plain_name("Left-Cerebral-White-Matter") == "left cerebral white matter"
    assert plain_name("3rd-Ventricle") == "3rd ventricle"
    assert plain_name("Right-VentralDC") == "right VentralDC"
    assert percent(0.0312) == "3.1\u202f%"
    assert [enumerate_words(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert real("0.5") == 0.5
    assert real(math.inf) == math.inf
    assert math.isnan(real([1]))
    assert figure({"ess": 2}, "ess") == 2.0
    assert all(math.isnan(figure({"ess": value}, "ess")) for value in (None, "?", math.nan, math.inf))
    assert math.isnan(figure({}, "ess"))


def test_a_good_result_is_called_good():
    result = verdict(DIAGNOSTICS, FINDINGS, [])
    assert result.level == "good"
    assert [light.level for light in result.lights] == ["good", "good", "good"]
    assert result.sentence.startswith("Looks good: the images match better than before and the map does not fold")
    assert set(titles(DIAGNOSTICS)) == {"The least certain places"}


@pytest.mark.parametrize(
    ("figures", "lamp", "level"),
    [
        ({"ncc_after": 0.40}, 0, "poor"),
        ({"ncc_after": 0.415}, 0, "caution"),
        ({"dice_after": 0.5}, 0, "poor"),
        ({"fold_percent_mean": 0.5}, 0, "caution"),
        ({"fold_percent_mean": 3.0}, 0, "poor"),
        ({"ncc_after": None, "dice_after": None}, 0, "unknown"),
        ({"ess": 1.3}, 1, "poor"),
        ({"largest_weight": 0.7}, 1, "poor"),
        ({"ess": 6.0}, 1, "caution"),
        ({"khat": 0.71}, 1, "caution"),
        ({"khat": math.inf}, 1, "caution"),
        ({"khat": None}, 1, "unknown"),
        ({"khat": 0.7}, 1, "good"),
    ],
)
def test_each_lamp_follows_its_figures(figures, lamp, level):
    result = verdict(changed(**figures), FINDINGS, [])
    assert result.lights[lamp].level == level
    assert result.level == level


def test_images_that_were_alike_need_no_gain():
    result = verdict(changed(ncc_before=0.99, ncc_after=0.985, dice_before=None), FINDINGS, [])
    assert result.lights[0].level == "good"
    assert "The images hardly match better" not in titles(changed(ncc_before=0.99, ncc_after=0.985))


def test_no_figures_at_all_are_never_good():
    result = verdict({}, FINDINGS, [])
    assert result.level == "unknown"
    assert result.sentence.startswith("Not fully measured")


def test_a_bad_warp_and_a_bad_uncertainty_are_told_apart():
    assert verdict(changed(ncc_after=0.3), FINDINGS, []).sentence.startswith("Do not use this registration as it is")
    assert "not its uncertainty" in verdict(changed(ess=1.2), FINDINGS, []).sentence


def test_khat_above_the_limit_is_said_with_its_meaning():
    text = text_of("The weights have a heavy tail", changed(khat=0.85))
    assert "k̂ is 0.85" in text
    assert "Above 0.7" in text
    assert "temperature 3" in text
    assert "Another seed" in text
    assert "Above 1" in text_of("The weights have a heavy tail", changed(khat=1.4))
    assert "Too few different weights" in text_of("The weights have a heavy tail", changed(khat=math.inf))
    assert "temperature" not in text_of("The weights have a heavy tail", changed(khat=0.85, temperature=1.0))
    assert "The weights have a heavy tail" not in titles(changed(khat=0.69))


def test_one_dominating_sample_is_said():
    text = text_of("One sample dominates", changed(ess=1.1, largest_weight=0.95))
    assert "1.1 of 1,200" in text
    assert "95\u202f%" in text
    assert titles(changed(ess=1.1))["One sample dominates"] == "poor"
    assert titles(changed(ess=5.0))["Few samples count"] == "caution"


def test_equal_samples_are_no_certainty():
    silent = replace(FINDINGS, std_median=None, std_high=None, most_uncertain=None, regions=())
    assert verdict(DIAGNOSTICS, silent, []).lights[1].level == "poor"
    assert titles(DIAGNOSTICS, silent) == {"No spread at all": "poor"}


def test_the_least_certain_places_are_named():
    text = text_of("The least certain places", DIAGNOSTICS)
    assert "the left amygdala (1.9 mm) and the right amygdala (1.5 mm)" in text
    assert "in the left cerebral cortex, at (−40, 45, 20) mm RAS: 2.6 mm" in text
    assert "Half of the brain is below 0.5 mm" in text
    assert titles(DIAGNOSTICS, replace(FINDINGS, std_median=2.5))["Uncertain nearly everywhere"] == "caution"


def test_folds_are_said_with_their_place():
    place = replace(PEAK, name="right putamen")
    text = text_of("The map folds", changed(fold_percent_mean=0.42), replace(FINDINGS, fold_place=place))
    assert "0.42\u202f%" in text
    assert "right putamen" in text
    assert titles(changed(fold_percent_mean=0.0, fold_percent=0.4))["Some samples fold"] == "note"
    assert titles(DIAGNOSTICS, replace(FINDINGS, likely_folds=7))["Some samples fold"] == "note"


def test_nothing_good_is_said_of_a_mean_map_that_was_not_measured():
    figures = {name: value for name, value in changed(fold_percent=0.4).items() if name != "fold_percent_mean"}
    assert verdict(figures, FINDINGS, []).lights[0].level == "caution"
    assert titles(figures)["Some samples fold"] == "caution"
    assert "smooth" not in text_of("Some samples fold", figures)


def test_an_inexact_inverse_and_lost_overlap_are_said():
    assert titles(changed(inverse_error_mm=0.4))["The inverse is inexact"] == "caution"
    assert titles(changed(dice_after=0.5))["The labels overlap less than before"] == "poor"


def test_remarks_about_the_input_come_through():
    found = cautions(DIAGNOSTICS, FINDINGS, ["The moving image appears not to be skull-stripped"])
    assert found[0].text == "The moving image appears not to be skull-stripped."
    assert verdict(DIAGNOSTICS, FINDINGS, ["x"]).lights[2].text == "1 remark, see below"


def test_volumes_that_miss_their_interval_are_counted():
    narrow = [
        StructureVolume(i, f"Left-Part-{i}", 100.0, 98.0, 102.0, fixed=120.0 if i < 3 else 100.0) for i in range(8)
    ]
    text = text_of("Volumes outside of their intervals", DIAGNOSTICS, volumes=narrow)
    assert text.startswith("For 3 of 8 structures")
    # One of twenty is what a 95 % interval promises to miss.
    lucky = [StructureVolume(i, "a", 100.0, 98.0, 102.0, fixed=120.0 if i == 0 else 100.0) for i in range(20)]
    assert "Volumes outside of their intervals" not in titles(DIAGNOSTICS, volumes=lucky)
    wide = [StructureVolume(1, "Left-Accumbens", 100.0, 80.0, 130.0)]
    assert "left accumbens" in text_of("Wide volume intervals", DIAGNOSTICS, volumes=wide)


def test_two_large_modes_are_worth_a_word():
    split = replace(FINDINGS, mode_place=PEAK)
    assert "60\u202f% and 40\u202f%" in text_of("More than one answer", DIAGNOSTICS, split, mode_weights=[0.6, 0.4])
    assert "More than one answer" not in titles(DIAGNOSTICS, split, mode_weights=[0.95, 0.05])


def test_uncertain_labels_are_said_as_a_share():
    text = text_of("Uncertain label boundaries", DIAGNOSTICS, replace(FINDINGS, uncertain_labels=0.123))
    assert text.startswith("12\u202f% of the labeled voxels")


def test_the_gravest_comes_first():
    levels = [caution.level for caution in cautions(changed(ess=1.1, khat=1.2), FINDINGS, ["a remark"])]
    assert levels == sorted(levels, key=["poor", "caution", "note"].index)
    assert levels[0] == "poor"


def structures(missed: int, count: int = 8) -> list[StructureVolume]:
    """Volumes of which some differ from the fixed image's own by more than the interval allows."""
    return [StructureVolume(i, "a", 100.0, 98.0, 102.0, fixed=120.0 if i < missed else 100.0) for i in range(count)]


@pytest.mark.parametrize(("missed", "level"), [(0, "good"), (1, "good"), (3, "caution"), (6, "poor")])
def test_fixed_labels_that_contradict_the_uncertainty_are_in_the_verdict(missed, level):
    result = verdict(DIAGNOSTICS, FINDINGS, [], structures(missed))
    assert result.lights[1].level == result.level == level
    assert ("contradict" in result.sentence) == (level != "good")
    if level == "poor":
        assert result.sentence.startswith("Use the warp with care, and not its uncertainty")


@pytest.mark.parametrize(
    ("before", "after", "level"),
    [(0.6, 0.73, "good"), (0.2, 0.4, "caution"), (0.6, 0.605, "caution"), (0.6, 0.5, "poor")],
)
def test_fixed_labels_that_contradict_the_images_are_in_the_verdict(before, after, level):
    figures = changed(dice_before=before, dice_after=after)
    assert verdict(figures, FINDINGS, []).lights[0].level == level
    assert ("The labels do not fit well" in titles(figures)) == (level == "caution")


def test_weights_that_are_nearly_equal_are_no_proof():
    flat = changed(ess=1180.0, khat=-0.4, largest_weight=0.001, temperature=0.1)
    result = verdict(flat, FINDINGS, [])
    assert result.level == "good"
    assert "learned from other brains" in result.sentence
    assert "1,200" in text_of("The weights are nearly equal", flat)
    assert "The weights are nearly equal" not in titles(changed(ess=600.0))
