from __future__ import annotations

from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser

from bundle import describe
from scripts.core.checkpoint import beside_weights, description_of, read, save_atomically
from scripts.inference.model import Fitted, Model
from scripts.inference.model_file import load_model

CONFIGS = Path(__file__).parents[2] / "configs"
PROGRESS = {"progress": {"epoch": 2, "iteration": 50}}


def configs(variant: str) -> str:
    return str([str(CONFIGS / "train.yaml"), str(CONFIGS / f"variants/{variant}.yaml")])


def of_config(variant: str) -> Model:
    torch.manual_seed(0)
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / "train.yaml"), str(CONFIGS / f"variants/{variant}.yaml")])
    return parser.get_parsed_content("model")


def write(path: Path, model: Model, temperature: float = 0.0, **training) -> Path:
    """A file as earlier versions wrote it."""
    state = {**model.network.state_dict(), "weight_scale.temperature": torch.tensor(temperature, dtype=torch.float64)}
    save_atomically({"network": state, **training} if training else state, path)
    return path


def test_files_of_weights_and_of_trainings_are_told_what_they_are(tmp_path, capsys):
    model = of_config("v_ld")
    paths = [write(tmp_path / "model.pt", model), write(tmp_path / "last.pt", model, **PROGRESS)]
    describe.main([*map(str, paths), "--config_file", configs("v_ld")])
    assert capsys.readouterr().out == "".join(f"{path}: described in {path}\n" for path in paths)
    pair = torch.rand(1, 2, 16, 16, 16)
    for path, beside in zip(paths, ({}, PROGRESS), strict=True):
        again = load_model(path)
        assert again.description() == model.description()
        assert torch.equal(again.network(pair), model.network(pair))
        assert beside_weights(read(path)) == beside
    before = [path.read_bytes() for path in paths]
    describe.main([*map(str, paths), "--config_file", configs("v_ld")])  # nothing is left to be done
    assert capsys.readouterr().out.count("says so already") == 2
    assert [path.read_bytes() for path in paths] == before


def test_a_temperature_stays_or_is_given(tmp_path):
    model = of_config("s_lc_10l")
    model.network.weight_scale.value.fill_(40.0)
    write(tmp_path / "fitted.pt", model, temperature=0.5)
    write(tmp_path / "plain.pt", model)
    command = ["--config_file", configs("s_lc_10l"), "--output", str(tmp_path / "out"), "--notes", "{pairs: 6}"]
    describe.main([str(tmp_path / "fitted.pt"), *command])
    describe.main([str(tmp_path / "plain.pt"), *command, "--temperature", "0.1"])
    fitted, plain = (load_model(tmp_path / f"out/{name}.pt").fitted for name in ("fitted", "plain"))
    assert (fitted, plain) == (Fitted(0.5, 40.0, {"pairs": 6}), Fitted(0.1, 40.0, {"pairs": 6}))
    assert description_of(read(tmp_path / "plain.pt")) is None  # the file itself is left alone


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("i_lc", "objective is 'importance' in the config, but 'sir' in the weights"),
        ("s_lc_svf", "network.layout.rank is 10 in the config, but 25"),
        ("s_lc_t2", "objective.temperature is 2.0 in the config, but 3.0"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, capsys, variant, words):
    path = tmp_path / "model.pt"
    of_config("s_lc").save(path)
    before = path.read_bytes()
    with pytest.raises(SystemExit, match="1"):
        describe.main([str(path), "--config_file", configs(variant)])
    assert words in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_file_of_another_network_or_temperature_is_refused(tmp_path, capsys):
    path = write(tmp_path / "model.pt", of_config("s_lc"), temperature=0.5)
    for variant, more, words in (
        ("v_c", [], "made for another architecture"),
        ("s_lc", ["--temperature", "2"], "--temperature 2.0: the weights"),
    ):
        with pytest.raises(SystemExit, match="1"):
            describe.main([str(path), "--config_file", configs(variant), *more])
        assert words in capsys.readouterr().err
        assert description_of(read(path)) is None
