"""A file of weights knows what it is: it comes back as it was, whatever the config, or is refused with both values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from monai.bundle import ConfigParser
from monai.networks.nets import SegResNet

from scripts.core.checkpoint import description_of, network_state, read, save_atomically
from scripts.core.errors import CheckpointError, DataError
from scripts.inference.model import Fitted, Model, Weighting
from scripts.inference.model_file import check_description, load_model
from scripts.inference.objectives import MeanObjective
from scripts.networks import MonaiBackbone, ProposalLayout, ProposalNetwork
from scripts.registration.target import Target

CONFIGS = Path(__file__).parents[2] / "configs"
VARIANTS = sorted(path.stem for path in (CONFIGS / "variants").glob("*.yaml"))
VELOCITY = {"_target_": "scripts.registration.transform.VelocityTransform"}


def of_config(variant: str = "s_lc_10l", **overrides: Any) -> Model:
    """The model of train.yaml and a variant, untrained; the same each time."""
    torch.manual_seed(0)
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / "train.yaml"), str(CONFIGS / f"variants/{variant}.yaml")])
    parser.update(overrides)
    return parser.get_parsed_content("model")


def output(model: Model) -> torch.Tensor:
    pair = torch.rand(1, 2, 16, 16, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model.network(pair)


@pytest.fixture
def saved(tmp_path) -> Path:
    of_config().save(tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_comes_back_from_its_file(variant, tmp_path):
    model = of_config(variant)
    model.network.weight_scale.value.fill_(7.0)
    model.save(tmp_path / "model.pt", epoch=3)
    content = torch.load(tmp_path / "model.pt", weights_only=True)
    assert content["epoch"] == 3
    again = load_model(tmp_path / "model.pt")
    assert again.description() == description_of(content) == model.description()
    assert torch.equal(output(again), output(model))
    assert type(again.objective) is type(model.objective)
    assert again.objective.target.settings() == model.target.settings()
    assert again.objective.layout is again.layout
    assert (again.voxel_mm, again.stride, again.layout.settings()) == (2.0, model.stride, model.layout.settings())
    assert again.weighting() == model.weighting()
    assert again.name == str(tmp_path / "model.pt")
    assert not again.network.training
    assert load_model(tmp_path / "model.pt", expected=model).description() == description_of(content)


@pytest.mark.parametrize(
    ("overrides", "name", "given", "known"),
    [
        ({"initial_std": 0.5}, "network.layout.initial_std", "0.5", "0.25"),  # fits in shape: it was taken silently
        ({"dominance": None}, "network.layout.dominance", "None", "0.95"),
        ({"factor_level": "quarter"}, "network.factor_level", "'quarter'", "'half'"),
        ({"rank": 5}, "network.layout.rank", "5", "10"),
        ({"voxel_mm": 1.0}, "voxel_mm", "1.0", "2.0"),
        ({"sigma": 0.25}, "target.likelihood.sigma", "0.25", "0.5"),
        ({"ncc_window": 9}, "target.likelihood.window", "9", "5"),
        ({"energy": 4.0}, "target.likelihood.sigma", "0.25", "0.5"),
        ({"prior_weight": 2.0}, "target.prior.weight", "2.0", "1.0"),
        ({"mean_prior": None}, "target.mean_prior", "None", "'kind': 'diffusion', 'weight': 2.5"),
        ({"transform": VELOCITY}, "target.transform", "'velocity'", "'displacement'"),
    ],
)
def test_a_config_that_contradicts_the_file_is_refused_with_both_values(saved, overrides, name, given, known):
    with pytest.raises(DataError) as error:
        load_model(saved, expected=of_config(**overrides))
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(f"{name} is {given} in the config, but ")
    assert known in message.split(" but ")[1]
    assert str(saved) in message


def test_what_changes_no_result_may_differ(saved):
    other = of_config(amp=True, factor_gain=0.7, temperature=2.0, num_proposals=4)
    assert load_model(saved, expected=other).objective.temperature == 3.0


def test_a_description_is_checked_as_far_as_it_means_something(saved):
    content = read(saved)
    check_description(content, of_config(temperature=2.0), saved)
    check_description(network_state(content), of_config(rank=3), saved)  # says nothing


class TestGivenFacts:
    def test_those_that_are_true_pass(self):
        model = of_config(energy=4.0, column_rate=100.0)
        model.check({"rank": 10, "voxel_mm": 2, "channels": [16, 24, 24, 24], "ncc_window": 5, "column_rate": 100})
        model.check(
            {"sigma": 0.25, "prior_weight": 4, "mean_prior_weight": 10.0}
        )  # as the weights have it, energy and all
        model.check({"temperature": 0.1, "num_proposals": 3, "output": "warped"})  # nothing that the weights know

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"rank": 25}, "--rank 25: the weights .* were trained with 10"),
            ({"voxel_mm": 1.0}, "--voxel_mm 1.0: .* 2.0"),
            ({"cross_channel": "none"}, "--cross_channel none: .* voxel"),
            ({"channels": [8, 8, 8]}, r"--channels \[8, 8, 8\]: .* \[16, 24, 24, 24\]"),
            ({"sigma": 0.5}, "--sigma 0.5: .* 0.25"),
            ({"prior_weight": 1.0}, "--prior_weight 1.0: .* 4.0"),
            ({"dominance": None}, "--dominance None: .* 0.95"),
        ],
    )
    def test_those_that_are_not_are_refused(self, given, words):
        with pytest.raises(DataError, match=words):
            of_config(energy=4.0).check(given)


def earlier(path: Path, model: Model, temperature: float = 0.0, scale: float = float("nan"), **more: Any) -> Path:
    """A file as earlier versions wrote it."""
    model.network.weight_scale.value.fill_(scale)
    state = {**model.network.state_dict(), "weight_scale.temperature": torch.tensor(temperature, dtype=torch.float64)}
    save_atomically({"network": state, **more} if more else state, path)
    return path


class TestFilesOfEarlierVersions:
    @pytest.mark.parametrize("more", [{}, {"progress": {"iteration": 3}}])
    def test_the_config_says_what_they_are(self, tmp_path, more):
        model = of_config("v_ld")
        path = earlier(tmp_path / "old.pt", model, **more)
        again = load_model(path, expected=of_config("v_ld"))
        assert again.description() == model.description()
        assert torch.equal(output(again), output(model))
        with pytest.raises(CheckpointError, match="made for another architecture"):
            load_model(path, expected=of_config("v_lc"))

    def test_without_a_config_they_are_what_such_files_usually_were(self, tmp_path, caplog):
        again = load_model(earlier(tmp_path / "old.pt", of_config(), scale=7.0))
        assert "taken for S+LC 10L at 2 mm" in caplog.text
        assert again.description() == of_config().description()
        assert again.weighting() == Weighting(3.0, 7.0)

    @pytest.mark.parametrize("variant", ["s_lc_10l", "i_lc"])
    def test_what_was_fitted_to_them_stays(self, tmp_path, variant):
        path = earlier(tmp_path / "old.pt", of_config(variant), temperature=0.1, scale=40.0)
        again = load_model(path, expected=of_config(variant))
        assert again.fitted == Fitted(0.1, 40.0)
        again.save(tmp_path / "new.pt")
        assert load_model(tmp_path / "new.pt").weighting() == Weighting(0.1, 40.0)

    def test_a_temperature_without_a_scale_was_of_the_pair_s_own_spread(self, tmp_path):
        path = earlier(tmp_path / "old.pt", of_config("i_lc"), temperature=0.5)
        assert load_model(path, expected=of_config("i_lc")).weighting() == Weighting(0.5, None)


@pytest.mark.parametrize(
    "description",
    [{"format": "structured-sir model", "version": 2}, {"format": "something else", "version": 1}, "a network"],
)
@pytest.mark.parametrize("expected", [True, False])
def test_a_later_version_is_refused(saved, description, expected):
    save_atomically({**read(saved), "description": description}, saved)
    with pytest.raises(CheckpointError, match="expected a description of version 1 or earlier"):
        load_model(saved, expected=of_config() if expected else None)


def test_a_kind_that_is_not_known_is_refused(saved):
    content = read(saved)
    description_of(content)["target"]["likelihood"]["kind"] = "mutual information"
    save_atomically(content, saved)
    with pytest.raises(DataError, match=r"expected one of .*mse.*ncc.*, got 'mutual information'"):
        load_model(saved)


def test_a_missing_file_says_what_to_do(tmp_path):
    with pytest.raises(DataError, match="there is no such file; name trained weights with --ckpt_path"):
        load_model(tmp_path / "nothing.pt")


def test_nan_is_not_saved_and_the_old_file_stays(saved):
    model, before = of_config(), saved.read_bytes()
    with torch.no_grad():
        model.network.mean_head.weight.fill_(float("nan"))
    with pytest.raises(CheckpointError, match=r"NaN or infinite numbers: mean_head\.weight"):
        model.save(saved)
    assert saved.read_bytes() == before


def test_a_resolution_that_is_none_is_refused():
    model = of_config()
    with pytest.raises(DataError, match="--voxel_mm must be positive, got 0"):
        Model(model.network, model.objective, voxel_mm=0.0)


class TestEnsembles:
    def files(self, folder: Path, *options: dict[str, Any]) -> list[Path]:
        paths = []
        for i, overrides in enumerate(options):
            model = of_config("mean", **overrides)
            with torch.no_grad():
                model.network.mean_head.weight.mul_(i + 1)
            model.save(folder / f"{i}.pt")
            paths.append(folder / f"{i}.pt")
        return paths

    def test_the_members_fields_lie_side_by_side(self, tmp_path):
        paths = self.files(tmp_path, {}, {})
        model = load_model(paths, expected=of_config("mean"))
        expected = torch.cat([output(load_model(path)) for path in paths], dim=1)
        assert torch.equal(output(model), expected)
        assert not torch.equal(expected[:, :3], expected[:, 3:])
        assert model.layout.proposal(expected).limit == 2
        assert model.weighting() == Weighting(0.0, None)
        assert model.weighting(2.0) == Weighting(2.0, None)
        assert model.name == f"{paths[0]}, {paths[1]}"
        model.save(tmp_path / "both.pt")
        again = load_model(tmp_path / "both.pt")
        assert torch.equal(output(again), expected)
        assert again.description() == model.description()

    @pytest.mark.parametrize(
        ("other", "words"),
        [({"sigma": 0.25}, r"likelihood\.sigma is 0\.5 in .*0\.pt, but 0\.25 in the weights .*1\.pt"),
         ({"voxel_mm": 1.0}, r"voxel_mm is 2\.0 in .*0\.pt, but 1\.0 in the weights .*1\.pt")],
    )  # fmt: skip
    def test_members_of_different_posteriors_are_refused(self, tmp_path, other, words):
        with pytest.raises(DataError, match=words):
            load_model(self.files(tmp_path, {}, other))


class TestWeighting:
    """T and σ_α: as asked for, else as fitted, else as the objective of the training has it."""

    def trained(self, variant: str) -> Model:
        model = of_config(variant, temperature=2.5)
        if variant != "mean":
            model.network.weight_scale.value.fill_(7.0)  # of V and I: left over from the S that they started from
        return model

    @pytest.mark.parametrize(
        ("variant", "expected"),
        [("s_lc", (2.5, 7.0)), ("v_lc", (0.0, None)), ("i_lc", (1.0, None)), ("mean", (0.0, None))],
    )
    def test_not_fitted(self, variant, expected):
        assert self.trained(variant).weighting() == expected
        assert self.trained(variant).weighting(0.5) == (0.5, expected[1])

    @pytest.mark.parametrize("variant", ["s_lc", "i_lc", "v_lc"])
    def test_fitted(self, variant):
        model = self.trained(variant)
        model.fitted = Fitted(0.1, 40.0, {"pairs": 6})
        assert model.weighting() == (0.1, 40.0)
        assert model.weighting(0.0) == (0.0, 40.0)

    def test_fresh_weights_have_no_spread(self):
        assert of_config("s_lc").weighting() == (3.0, None)

    def test_what_was_fitted_is_in_the_file(self, tmp_path):
        model = of_config("s_lc")
        model.fitted = Fitted(0.1, 40.0, {"criterion": "ause", "pairs": 6})
        model.save(tmp_path / "model.pt")
        assert load_model(tmp_path / "model.pt").fitted == model.fitted


def test_a_backbone_that_was_built_elsewhere_cannot_be_described():
    # One that is given by name comes back from its file: the variant s_lc_segresnet.
    layout = ProposalLayout(rank=0, deterministic=True)
    built = SegResNet(spatial_dims=3, init_filters=8, in_channels=2, out_channels=4)
    model = Model(ProposalNetwork(layout, MonaiBackbone(built, features=4)), MeanObjective(Target(), layout))
    with pytest.raises(DataError, match="the backbone's network must be given by name and arguments"):
        model.description()
    with pytest.raises(DataError, match=r"the name of a network of monai\.networks\.nets, got 'system'"):
        MonaiBackbone({"name": "system"}, features=4)


def test_a_network_of_another_sort_cannot_be_described():
    layout = ProposalLayout(rank=0, deterministic=True)
    with pytest.raises(DataError, match="Linear cannot be stored with what its output means"):
        Model(torch.nn.Linear(2, 2), MeanObjective(Target(), layout)).description()
