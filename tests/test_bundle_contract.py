"""What MONAI's own tools expect of a bundle."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from monai.bundle import ConfigParser, verify_net_in_out

from scripts.core.checkpoint import description_of, network_state, read
from scripts.inference.model import FACTS
from tests.engines.conftest import ROOT, TINY, train

CONFIGS = ("configs/**/*.yaml", "configs/**/*.json", "experiments/*.yaml", "experiments/*.json")
PRESETS = sorted((ROOT / "configs/presets").iterdir())
# Every expression that MONAI evaluates in a shipped config; a new one is to be looked at before it is added here.
EXPRESSIONS = {
    "$@bundle_root + '/output/training'",
    "$@bundle_root + '/output/tiny'",
    "$@bundle_root + '/output/paper'",
    "$@bundle_root + '/output/localnet'",
    "$@bundle_root + '/output/voxelmorph'",
    "$@bundle_root + '/output/comparison'",
    "$@bundle_root + '/configs/splits/oasis_ixi.json'",
    "$@bundle_root + '/experiments/weights/mean.pt'",
    "$@bundle_root + '/configs/splits/oasis.json'",
    "$@bundle_root + '/output/one_mm'",
    "$@output_dir + '/start.pt'",
    "$@bundle_root + '/models/model_1mm.pt'",
    "$@bundle_root + '/experiments/weights/s_lc_10l.pt'",
    "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
    "$@network_def.to(@device)",
    "$@network.parameters()",
    "$@network_def.weight_scale",
    "$@epoch_length * @batch_size",
    "$None if @dataset_dir is None else @voxel_mm",
    "$@overlap is not None",
    "$@epoch_length * @batch_size * torch.distributed.get_world_size()",
    "$@train::trainer.run()",
    "$import torch",
    "$import sys",
    "$sys.path.insert(0, @bundle_root)",
    "$@output_dir + '/model.pt'",
    "$@output_dir + '/evaluation_' + '_'.join(filter(None, [@split, @perturb]))",
    "$@output_dir + '/evaluation_' + '_'.join(filter(None, [@split, 'files', @perturb]))",
    "$@output_dir + '/calibration'",
    "$@output_dir + '/dice.csv'",
    "$@calibrator.run()",
    "$@evaluator.run()",
    "$@bundle_root + '/output/inference'",
    "$@bundle_root",
    "$@bundle_root + '/models/model.pt'",
    "$@model.network",
    "$@model.stride",
    "$@model.voxel_mm",
    "$@output_dir + '/example'",
    "$@bundle_root + '/output/atlas'",
    "$@application.run()",
    "$@sigma / @energy ** 0.5",
    "$@prior_weight * @energy",
    "$@mean_prior_weight * @energy",
    "$0.5 ** 0.5",
    "$2 * 0.01 * 8 / 9",
}


def bundle_run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, "-m", "monai.bundle", "run", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def tiny_arguments(output_dir: Path) -> list[str]:
    settings = {**TINY, "output_dir": str(output_dir)}
    return [part for name, value in settings.items() for part in (f"--{name}", str(value))]


def test_network_has_the_input_and_output_that_the_metadata_states():
    verify_net_in_out(
        net_id="network_def",
        meta_file=str(ROOT / "configs/metadata.json"),
        config_file=str(ROOT / "configs/train.yaml"),
        device="cpu",
        n=2,
    )


def test_expressions_in_configs_are_the_listed_ones():
    found = set()

    def walk(node):
        if isinstance(node, dict):
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)
        elif isinstance(node, str) and node.startswith("$"):
            found.add(node)

    for path in (path for pattern in CONFIGS for path in ROOT.glob(pattern)):
        walk(yaml.safe_load(path.read_text()))
    assert found <= EXPRESSIONS, found - EXPRESSIONS
    assert found == EXPRESSIONS, f"not used any more: {EXPRESSIONS - found}"


def test_metadata_names_the_pinned_versions():
    metadata = json.loads((ROOT / "configs/metadata.json").read_text())
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / "requirements.txt").read_text(), re.M))
    assert metadata["monai_version"] == pins["monai"]
    assert metadata["pytorch_version"] == pins["torch"]
    assert metadata["numpy_version"] == pins["numpy"]
    for name, version in metadata["required_packages_version"].items():
        assert pins[name] == version, name


def test_nobody_is_in_two_splits():
    for path in (ROOT / "configs/splits").glob("*.json"):
        content = json.loads(path.read_text())
        person = {name: group[0] for group in content["same_person"] for name in group}
        parts = {
            k: {person.get(n, n) for n in v} for k, v in content.items() if isinstance(v, list) and k != "same_person"
        }
        names = list(parts)
        for i, first in enumerate(names):
            for second in names[i + 1 :]:
                assert not parts[first] & parts[second], (path, first, second)
        assert len(parts["test"]) == 8


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.name)
def test_presets_only_override(preset):
    names = ("train.yaml", "evaluate.yaml") if preset.suffix == ".yaml" else ("inference.json",)
    base: dict[str, Any] = {}
    for name in names:
        base |= yaml.safe_load((ROOT / "configs" / name).read_text())
    for key in yaml.safe_load(preset.read_text()):
        if f"'@{key}'" in preset.read_text():
            continue  # an option of the preset's own parts
        part = base
        for name in key.split("::"):
            assert name in part, key
            part = part[name]


def inference(*presets: str, **settings: Any) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(ROOT / f"configs/{name}.json") for name in ("inference", *presets)])
    parser.update({"bundle_root": str(ROOT), **settings})
    return parser


def test_weights_know_what_they_are():
    parser = inference(ckpt_path=str(ROOT / "experiments/weights/s_lc_10l.pt"))
    model = parser.get_parsed_content("model")
    assert model.network.column_rate == 100.0
    assert model.target.likelihood.sigma == pytest.approx(0.5 / 8**0.5)
    assert parser.get_parsed_content("network_def") is model.network


def test_no_value_stands_in_both_training_and_inference():
    train, infer = yaml.safe_load((ROOT / "configs/train.yaml").read_text()), inference().config
    both = {name for name in set(train) & set(infer) if not isinstance(train[name], dict | list)}
    # Where things are and how it is computed; facts of the model are in the weights.
    assert both == {
        "bundle_root",
        "output_dir",
        "dataset_dir",
        "device",
        "amp",
        "seed",
        "num_proposals",
        "temperature",
        "run",
    }
    assert not set(FACTS) & set(infer)


def test_the_preset_for_1_mm_reads_its_weights():
    model = inference("presets/one_mm").get_parsed_content("model")
    assert (model.stride, model.voxel_mm, model.fitted.temperature) == (16, 1.0, 0.1)
    train = ConfigParser()
    train.read_config([str(ROOT / f"configs/{name}.yaml") for name in ("train", "presets/one_mm")])
    train["fixed_facts"] = {name: f"@{name}" for name in FACTS}
    model.check(train.get_parsed_content("fixed_facts"))  # what it was trained as


def test_the_fast_preset_leaves_refinement_out():
    settings = inference("presets/fast").get_parsed_content("sampler").settings
    assert (settings.refine_steps, settings.detail_steps) == (0, 0)
    assert settings.num_samples == 40


def test_training_then_evaluation_by_command(tmp_path):
    run = tmp_path / "ünï cödé run"
    done = bundle_run("training", "--config_file", "configs/train.yaml", *tiny_arguments(run))
    assert done.returncode == 0, done.stderr[-2000:]
    configs = "['configs/train.yaml','configs/evaluate.yaml']"
    sizes = ["--evaluated_proposals", "8", "--evaluated_samples", "4", "--num_pairs", "2"]
    done = bundle_run("evaluation", "--config_file", configs, *tiny_arguments(run), *sizes)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Oracle (DSC)" in done.stdout
    assert "AUSE_label" in done.stdout
    summary = json.loads((run / "evaluation_val/summary.json").read_text())
    assert summary
    rows = list(csv.DictReader((run / "evaluation_val/pair_summaries.csv").open()))
    assert len(rows) == 2
    done = bundle_run("evaluation", "--config_file", configs, *tiny_arguments(run), *sizes, "--perturb", "rotate")
    assert done.returncode == 0, done.stderr[-2000:]
    disturbed = list(csv.DictReader((run / "evaluation_val_rotate/pair_summaries.csv").open()))
    assert [row["dice_before"] for row in disturbed] != [row["dice_before"] for row in rows]
    configs = "['configs/train.yaml','configs/evaluate.yaml','configs/calibrate.yaml']"
    done = bundle_run("calibration", "--config_file", configs, *tiny_arguments(run), *sizes)
    assert done.returncode == 0, done.stderr[-2000:]
    assert description_of(read(run / "model.pt"))["fitted"]["temperature"] > 0


def test_training_from_another_directory(tmp_path):
    settings = {**TINY, "output_dir": "here"}
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    config = str(ROOT / "configs/train.yaml")
    done = bundle_run("training", "--config_file", config, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "here/last.pt").is_file()


def test_failing_training_ends_with_a_non_zero_exit_code(tmp_path):
    # Through the whole command: a step so long that the weights overflow.
    arguments = [*tiny_arguments(tmp_path), "--learning_rate", "1e30", "--max_epochs", "3"]
    done = bundle_run("training", "--config_file", "configs/train.yaml", *arguments)
    assert done.returncode != 0
    assert re.search(r"NaN (or|and \d+) infinite|nearly singular|not finite", done.stdout + done.stderr)
    if (tmp_path / "last.pt").exists():
        assert all(torch.isfinite(v).all() for v in network_state(read(tmp_path / "last.pt")).values())


def test_run_is_the_default_name_of_training(tmp_path):
    done = bundle_run("--config_file", "configs/train.yaml", *tiny_arguments(tmp_path), "--max_epochs", "1")
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "last.pt").is_file()


def test_ensemble_of_deterministic_networks_by_config(tmp_path):
    from monai.bundle import ConfigWorkflow

    for name in ("a", "b"):
        train(tmp_path / name, ("variants/vxm.yaml",), batch_size=1)
    configs = [str(ROOT / "configs" / c) for c in ("train.yaml", "variants/vxm.yaml", "evaluate.yaml")]
    settings = {**TINY, "output_dir": str(tmp_path / "e"), "num_pairs": 2, "name": "Vxm2"}
    settings["ckpt_path"] = [str(tmp_path / name / "model.pt") for name in ("a", "b")]
    workflow = ConfigWorkflow(
        config_file=configs,
        meta_file=str(ROOT / "configs/metadata.json"),
        logging_file=False,
        workflow_type="infer",
        **settings,
    )
    workflow.initialize()
    assert not workflow.check_properties()
    workflow.parser.get_parsed_content("evaluator").run()
    assert (tmp_path / "e/evaluation_val/summary.json").is_file()
