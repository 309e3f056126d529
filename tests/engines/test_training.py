from __future__ import annotations

import csv
import shutil

import pytest
import torch
from monai.utils.enums import CommonKeys as Keys

from scripts.core.checkpoint import beside_weights, network_state, read, save_atomically
from scripts.engines.updates import NonFiniteTrainingError
from scripts.inference.model import Fitted
from scripts.inference.model_file import load_model
from scripts.posterior.pair_images import PairImages
from scripts.posterior.sampler import Sampler
from scripts.registration.warp import warp
from tests.engines.conftest import ROOT, make_workflow, train

VARIANTS = sorted(path.name for path in (ROOT / "configs/variants").glob("*.yaml"))
PAPER_ROWS = {
    *["v_d", "v_ld", "v_c", "v_lc", "i_lc", "s_d", "s_ld", "s_c", "s_lc", "s_lc_10l", "vxm", "s_lc_svf"],
    *["s_lc_5l", "s_lc_20l", "s_lc_30l", "s_lc_t2", "s_lc_t4"],
}


def test_there_is_a_variant_for_each_row_of_the_paper():
    assert {name.removesuffix(".yaml") for name in VARIANTS} >= PAPER_ROWS


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_passes_check_properties_and_trains_two_steps(variant, tmp_path):
    workflow = make_workflow(tmp_path, (f"variants/{variant}",), batch_size=1)
    workflow.initialize()
    assert not workflow.check_properties()
    before = {k: v.clone() for k, v in workflow.parser.get_parsed_content("network").state_dict().items()}
    workflow.run()
    after = workflow.parser.get_parsed_content("network").state_dict()
    assert all(torch.isfinite(v).all() for k, v in after.items() if "weight_scale" not in k)
    changed = [k for k in after if not torch.equal(after[k], before[k])]
    assert {k for k in after if "scale" not in k} <= set(changed)
    (row,) = list(csv.DictReader((tmp_path / "validation.csv").open()))
    assert 0 < float(row["dice"]) < 1
    model = workflow.parser.get_parsed_content("model")
    figures = {"variance", "ess", "khat"}
    assert figures & row.keys() == (set() if model.layout.deterministic else figures)
    for name in ("last.pt", "model.pt"):
        again = load_model(tmp_path / name)
        assert again.description() == model.description()
        assert_same(dict(again.network.state_dict()), dict(after))


def state(path):
    content = read(path)
    return network_state(content), content["optimizer"], content["progress"]


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def test_same_seed_gives_bit_identical_weights(tmp_path):
    for name in ("a", "b"):
        torch.manual_seed(3)
        train(tmp_path / name)
    assert_same(state(tmp_path / "a/last.pt"), state(tmp_path / "b/last.pt"))


def test_two_epochs_and_a_resumption_of_two_equal_four(tmp_path):
    torch.manual_seed(3)
    train(tmp_path / "whole", max_epochs=4)
    torch.manual_seed(3)
    train(tmp_path / "parts", max_epochs=2)
    torch.manual_seed(99)  # the checkpoint brings the random state back
    train(tmp_path / "parts", max_epochs=4)
    assert_same(read(tmp_path / "whole/last.pt"), read(tmp_path / "parts/last.pt"))
    whole, parts = ((tmp_path / n / "validation.csv").read_text() for n in ("whole", "parts"))
    assert whole == parts


def as_earlier(path, temperature=0.0):
    """The file as earlier versions wrote it."""
    content = read(path)
    network = {**network_state(content), "weight_scale.temperature": torch.tensor(temperature, dtype=torch.float64)}
    save_atomically({"network": network, **beside_weights(content)}, path)


def test_a_training_of_an_earlier_version_is_resumed(tmp_path):
    train(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    as_earlier(tmp_path / "b/last.pt")
    for name in ("a", "b"):
        train(tmp_path / name, max_epochs=2)
    assert_same(read(tmp_path / "a/last.pt"), read(tmp_path / "b/last.pt"))


class TestWhatIsFittedAfterTraining:
    def calibrated(self, path):
        """A file of S with a T that was fitted, and the spread of its log-weights."""
        model = make_workflow(path.parent / "s").parser.get_parsed_content("model")
        model.network.weight_scale.value.fill_(40.0)
        model.fitted = Fitted(2.5, 40.0)
        model.save(path)

    @pytest.mark.parametrize("earlier", [False, True])
    @pytest.mark.parametrize(("variant", "temperature"), [("v_ld", 0.0), ("i_lc", 1.0)])
    def test_others_do_not_take_it_from_the_weights_that_they_start_from(self, variant, temperature, earlier, tmp_path):
        self.calibrated(tmp_path / "s.pt")
        if earlier:
            as_earlier(tmp_path / "s.pt", 2.5)
        train(tmp_path, (f"variants/{variant}.yaml",), start_from=str(tmp_path / "s.pt"), epoch_length=1)
        model = load_model(tmp_path / "last.pt")
        assert model.fitted is None
        assert model.weighting() == (temperature, None)
        assert model.network.weight_scale.value.isnan()

    @pytest.mark.parametrize("earlier", [False, True])
    def test_training_further_forgets_it(self, earlier, tmp_path):
        path, variant = tmp_path / "last.pt", ("variants/v_ld.yaml",)
        train(tmp_path, variant, epoch_length=1)
        if earlier:
            as_earlier(path, 2.5)
        else:
            model = load_model(path)
            model.fitted = Fitted(2.5, 40.0)
            model.save(path, **beside_weights(read(path)))
        train(tmp_path, variant, epoch_length=1, max_epochs=2)
        assert read(path)["progress"]["epoch"] == 2
        assert load_model(path).fitted is None
        assert not [name for name in network_state(read(path)) if "temperature" in name]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    train(folder, epoch_length=1)
    return folder


def refused(workflow, capsys) -> str:
    """The one line with which a command ends."""
    capsys.readouterr()
    workflow.initialize()
    with pytest.raises(SystemExit, match="1"):
        workflow.run()
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    return line


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"initial_std": 0.5}, "network.layout.initial_std is 0.5 in the config, but 0.25 in the weights"),
        ({"sigma": 0.25}, "target.likelihood.sigma is 0.25 in the config, but 0.5 in the weights"),
        ({"ncc_window": 5}, "target.likelihood.window is 5 in the config, but 3 in the weights"),
        ({"voxel_mm": 1.0}, "voxel_mm is 1.0 in the config, but 2.0 in the weights"),
        ({"factor_level": "quarter"}, "network.factor_level is 'quarter' in the config, but 'half' in the weights"),
    ],
)
def test_weights_that_mean_something_else_are_not_trained_on(trained, overrides, words, capsys):
    before = (trained / "last.pt").read_bytes()
    line = refused(make_workflow(trained, **overrides, max_epochs=2), capsys)
    assert line.startswith(f"error: {words} {trained / 'last.pt'}")
    assert (trained / "last.pt").read_bytes() == before


def test_they_may_be_started_from(trained, tmp_path):
    workflow = make_workflow(tmp_path, start_from=str(trained / "last.pt"), initial_std=0.5)
    workflow.initialize()
    workflow.parser.get_parsed_content("train::trainer")
    network = workflow.parser.get_parsed_content("network")
    assert torch.equal(network.mean_head.weight, network_state(read(trained / "last.pt"))["mean_head.weight"])


def test_a_network_that_cannot_be_described_is_refused_before_anything_is_trained(tmp_path, capsys):
    built = {"_target_": "monai.networks.nets.SegResNet", "spatial_dims": 3, "init_filters": 8, "in_channels": 2}
    built["out_channels"] = 16
    line = refused(make_workflow(tmp_path, ("variants/s_lc_segresnet.yaml",), **{"backbone::network": built}), capsys)
    assert line == "error: the backbone's network must be given by name and arguments: {name: SegResNet, …}"
    assert not list(tmp_path.glob("*.pt"))


def test_validation_sees_the_posterior_that_the_file_gives(trained):
    workflow = make_workflow(trained, epoch_length=1)
    workflow.initialize()
    trainer = workflow.parser.get_parsed_content("train::trainer")
    evaluator = workflow.parser.get_parsed_content("validate::evaluator")
    trainer.network.train()
    evaluator.run()
    output = evaluator.state.output
    settings = workflow.parser.get_parsed_content("validate::update").sampler.settings
    sampler = Sampler(load_model(trained / "last.pt"), settings)
    pair = output[Keys.IMAGE]
    posterior = sampler.posterior(PairImages.on_one_grid(pair[:, :1], pair[:, 1:]))
    assert posterior.draws.scale == float(sampler.model.network.weight_scale.value)
    assert (posterior.draws.temperature, len(posterior.draws.weights)) == (3.0, 32)
    mean = posterior.space.on_work(posterior.mean[None])
    torch.testing.assert_close(output["warped"], warp(pair[:, :1], mean))
    counts = [count for _, count, _ in posterior.samples()]
    fields = torch.stack([posterior.space.on_work(points[None])[0] for _, _, points in posterior.samples()])
    repeated = fields.repeat_interleave(torch.tensor(counts), dim=0)
    assert len(repeated) == 8
    torch.testing.assert_close(output["std"], repeated.var(0, correction=0).sum(0).sqrt()[None, None])
    figures = {"variance": float(repeated.var(0, correction=0).mean()), "ess": posterior.draws.ess / 32}
    assert output["figures"] == pytest.approx({**figures, "khat": posterior.draws.khat}, nan_ok=True)


@pytest.mark.parametrize("max_epochs", [2, 1])  # as many as were asked for before, or fewer
def test_a_finished_training_is_left_as_it_is(max_epochs, tmp_path, caplog):
    train(tmp_path, max_epochs=2)
    names = ("last.pt", "model.pt", "training.csv", "validation.csv", "validation.png")
    paths = [path for name in names if (path := tmp_path / name).exists()]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths]
    caplog.set_level("INFO", logger="scripts.engines")
    caplog.clear()
    workflow = train(tmp_path, max_epochs=max_epochs)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in paths] == before
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("scripts.engines")]
    assert lines == [f"{tmp_path / 'last.pt'} is finished after iteration 4: nothing to train"]
    assert_same(dict(workflow.parser.get_parsed_content("network").state_dict()), state(tmp_path / "last.pt")[0])
    assert workflow.parser.get_parsed_content("validate::evaluator").state.iteration == 0


def test_nan_batch_stops_with_the_iteration_and_the_pair_and_leaves_finite_checkpoints(tmp_path):
    workflow = make_workflow(tmp_path, max_epochs=3)
    workflow.initialize()
    trainer = workflow.parser.get_parsed_content("train::trainer")
    prepare = trainer.prepare_batch

    def poisoned(batch, *args, **kwargs):
        pair, fixed = prepare(batch, *args, **kwargs)
        if trainer.state.iteration == 4:
            pair[0, 0, 0, 0, 0] = float("nan")
        return pair, fixed

    trainer.prepare_batch = poisoned
    with pytest.raises(NonFiniteTrainingError, match=r"iteration 4, at the pair synthetic_\d+ -> synthetic_\d+"):
        trainer.run()
    content = read(tmp_path / "last.pt")
    assert content["progress"]["epoch"] == 1
    assert all(torch.isfinite(v).all() for v in network_state(content).values())


def test_warm_start_from_the_mean(tmp_path):
    train(tmp_path / "mean", ("variants/mean.yaml",))
    workflow = make_workflow(tmp_path / "s", start_from=str(tmp_path / "mean/last.pt"))
    workflow.initialize()
    workflow.parser.get_parsed_content("train::trainer")
    network = workflow.parser.get_parsed_content("network")
    mean = network_state(read(tmp_path / "mean/last.pt"))
    assert torch.equal(network.mean_head.weight, mean["mean_head.weight"])


def test_two_runs_in_one_process_do_not_mix(tmp_path):
    # Another shape in the second run: nothing cached from the first may be used.
    train(tmp_path / "a")
    synthetic = {"num_subjects": 14, "seed": 1, "shape": [16, 16, 32], "spacing": 9.0}
    torch.manual_seed(0)
    train(tmp_path / "b", synthetic=synthetic)
    torch.manual_seed(0)
    train(tmp_path / "c", synthetic=synthetic)
    assert_same(state(tmp_path / "b/last.pt")[0], state(tmp_path / "c/last.pt")[0])


def test_training_leaves_figures_pictures_and_tensorboard(tmp_path):
    train(tmp_path, max_epochs=5)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"last.pt", "model.pt", "training.csv", "validation.csv", "validation.png"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    rows = list(csv.DictReader((tmp_path / "validation.csv").open()))
    assert [int(row["epoch"]) for row in rows] == [1, 2, 3, 4, 5]
    assert {"dice", "variance", "ess", "khat"} <= rows[0].keys()
    (row,) = list(csv.DictReader((tmp_path / "training.csv").open()))
    assert int(row["iteration"]) == 10
    assert {"loss", "ess", "weight_scale", "learning_rate", "grad_norm"} <= row.keys()
