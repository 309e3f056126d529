from __future__ import annotations

import os
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest
import torch
import yaml
from fire.parser import DefaultParseValue
from monai.bundle import ConfigParser

from experiments import comparison
from scripts.core.checkpoint import load_network, read, save_atomically
from scripts.inference.model_file import load_model
from tests.commands.conftest import small_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("variant", [*comparison.VARIANTS, *comparison.SENSITIVITY, "vxm"])
def test_every_variant_has_its_config(variant):
    assert (ROOT / f"configs/variants/{variant}.yaml").is_file()


def test_the_common_start_and_the_split_are_in_the_bundle():
    preset = yaml.safe_load((ROOT / "experiments/comparison.yaml").read_text())
    for key in ("start_from", "split_file"):
        assert (ROOT / preset[key].split("'")[1].lstrip("/")).is_file()
    assert preset["epoch_length"] * preset["max_epochs"] == preset["decay_steps"]
    assert preset["epoch_length"] == comparison.EPOCH


def test_work_is_claimed_once(tmp_path):
    with comparison.claimed(tmp_path / "a.lock") as first, comparison.claimed(tmp_path / "a.lock") as second:
        assert first
        assert not second
    with comparison.claimed(tmp_path / "a.lock") as again:
        assert again


def test_the_lock_of_a_process_that_is_gone_counts_for_nothing(tmp_path):
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    lock = tmp_path / "a.lock"
    lock.write_text(gone.stdout.strip())
    with comparison.claimed(lock) as mine:
        assert mine
        assert lock.read_text() == str(os.getpid())


KEPT = sorted(path.stem for path in (ROOT / "experiments/weights").glob("*.pt"))


@pytest.mark.parametrize("name", KEPT)
def test_the_kept_weights_are_those_of_their_variant(name):
    parser = ConfigParser()
    config = "vxm" if comparison.is_member(name) else name
    parser.read_config([str(ROOT / path) for path in comparison.config_files("training", config)])
    network = parser.get_parsed_content("network_def")
    assert load_network(network, ROOT / f"experiments/weights/{name}.pt") == []
    assert all(bool(value.isfinite().all()) for value in network.parameters())


def test_weights_are_kept_without_what_only_training_needs(tmp_path):
    comparison.keep_weights(tmp_path / "missing.pt", tmp_path / "kept.pt")
    assert not (tmp_path / "kept.pt").exists()
    model = small_model()
    model.save(tmp_path / "last.pt", optimizer={"big": torch.ones(99)})
    comparison.keep_weights(tmp_path / "last.pt", tmp_path / "kept.pt")
    assert load_model(tmp_path / "kept.pt").description() == model.description()
    assert read(tmp_path / "kept.pt").keys() == model.network.state_dict().keys()


def recorded(monkeypatch):
    """The commands that would run, instead of hours of them."""
    commands: list[list[str]] = []
    monkeypatch.setattr(comparison, "run", lambda command: commands.append(list(command)))
    monkeypatch.setattr(comparison, "keep_weights", lambda *paths: None)
    return commands


def option(command, name):
    return command[command.index(f"--{name}") + 1]


def tasks(commands):
    return [command[4] if "monai.bundle" in command else command[3] for command in commands]


def test_each_variant_is_trained_then_evaluated_and_filed(tmp_path, monkeypatch):
    commands = recorded(monkeypatch)
    save_atomically({"network": {}, "progress": {"iteration": 400}}, tmp_path / "v_d/last.pt")  # as its training would
    comparison.main(["--dataset_dir", "/a,/b", "--work_dir", str(tmp_path), "--variants", "v_d,vxm_3"])
    assert tasks(commands) == ["training", "evaluation", "add", "training", "evaluation", "add"]
    alone, member, refined = commands[1], commands[3], commands[4]
    for evaluation in (alone, refined):
        assert option(evaluation, "dataset_dir") == "/a"
        assert option(evaluation, "split") == "test"
    assert "--refine_steps" not in alone
    assert option(refined, "refine_steps") == str(comparison.REFINE_STEPS)
    assert [option(commands[i], "group") for i in (2, 5)] == ["variants", "refined"]
    assert (option(member, "seed"), option(member, "batch_size"), option(member, "decay_steps")) == ("3", "1", "1200")


def test_kept_weights_are_evaluated_without_training(tmp_path, monkeypatch):
    commands = recorded(monkeypatch)
    monkeypatch.setattr(comparison, "WEIGHTS", tmp_path / "kept")
    (tmp_path / "kept").mkdir()
    small_model().save(tmp_path / "kept/v_d.pt")
    comparison.main(["--dataset_dir", "/a", "--work_dir", str(tmp_path), "--variants", "v_d", "--kept"])
    assert tasks(commands) == ["evaluation", "add", "evaluation", "add"]  # alone, then refined
    assert read(tmp_path / "v_d/last.pt")["progress"]["iteration"] == 400
    for name in comparison.ENSEMBLE:
        small_model().save(tmp_path / f"kept/{name}.pt")
    call = ["--dataset_dir", "/a", "--work_dir", str(tmp_path), "--variants", ",".join(comparison.ENSEMBLE), "--kept"]
    comparison.main(call)
    assert tasks(commands[4:]) == ["evaluation", "add"]  # the five together


@pytest.mark.parametrize(("iteration", "refined"), [(400, "none"), (400, "s_d"), (375, "all")])
def test_refinement_waits_for_training_and_can_be_left_out(tmp_path, monkeypatch, iteration, refined):
    commands = recorded(monkeypatch)
    save_atomically({"network": {}, "progress": {"iteration": iteration}}, tmp_path / "v_d/last.pt")
    comparison.main(["--dataset_dir", "/a", "--work_dir", str(tmp_path), "--variants", "v_d", "--refined", refined])
    assert tasks(commands) == ["training", "evaluation", "add"]


def test_the_temperature_is_fitted_to_a_copy_on_the_validation_people(tmp_path, monkeypatch):
    commands = recorded(monkeypatch)
    save_atomically({"network": {}}, tmp_path / "s_d/last.pt")
    comparison.refined("s_d", "/a", tmp_path, 16, 400)
    assert tasks(commands) == ["calibration", "evaluation", "add"]
    fit, evaluation = commands[:2]
    assert option(fit, "split") == "val"
    assert option(fit, "refine_steps") == option(evaluation, "refine_steps")
    assert option(fit, "ckpt_path") == option(evaluation, "ckpt_path") == str(tmp_path / "s_d/refined/model.pt")
    (tmp_path / "s_d/refined/calibration").mkdir()
    (tmp_path / "s_d/refined/calibration/calibration.json").write_text("{}")
    comparison.refined("s_d", "/a", tmp_path, 16, 400)
    assert tasks(commands[3:]) == ["evaluation", "add"]


def of_command(command):
    """The config as `monai.bundle run` reads this command: options that are None do not count."""
    files = [str(ROOT / path) for path in literal_eval(option(command, "config_file"))]
    parser = ConfigParser()
    parser.read_config(files)
    for name, value in zip(command[5::2], command[6::2], strict=True):
        if name != "--config_file" and DefaultParseValue(value) is not None:
            parser[name.removeprefix("--")] = DefaultParseValue(value)
    parser["bundle_root"] = str(ROOT)
    return parser


def described(value):
    """An object by its class and its settings, those of its parts included."""
    if isinstance(value, int | float | str | bool | None):
        return value
    settings = {key: described(v) for key, v in vars(value).items() if not key.startswith("_") and key != "training"}
    return type(value).__name__, settings


@pytest.mark.parametrize(("variant", "energy"), [("s_lc_10l", 8.0), ("v_d", 8.0), ("vxm", 1.0)])
def test_evaluation_reads_the_model_as_training_did(variant, energy, tmp_path, monkeypatch):
    commands = recorded(monkeypatch)
    comparison.train("vxm_0" if variant == "vxm" else variant, ["/a", "/b"], tmp_path, 600)
    comparison.evaluate(variant, variant, "/a", tmp_path, 16, 400)
    training, evaluation = of_command(commands[0]), of_command(commands[1])
    for part in ("layout", "likelihood", "prior", "mean_prior", "transform", "posterior_temperature"):
        trained, evaluated = (described(parser.get_parsed_content(part)) for parser in (training, evaluation))
        assert trained == evaluated, part
    assert training.get_parsed_content("energy") == energy
    expected = 0.5**0.5 if variant == "vxm" else 0.5 / 8**0.5
    assert evaluation.get_parsed_content("likelihood").sigma == pytest.approx(expected)
    if variant != "vxm":
        assert evaluation.get_parsed_content("layout").stencil.initial_std == 0.1
    # The pairs are evaluation's own: whole volumes of the test people.
    assert training.get_parsed_content("roi_size") == [72, 80, 96]
    assert evaluation.get_parsed_content("roi_size") is None
    assert evaluation.get_parsed_content("split_file") == comparison.TEST_SPLIT
    assert evaluation.get_parsed_content("dataset_dir") == "/a"
    assert bool(training.get_parsed_content("start_from")) == (variant != "vxm")


def test_an_empty_option_reaches_the_config_and_none_does_not(tmp_path):
    # What the commands rely on, by MONAI's own command line.
    (tmp_path / "config.yaml").write_text(
        f"start_from: mean.pt\nroi_size: [1]\nimports: [$import pathlib]\n"
        f"run: [\"$pathlib.Path('{tmp_path}/out').write_text(repr([@start_from, @roi_size]))\"]\n"
    )
    command = [sys.executable, "-m", "monai.bundle", "run", "--config_file", str(tmp_path / "config.yaml")]
    seen = []
    for value in ("", "None"):
        subprocess.run([*command, "--start_from", value, "--roi_size", "$None"], check=True, capture_output=True)
        seen.append((tmp_path / "out").read_text())
    assert seen == ["['', None]", "['mean.pt', None]"]


def members(folder, iterations):
    for name, iteration in zip(comparison.ENSEMBLE, iterations, strict=True):
        save_atomically({"progress": {"iteration": iteration}}, folder / name / "last.pt")


def test_the_ensemble_waits_for_all_members_and_is_evaluated_by_one_process(tmp_path, monkeypatch):
    commands = recorded(monkeypatch)
    call = ["--dataset_dir", "/a", "--work_dir", str(tmp_path), "--variants", "vxm_0", "--steps", "50"]
    members(tmp_path, [150, 150, 150, 150, 100])
    comparison.main(call)
    assert tasks(commands) == ["training"]
    members(tmp_path, [150] * 5)
    with comparison.claimed(tmp_path / "vxm5.lock"):
        comparison.main(call)
    assert tasks(commands) == ["training"] * 2
    comparison.main(call)
    assert tasks(commands) == ["training"] * 3 + ["evaluation", "add"]
    assert option(commands[-2], "ckpt_path").count("last.pt") == 5
    assert not (tmp_path / "vxm5.lock").exists()
