"""`run calibration` on synthetic brains, judged by the evaluation."""

import csv
import json
import math

import pytest
import torch

from scripts.core.checkpoint import description_of, network_state, read
from scripts.core.errors import DataError
from scripts.core.seg35 import SCORED
from scripts.evaluation.evaluator import Evaluation
from scripts.evaluation.fit_temperature import Calibration, best, write_fitted
from scripts.inference.model import Fitted, Weighting
from scripts.inference.model_file import load_model
from scripts.inference.objectives import ImportanceObjective, VariationalObjective
from scripts.posterior.sampler import Sampler
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from tests.evaluation.test_evaluator import part, synthetic_pairs, untrained

FEW = {"num_proposals": 12, "num_samples": 6, "progress": False}
TEMPERATURES = (0.1, 0.5, 2.0, 8.0)


@pytest.fixture(scope="module")
def dataset():
    pairs = synthetic_pairs()
    return part(pairs, pairs.pairs[:3])


def save_as_trained(path, **options):
    """Weights in a file as training leaves them, σ_α included."""
    model = untrained(**options)
    model.network.weight_scale.value.fill_(40.0)
    model.save(path)
    return path


@pytest.fixture
def saved(tmp_path):
    return save_as_trained(tmp_path / "model.pt")


def calibrate(path, dataset, settings=None, **options):
    sampler = Sampler(load_model(path), {**FEW, **(settings or {})})
    options = {"temperatures": TEMPERATURES, "progress": False, **options}
    return Calibration(sampler, dataset, SCORED, path, path.parent, **options)


def evaluated(path, dataset, folder, settings=None, **options):
    sampler = Sampler(load_model(path), {**FEW, **(settings or {})})
    run = Evaluation(sampler, dataset, SCORED, folder, figures=False, progress=False, **options)
    summary = run.run()
    return {name: summary["structures"][name]["mean"] for name in ("ause_label", "ece", "label_entropy", "dice_mean")}


def agree(row, scores):
    """The mean of the samples is added up in another order, so single voxels of its labels may differ."""
    for name, value in scores.items():
        assert row[name] == pytest.approx(value, abs=2e-3 if name == "dice_mean" else 1e-12)


@pytest.mark.parametrize(
    ("criterion", "options", "steps", "parts"),
    [
        ("ause", {"transform": DisplacementTransform()}, 0, "mean"),
        ("ece", {"transform": DisplacementTransform()}, 3, "mean"),
        ("ause", {"transform": VelocityTransform()}, 2, "all"),
        ("ece", {"objective": ImportanceObjective}, 0, "mean"),
    ],
)
def test_the_evaluation_confirms_before_and_after(dataset, tmp_path, capsys, criterion, options, steps, parts):
    path = save_as_trained(tmp_path / "model.pt", **options)
    settings = {"refine_steps": steps, "refine_parts": parts}
    before = evaluated(path, dataset, tmp_path / "before", settings)
    report = calibrate(path, dataset, settings, criterion=criterion, dice_tolerance=None).run()
    agree(report["before"], before)
    fitted = load_model(path).fitted
    assert (fitted.temperature, fitted.scale) == (report["after"]["temperature"], report["after"]["scale"])
    assert fitted.scale != 40.0
    assert (fitted.notes["criterion"], fitted.notes["pairs"], fitted.notes["num_proposals"]) == (criterion, 3, 12)
    assert (fitted.notes["refine_steps"], fitted.notes["refine_parts"]) == (steps, parts)
    agree(report["after"], evaluated(path, dataset, tmp_path / "after", settings))
    column = {"ause": "ause_label", "ece": "ece"}[criterion]
    rows = list(csv.DictReader((tmp_path / "calibration.csv").open()))
    assert [float(row["temperature"]) for row in rows] == list(TEMPERATURES)
    assert report["after"][column] == min(float(row[column]) for row in rows)
    assert json.loads((tmp_path / "calibration.json").read_text())["after"] == pytest.approx(report["after"])
    assert (report["refine_steps"], report["refine_parts"]) == (steps, parts)
    assert not list(tmp_path.glob("posteriors_*"))
    printed = capsys.readouterr().out
    assert "before" in printed
    assert f"{'DSC':>9}" in printed


def test_the_evaluation_can_leave_the_calibration_aside(saved, dataset, tmp_path):
    plain = evaluated(saved, dataset, tmp_path / "plain")
    model = load_model(saved)
    model.fitted = Fitted(0.1, 40.0)
    write_fitted(model, saved)
    assert evaluated(saved, dataset, tmp_path / "aside", calibrated="false") == plain
    assert evaluated(saved, dataset, tmp_path / "used") != plain


@pytest.mark.parametrize("given", [False, "false"])  # a command line gives the word
def test_reporting_only_and_keeping_the_scale(saved, dataset, given):
    old = saved.read_bytes()
    report = calibrate(saved, dataset, write=given, fit_scale=given).run()
    assert saved.read_bytes() == old
    assert report["after"]["scale"] == 40.0


@pytest.mark.parametrize("kind", ["weights", "training", "earlier weights", "earlier training"])
def test_what_is_written_is_all_that_changes(saved, tmp_path, kind):
    content = read(saved)
    content = {
        "weights": content,
        "training": {"model": network_state(content), "description": description_of(content), "progress": {"epoch": 3}},
        "earlier weights": network_state(content),
        "earlier training": {"network": network_state(content), "progress": {"epoch": 3}},
    }[kind]
    file = tmp_path / "last.pt"
    torch.save(content, file)
    model = load_model(file, expected=load_model(saved))
    model.fitted = Fitted(4.5, 123.0, {"criterion": "ause"})
    write_fitted(model, file)
    new = read(file)
    before = network_state(content)
    assert network_state(new).keys() == before.keys()
    assert all(torch.equal(network_state(new)[name], value) or value.isnan().all() for name, value in before.items())
    assert new.get("progress") == content.get("progress")
    assert set(new) - before.keys() == ({"model", "description", "progress"} if "training" in kind else set())
    again = load_model(file)
    assert again.fitted == model.fitted
    assert again.weighting() == Weighting(4.5, 123.0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": VariationalObjective}, "not weighed"),
        ({"deterministic": True}, "not weighed"),
    ],
)
def test_samples_that_are_not_weighed_have_nothing_to_calibrate(tmp_path, dataset, options, words):
    model = untrained(**options)
    model.save(tmp_path / "model.pt")
    with pytest.raises(ValueError, match=words):
        calibrate(tmp_path / "model.pt", dataset, {"temperature": 3.0})


def test_refusals(saved, dataset):
    with pytest.raises(ValueError, match="criterion must be ause or ece, got 'dice'"):
        calibrate(saved, dataset, criterion="dice")
    with pytest.raises(ValueError, match="temperatures must be positive"):
        calibrate(saved, dataset, temperatures=(0.0, 1.0))
    with pytest.raises(ValueError, match="tolerance of Dice must be a number or None, got 'null'"):
        calibrate(saved, dataset, dice_tolerance="null")
    with pytest.raises(ValueError, match="weights of one network to calibrate, got 2"):
        Calibration(Sampler(load_model(saved)), dataset, SCORED, [saved, saved], saved.parent)


def test_a_temperature_without_a_criterion_is_never_chosen():
    rows = [{"temperature": t, "ause_label": a, "ece": 0.1} for t, a in ((1.0, math.nan), (2.0, 0.4), (3.0, 0.3))]
    for order in (rows, rows[::-1], rows[1:] + rows[:1]):
        assert best(order, "ause")["temperature"] == 3.0


def test_a_better_criterion_must_not_cost_accuracy():
    table = (
        (1.0, 0.03, 0.090, 0.750),
        (2.0, 0.04, 0.085, 0.7585),
        (3.0, 0.05, 0.080, 0.760),
        (4.0, 0.06, 0.070, 0.700),
    )
    names = ("temperature", "ause_label", "ece", "dice_mean")
    rows = [dict(zip(names, values, strict=True)) for values in table]
    assert best(rows, "ause")["temperature"] == 1.0
    assert best(rows, "ause", 0.002)["temperature"] == 2.0
    assert best(rows, "ause", 0.0)["temperature"] == 3.0
    assert best(rows, "ause", 0.05)["temperature"] == 1.0
    assert best(rows, "ece", 0.002)["temperature"] == 3.0


@pytest.mark.parametrize(("given", "used"), [(0.0, 0.0), (0.01, 0.01), (None, None), (-1, None)])
def test_the_bound_is_part_of_the_fit(saved, dataset, given, used):
    report = calibrate(saved, dataset, dice_tolerance=given, write=False).run()
    assert report["dice_tolerance"] == used
    rows = list(csv.DictReader((saved.parent / "calibration.csv").open()))
    dice = [float(row["dice_mean"]) for row in rows]
    allowed = [row for row, value in zip(rows, dice, strict=True) if used is None or value >= max(dice) - used]
    expected = min(allowed, key=lambda row: float(row["ause_label"]))
    assert report["after"]["temperature"] == float(expected["temperature"])


def test_nothing_to_choose_by_is_an_error_and_writes_nothing(saved, dataset):
    old = saved.read_bytes()
    with pytest.raises(DataError, match="there are no pairs"):
        calibrate(saved, []).run()
    job = calibrate(saved, dataset)
    job.labels = (9999,)
    with pytest.raises(DataError, match="ause_label could not be computed at any temperature"):
        job.run()
    assert saved.read_bytes() == old
