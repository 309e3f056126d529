"""`run calibration` on synthetic brains, judged by the evaluation."""

import csv
import json
import math

import pytest
import torch

from scripts.core.checkpoint import load_network, read, save_atomically
from scripts.core.errors import DataError
from scripts.core.seg35 import SCORED
from scripts.evaluation.evaluator import Evaluation
from scripts.evaluation.fit_temperature import Calibration, best, write_temperature
from scripts.inference.objectives import SIRObjective
from scripts.networks.weight_scale import WeightScale, calibrated_temperature, trained_scale
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from tests.evaluation.test_evaluator import part, synthetic_pairs, untrained

FEW = {"num_proposals": 12, "num_samples": 6, "progress": False}
TEMPERATURES = (0.1, 0.5, 2.0, 8.0)


@pytest.fixture(scope="module")
def dataset():
    pairs = synthetic_pairs()
    return part(pairs, pairs.pairs[:3])


@pytest.fixture
def saved(tmp_path):
    """Weights in a file as training leaves them, σ_α included."""
    network, layout = untrained()
    network.weight_scale.value.fill_(40.0)
    save_atomically(network.state_dict(), tmp_path / "model.pt")
    return network, layout, tmp_path / "model.pt"


def calibrate(saved, dataset, **options):
    network, layout, path = saved
    options = {**FEW, "temperatures": TEMPERATURES, **options}
    target = options.pop("target", Target(NCCLikelihood(3)))
    return Calibration(network, layout, target, dataset, SCORED, path, path.parent, **options)


def evaluated(network, layout, dataset, folder, **options):
    target = options.pop("target", Target(NCCLikelihood(3)))
    run = Evaluation(network, layout, target, dataset, SCORED, folder, figures=False, **{**FEW, **options})
    summary = run.run()
    return {name: summary["structures"][name]["mean"] for name in ("ause_label", "ece", "label_entropy", "dice_mean")}


@pytest.mark.parametrize(
    ("criterion", "transform", "steps", "parts"),
    [
        ("ause", DisplacementTransform(), 0, "mean"),
        ("ece", DisplacementTransform(), 3, "mean"),
        ("ause", VelocityTransform(), 2, "all"),
        ("ece", VelocityTransform(grid="image"), 0, "mean"),
    ],
)
def test_the_evaluation_confirms_before_and_after(saved, dataset, tmp_path, capsys, criterion, transform, steps, parts):
    network, layout, path = saved
    target = Target(NCCLikelihood(3), transform=transform)
    objective = SIRObjective(target, layout, num_proposals=3, num_resampled=2)
    options = {"target": target, "objective": objective, "refine_steps": steps, "refine_parts": parts}
    before = evaluated(network, layout, dataset, tmp_path / "before", **options)
    report = calibrate(saved, dataset, criterion=criterion, dice_tolerance=None, **options).run()
    for name, value in before.items():
        assert report["before"][name] == pytest.approx(value, abs=1e-12)
    load_network(network, path)
    assert calibrated_temperature(network) == report["after"]["temperature"]
    assert trained_scale(network) == report["after"]["scale"] != 40.0
    # The weights' own temperature comes first.
    after = evaluated(network, layout, dataset, tmp_path / "after", temperature=77.0, **options)
    for name, value in after.items():
        assert report["after"][name] == pytest.approx(value, abs=1e-12)
    column = {"ause": "ause_label", "ece": "ece"}[criterion]
    rows = list(csv.DictReader((tmp_path / "calibration.csv").open()))
    assert [float(row["temperature"]) for row in rows] == list(TEMPERATURES)
    assert report["after"][column] == min(float(row[column]) for row in rows)
    assert json.loads((tmp_path / "calibration.json").read_text())["after"] == pytest.approx(report["after"])
    assert (report["refine_steps"], report["refine_parts"]) == (steps, parts)
    printed = capsys.readouterr().out
    assert "before" in printed
    assert f"{'DSC':>9}" in printed


def test_the_evaluation_can_leave_the_calibration_aside(saved, dataset, tmp_path):
    network, layout, path = saved
    plain = evaluated(network, layout, dataset, tmp_path / "plain", temperature=0.5)
    write_temperature(path, 8.0, 40.0)
    load_network(network, path)
    aside = evaluated(network, layout, dataset, tmp_path / "aside", temperature=0.5, calibrated="false")
    assert aside == plain
    assert evaluated(network, layout, dataset, tmp_path / "used", temperature=0.5) != plain


@pytest.mark.parametrize("given", [False, "false"])  # a command line gives the word
def test_reporting_only_and_keeping_the_scale(saved, dataset, given):
    _, _, path = saved
    old = path.read_bytes()
    report = calibrate(saved, dataset, write=given, fit_scale=given).run()
    assert path.read_bytes() == old
    assert report["after"]["scale"] == 40.0


def test_what_is_written_is_all_that_changes(saved, tmp_path):
    network, _, path = saved
    last = tmp_path / "last.pt"
    save_atomically({"network": network.state_dict(), "progress": {"epoch": 3}}, last)
    for file in (path, last):
        old = read(file)
        write_temperature(file, 4.5, 123.0)
        new = read(file)
        before, after = old.get("network", old), new.get("network", new)
        assert {name for name in after if not torch.equal(after[name], before[name])} == {
            "weight_scale.temperature",
            "weight_scale.value",
        }
        assert float(after["weight_scale.temperature"]) == 4.5
        assert new.get("progress") == old.get("progress")


def test_weights_from_before_there_was_a_calibration(saved, tmp_path):
    network, _, path = saved
    old = {name: value for name, value in read(path).items() if not name.endswith("temperature")}
    save_atomically(old, tmp_path / "old.pt")
    network.weight_scale.temperature.fill_(7.0)
    assert load_network(network, tmp_path / "old.pt") == []
    assert calibrated_temperature(network) is None


def test_training_on_forgets_the_fit():
    scale = WeightScale()
    scale.temperature.fill_(4.5)
    scale.update(torch.tensor([0.0, 2.0, 4.0]))
    assert float(scale.temperature) == 0.0


def test_refusals(saved, dataset):
    with pytest.raises(ValueError, match="criterion must be ause or ece, got 'dice'"):
        calibrate(saved, dataset, criterion="dice")
    with pytest.raises(ValueError, match="not weighed"):
        calibrate(saved, dataset, temperature=0.0)
    with pytest.raises(ValueError, match="temperatures must be positive"):
        calibrate(saved, dataset, temperatures=(0.0, 1.0))
    with pytest.raises(ValueError, match="tolerance of Dice must be a number or None, got 'null'"):
        calibrate(saved, dataset, dice_tolerance="null")
    with pytest.raises(ValueError, match="needs the objective"):
        calibrate(saved, dataset, refine_steps=1)


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
    rows = list(csv.DictReader((saved[2].parent / "calibration.csv").open()))
    dice = [float(row["dice_mean"]) for row in rows]
    allowed = [row for row, value in zip(rows, dice, strict=True) if used is None or value >= max(dice) - used]
    expected = min(allowed, key=lambda row: float(row["ause_label"]))
    assert report["after"]["temperature"] == float(expected["temperature"])


def test_nothing_to_choose_by_is_an_error_and_writes_nothing(saved, dataset):
    _, _, path = saved
    old = path.read_bytes()
    with pytest.raises(DataError, match="there are no pairs"):
        calibrate(saved, []).run()
    job = calibrate(saved, dataset)
    job.labels = (9999,)
    with pytest.raises(DataError, match="ause_label could not be computed at any temperature"):
        job.run()
    assert path.read_bytes() == old
