"""What a user can set wrongly, through MONAI's own workflow: one line, exit code 1, nothing computed before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from monai.bundle import ConfigParser, ConfigWorkflow

from scripts.commands.options import check_names, check_type, default_of, given, shipped_parts
from scripts.core.device import usable_device
from scripts.core.errors import DataError
from scripts.core.truth import truth
from tests.commands.conftest import ROOT, SMALL

SHIPPED = {name: json.loads((ROOT / f"configs/{name}.json").read_text()) for name in ("inference", "apply")}


def run(name: str, **settings: Any) -> Any:
    """`python -m monai.bundle run <name>` with these options, in this process."""
    config = str(ROOT / f"configs/{name}.json")
    options = {"bundle_root": str(ROOT), **settings}
    workflow = ConfigWorkflow(config_file=config, run_id=name, logging_file=False, **options)
    workflow.initialize()
    return workflow.run()


def refused(capsys, name: str, **settings: Any) -> str:
    with pytest.raises(SystemExit) as caught:
        run(name, **settings)
    assert caught.value.code == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert not [line for line in lines if "Traceback" in line]
    return lines[-1]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_proposal": 5}, "unknown option --num_proposal; did you mean --num_proposals?"),
        ({"outputdir": "x"}, "did you mean --output_dir?"),
        ({"qqq": 1}, "unknown option --qqq; the options are"),
        ({"landmarks": "l.csv"}, "error: --landmarks is an option of run apply, not of this run"),
        ({"sampler::settings::num_sample": 3}, "error: unknown option --num_sample; did you mean --num_samples?"),
        ({"num_proposals": 1}, "error: --num_proposals must be a whole number of at least 2, got 1"),
        ({"num_proposals": 1e3}, "--num_proposals must be a whole number, got 1000.0"),
        ({"num_samples": 0}, "--num_samples must be a whole number of at least 1, got 0"),
        ({"num_samples": "many"}, "--num_samples must be a whole number, got 'many'"),
        ({"num_modes": -1}, "--num_modes"),
        ({"seed": -1}, "--seed"),
        ({"seed": 2**63}, "--seed"),
        ({"refine_steps": -1}, "--refine_steps"),
        ({"refine_parts": "L"}, "--refine_parts must be mean or all, got 'L'"),
        ({"align": "foo"}, "--align foo"),
        ({"device": "cuda:77"}, "--device cuda:77: cannot be used"),
        ({"device": "abacus"}, "--device abacus: cannot be used"),
        ({"report": "maybe"}, "--report must be true or false, got 'maybe'"),
        ({"debug": "maybe"}, "--debug must be true or false, got 'maybe'"),
        ({"voxel_mm": 1.0}, "--voxel_mm 1.0: the weights"),
        ({"sigma": 0}, "--sigma 0: the weights"),
        ({"initial_std": 0.2}, "were trained with 0.25"),
        ({"likelihood": {"_target_": "scripts.registration.local_correlation.NCCLikelihood", "window": 4}}, "got 4"),
        ({"temperature": -1}, "--temperature must be a number of at least 0, got -1"),
        ({"rank": 3}, "--rank 3: the weights"),
        ({"cross_channel": "some"}, "were trained with voxel"),
        ({"ckpt_path": str(ROOT / "README.md")}, "checkpoint"),
        ({"ckpt_path": "/nowhere/model.pt"}, "--ckpt_path"),
        ({"output_dir": str(ROOT / "README.md")}, "is a file, not a folder"),
        ({"output_dir": str(ROOT / "README.md/inside")}, "is a file, not a folder"),
        ({"label_names": "/nowhere.json"}, "--label_names /nowhere.json"),
        ({"evaluator::nothing": 1}, "nothing"),
        ({"pairs": "/nowhere.csv", "fixed": None, "moving": None}, "--pairs /nowhere.csv"),
        ({"moving": None}, "--moving is missing"),
    ],
    ids=str,
)
def test_a_wrong_option_of_inference_is_named(capsys, tmp_path, pair, settings, words):
    files = {role: pair.files[role] for role in ("fixed", "moving")}
    options = {"output_dir": str(tmp_path / "out"), "device": "cpu", **files, **settings}
    assert words in refused(capsys, "inference", **options)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"posteriors": "p.pt"}, "did you mean --posterior?"),
        ({}, "--posterior is missing"),
        ({"posterior": "/nowhere.pt"}, "nothing to apply it to: give --image, --label, --points, --transforms true"),
        ({"posterior": "/nowhere.pt", "image": "i.nii"}, "/nowhere.pt"),
        ({"posterior": str(ROOT / "models/model.pt"), "image": "i.nii"}, "not a posterior.pt"),
        ({"posterior": "p.pt", "image": "i.nii", "mode": "median"}, "--mode must be mean or samples, got 'median'"),
        ({"device": "cuda:77"}, "--device cuda:77: cannot be used"),
        ({"overwrite": 2}, "--overwrite must be true or false, got 2"),
        ({"landmark_std": "wide"}, "error: --landmark_std must be a number, got 'wide'"),
        (
            {"corrected_structures": "all"},
            "--corrected_structures must be label values such as 14, 30, got 'all'",
        ),
    ],
    ids=str,
)
def test_a_wrong_option_of_apply_is_named(capsys, settings, words):
    assert words in refused(capsys, "apply", **{"device": "cpu", **settings})


def test_debug_lets_the_error_through():
    with pytest.raises(RuntimeError) as caught:
        run("inference", align="foo", debug=True, device="cpu")
    chain, error = [], caught.value
    while error is not None:
        chain.append(str(error))
        error = error.__cause__
    assert any("alignment must be" in text for text in chain)


def test_what_the_check_has_built_is_what_runs(tmp_path, pair, weights):
    files = {role: pair.files[role] for role in ("fixed", "moving")}
    settings = {**SMALL, **files, "ckpt_path": weights, "output_dir": str(tmp_path), "report": "false"}
    _, rows = run("inference", **settings)
    assert rows[0]["name"] == "moving__to__fixed"
    assert not (tmp_path / "moving__to__fixed/report.html").exists()


def test_keys_that_another_config_adds_and_uses_are_no_mistake():
    shipped = {"sigma": 0.5, "target": {"sigma": "@sigma"}}
    check_names({**shipped, "extra": 2, "target": {"sigma": "$@sigma * @extra"}, "_meta_": {}}, shipped)
    with pytest.raises(DataError, match="--extra"):
        check_names({**shipped, "extra": 2}, shipped)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_configs_pass_their_own_checks(name):
    check_names(SHIPPED[name], SHIPPED[name])
    for key, value in SHIPPED[name].items():
        check_type(key, value, value)


def test_a_default_that_refers_elsewhere_has_the_type_of_what_is_there():
    shipped = SHIPPED["inference"]
    assert shipped["num_proposals"].startswith("@")
    assert default_of("num_proposals", shipped) == 1200
    assert default_of("align", shipped) == "auto"
    assert default_of("output_dir", shipped) is None  # an expression
    assert default_of("a", {"a": "@b::1", "b": [0, "@c"], "c": 7}) == 7


def test_references_and_expressions_are_left_to_monai():
    for value in ("$2 + 2", "@other", "%other.json::x"):
        check_type("x", value, 2.0)
    check_type("x", 3, 2.0)
    check_type("x", "anything", None)


@pytest.mark.parametrize(
    ("value", "expected"), [("False", False), ("true", True), (" no ", False), (1, True), (0, False)]
)
def test_truth_as_people_write_it(value, expected):
    assert truth("x", value) is expected


def test_nothing_has_many_names():
    assert [given(value) for value in (None, "", "null", "None")] == [None] * 4
    assert (given("a b"), given(12)) == ("a b", "12")


def test_a_device_that_computes_is_usable():
    assert usable_device("cpu") == torch.device("cpu")
    with pytest.raises(DataError, match="meta"):
        usable_device("meta")


def refused_training(capsys, *files: str, **settings: Any) -> str:
    configs = [str(ROOT / "configs" / f"{name}.yaml") for name in ("train", *files)]
    run_id = {"evaluate": "evaluation", "calibrate": "calibration"}.get((files or ("",))[-1], "training")
    options = {"bundle_root": str(ROOT), **settings}
    workflow = ConfigWorkflow(config_file=configs, run_id=run_id, logging_file=False, **options)
    workflow.initialize()
    with pytest.raises(SystemExit) as caught:
        workflow.run()
    assert caught.value.code == 1
    return capsys.readouterr().err.splitlines()[-1]


def test_a_wrong_option_of_a_training_is_named_before_it_starts(capsys, tmp_path):
    where = {"output_dir": str(tmp_path / "out")}
    message = refused_training(capsys, learnin_rate=1, **where)
    assert message == "error: unknown option --learnin_rate; did you mean --learning_rate?"
    message = refused_training(capsys, "evaluate", refine_step=1, **where)
    assert message == "error: unknown option --refine_step; did you mean --refine_steps?"
    assert "does not exist" in refused_training(capsys, dataset_dir="/nowhere", **where)
    assert "there is no such file" in refused_training(capsys, "evaluate", "calibrate", **where)


@pytest.mark.parametrize(
    ("files", "option", "runs"),
    [
        ((), {"refine_steps": 25}, "apply, evaluation, inference"),
        ((), {"criterion": "ece"}, "calibration"),
        ((), {"split": "test"}, "evaluation"),
        (("evaluate",), {"criterion": "ece"}, "calibration"),
        (("evaluate",), {"landmarks": "l.csv"}, "apply"),
    ],
    ids=str,
)
def test_an_option_of_another_run_is_refused(capsys, tmp_path, files, option, runs):
    # Without data, so that nothing is computed where it is not refused.
    message = refused_training(capsys, *files, dataset_dir="/nowhere", output_dir=str(tmp_path), **option)
    assert message == f"error: --{next(iter(option))} is an option of run {runs}, not of this run"


@pytest.mark.parametrize(("files", "option"), [(("evaluate",), "split"), (("evaluate", "calibrate"), "criterion")])
def test_options_of_the_run_itself_are_accepted(capsys, tmp_path, files, option):
    assert "there is no such file" in refused_training(capsys, *files, output_dir=str(tmp_path), **{option: "ause"})


TOGETHER = [
    ("train.yaml", *files, override.relative_to(ROOT))
    for files in ((), ("evaluate.yaml",), ("evaluate.yaml", "calibrate.yaml"))
    for override in [*sorted(ROOT.glob("configs/**/*.yaml")), ROOT / "experiments/comparison.yaml"]
    if override.parent.name != "examples"  # which are on their own
    and (files or override.name not in ("files.yaml", "calibrate.yaml"))  # which override the evaluation
]


@pytest.mark.parametrize("files", TOGETHER, ids=lambda files: "-".join(map(str, files)))
def test_what_shipped_configs_override_is_known(files):
    parser = ConfigParser()
    parser.read_config([str(ROOT / "configs" / name) for name in files[:-1]] + [str(ROOT / files[-1])])
    check_names(parser.get(), shipped_parts(parser.get()))
