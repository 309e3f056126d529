"""The whole evaluation on synthetic brains: interrupted and resumed, one network and an ensemble, from a config."""

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from ignite.engine import Events
from monai.bundle import ConfigParser

from scripts.core.errors import DataError
from scripts.core.seg35 import SCORED
from scripts.data.datalist import load_datalist
from scripts.data.pairs import PairDataset
from scripts.data.transforms import load_transforms
from scripts.evaluation.evaluator import Evaluation
from scripts.evaluation.pair_report import LabeledPair, evaluate_pair, pair_seed
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.perturb import perturbation
from scripts.evaluation.results import PAIRS_FILE, SETTINGS_FILE, STRUCTURES_FILE, ResultsError
from scripts.inference.model import Fitted, Model
from scripts.inference.model_file import load_model
from scripts.inference.objectives import ImportanceObjective, MeanObjective, SIRObjective, VariationalObjective
from scripts.inference.refine import refine_all, refine_mean
from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.sampler import Sampler
from scripts.posterior.steps import prepared
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target
from tests.evaluation.brains import Always

CONFIGS = Path(__file__).parents[2] / "configs"
COARSE = {"num_subjects": 3, "shape": [24, 24, 32], "spacing": 7.0}
FEW = {"num_proposals": 6, "num_samples": 4, "temperature": 0.5, "progress": False}


def synthetic_pairs(**options):
    subjects = load_datalist(None, "all", synthetic={**COARSE, **options})
    return PairDataset(subjects, load_transforms(), preload=True)


@pytest.fixture(scope="module")
def dataset():
    return synthetic_pairs()


def untrained(deterministic=False, seed=0, gain=0.01, objective=None, sigma=0.5, transform=None, **reading):
    """A model of random weights."""
    torch.manual_seed(seed)
    layout = ProposalLayout(rank=0, deterministic=True) if deterministic else ProposalLayout(rank=3, **reading)
    network = ProposalNetwork(layout, UNetBackbone((4, 4, 4)), mean_gain=gain)
    target = Target(NCCLikelihood(3, sigma), transform=transform)
    if deterministic:
        return Model(network, MeanObjective(target, layout), 7.0)
    if objective is not None:
        return Model(network, objective(target, layout), 7.0)
    few = SIRObjective(target, layout, num_proposals=3, num_resampled=2, scale=network.weight_scale)
    return Model(network, few, 7.0)


def evaluation(dataset, folder, model=None, settings=None, **options):
    sampler = Sampler(model or untrained(), {**FEW, **(settings or {})})
    return Evaluation(sampler, dataset, SCORED, folder, **{"figures": False, "progress": False, **options})


def part(dataset, pairs, **options):
    """The same subjects, without loading them again."""
    smaller = PairDataset(dataset.subjects, dataset.load, pairs, **options)
    smaller._cache = dataset._cache
    return smaller


def noted(folder):
    return json.loads((folder / SETTINGS_FILE).read_text())


def without_seconds(folder):
    lines = [line.split(",") for line in (folder / PAIRS_FILE).read_text().splitlines()]
    keep = [i for i, name in enumerate(lines[0]) if not name.startswith("seconds")]
    return [[line[i] for i in keep] for line in lines]


def test_end_to_end(tmp_path, capsys):
    dataset = synthetic_pairs(shape=[40, 48, 56], spacing=4.0)
    run = evaluation(dataset, tmp_path, figures=True, name="untrained")
    outputs = []
    run.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: outputs.append(engine.state.output))
    summary = run.run()
    assert summary["num_pairs"] == len(outputs) == 6
    assert all(isinstance(output, PairResult) for output in outputs)
    assert outputs[0].labels == SCORED
    assert run.state.metrics["dice_mean"] == summary["structures"]["dice_mean"]["mean"]
    assert 0.3 < summary["structures"]["dice_mean"]["mean"] <= summary["structures"]["dice_oracle"]["mean"] < 0.9
    assert 0 < summary["pairs"]["displacement_variance"]["mean"] < 100
    saved = json.loads((tmp_path / "summary.json").read_text())
    assert saved["structures"]["ece"] == pytest.approx(summary["structures"]["ece"])
    assert "untrained" in capsys.readouterr().out
    assert "AUSE_label" in (tmp_path / "tables.txt").read_text()
    assert len(list((tmp_path / "figures").glob("*.png"))) == 9
    assert len((tmp_path / STRUCTURES_FILE).read_text().splitlines()) == 1 + 6 * len(SCORED)


def test_interrupted_and_resumed(dataset, tmp_path, caplog):
    four = part(dataset, dataset.pairs[:4])
    straight = evaluation(four, tmp_path / "straight").run()

    interrupted = evaluation(four, tmp_path / "resumed")

    def power_failure(engine):
        # After the pair was computed and before it was filed.
        if engine.state.iteration == 3:
            raise KeyboardInterrupt

    interrupted._event_handlers[Events.ITERATION_COMPLETED].insert(0, (power_failure, (interrupted,), {}))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run()
    resumed = evaluation(four, tmp_path / "resumed", progress=True)
    assert len(resumed.store) == 2
    computed = []
    resumed.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: computed.append(engine.state.output))
    with caplog.at_level(logging.INFO, "scripts.core.progress"):
        summary = resumed.run()
    assert caplog.messages[-1] == "evaluation: 4 of 4"
    assert [output is None for output in computed] == [True, True, False, False]
    folders = tmp_path / "straight", tmp_path / "resumed"
    assert (folders[0] / STRUCTURES_FILE).read_text() == (folders[1] / STRUCTURES_FILE).read_text()
    assert without_seconds(folders[0]) == without_seconds(folders[1])
    for group in ("structures", "spearman", "per_structure"):
        assert str(summary[group]) == str(straight[group])
    # A third time nothing is left to do.
    assert str(evaluation(four, tmp_path / "resumed").run()["structures"]) == str(straight["structures"])


def test_order_of_pairs_and_workers_do_not_matter(dataset, tmp_path):
    forward = evaluation(part(dataset, dataset.pairs[:2]), tmp_path / "a")
    backward = evaluation(part(dataset, dataset.pairs[1::-1]), tmp_path / "b", settings={"chunk": 4}, num_workers=1)
    forward.run()
    backward.run()
    for a, b in zip(forward.store.results, reversed(backward.store.results), strict=True):
        assert (a.fixed, a.moving) == (b.fixed, b.moving)
        for name in a.structures:
            assert a.structures[name] == pytest.approx(b.structures[name], abs=1e-6, nan_ok=True)


def test_refuses_another_network_in_the_same_folder(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    evaluation(one, tmp_path).run()
    with pytest.raises(ResultsError, match="weights was"):
        evaluation(one, tmp_path, untrained(seed=1)).run()
    with pytest.raises(ResultsError, match="num_samples was 4, now 3"):
        evaluation(one, tmp_path, settings={"num_samples": 3}).run()
    with pytest.raises(ResultsError, match="seed was 0, now 1"):
        evaluation(one, tmp_path, seed=1).run()
    evaluation(one, tmp_path, settings={"chunk": 2}, num_workers=1).run()  # no result depends on these: goes on
    evaluation(one, tmp_path, untrained(seed=1), resume=False).run()


def test_refuses_another_reading_of_the_same_weights(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    evaluation(one, tmp_path).run()
    with pytest.raises(ResultsError, match=r"network\.layout\.initial_std was 0\.25, now 0\.1"):
        evaluation(one, tmp_path, untrained(initial_std=0.1)).run()
    with pytest.raises(ResultsError, match=r"network\.layout\.dominance was None, now 0\.9"):
        evaluation(one, tmp_path, untrained(dominance=0.9)).run()
    with pytest.raises(ResultsError, match=r"target\.likelihood\.sigma was 0\.5, now 0\.7"):
        evaluation(one, tmp_path, untrained(sigma=0.7)).run()
    evaluation(one, tmp_path).run()  # as it was: goes on


def test_refuses_other_scans_of_the_same_names(dataset, tmp_path):
    first = dataset.pairs[:1]
    evaluation(part(dataset, first), tmp_path).run()
    for options, words in (({"roi_size": (24, 24, 24)}, "shape was"), ({"pixdim": 8.0}, "spacing was|shape was")):
        other = PairDataset(dataset.subjects, load_transforms(**options), first)
        with pytest.raises(ResultsError, match=words):
            evaluation(other, tmp_path).run()
    with pytest.raises(ResultsError, match=r"transform\.Perturbation\.name was None, now 'blur'"):
        evaluation(part(dataset, first, transform=perturbation("blur")), tmp_path).run()


def test_refuses_the_folder_of_an_earlier_version(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    evaluation(one, tmp_path).run()
    (tmp_path / SETTINGS_FILE).write_text(json.dumps({"layout.rank": 3, "num_proposals": 6, "temperature": 0.5}))
    with pytest.raises(ResultsError, match=r"holds 1 pairs of other settings: .* and \d+ more"):
        evaluation(one, tmp_path).run()


def saved(folder, *models):
    """Models as files."""
    paths = [folder / f"{k}.pt" for k in range(len(models))]
    for path, model in zip(paths, models, strict=True):
        model.save(path)
    return paths


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_ensemble_of_files(dataset, tmp_path, deterministic):
    files = saved(tmp_path, *(untrained(deterministic, seed, gain=3.0) for seed in range(2)))
    model = load_model(files)
    two, settings = part(dataset, dataset.pairs[:2]), {"temperature": None}
    run = evaluation(two, tmp_path / "both", model, settings)
    summary = run.run()
    assert noted(tmp_path / "both")["network.members.1.kind"] == "proposal_network"
    assert (summary["pairs"]["unique"]["mean"], summary["pairs"]["ess"]["mean"]) == (2, pytest.approx(2))
    assert summary["structures"]["label_entropy"]["mean"] > 0
    assert summary["structures"]["dice_mu"] == summary["structures"]["dice_mean"]
    # By hand: each member's mean field, alike.
    pair = LabeledPair.of_item(two[0])
    with torch.no_grad():
        images = torch.cat([pair.images.moving, pair.images.fixed], dim=1)
        fields = torch.cat([load_model(file).network(images)[:, :3] for file in files])
    space, truth = pair.images.space, pair.fixed_label
    maps = [space.warp_labels(pair.moving_label, displacement) for displacement in space.displacement(fields)]
    dice = torch.stack([dice_per_structure(one, truth, SCORED) for one in maps])  # [2, S]
    expected = dice[dice.nanmean(1).argmax()].tolist()
    assert run.store.results[0].structures["dice_oracle"] == pytest.approx(expected, nan_ok=True)
    with pytest.raises(ResultsError, match=r"network\.kind was 'ensemble_network'"):
        evaluation(two, tmp_path / "both", load_model(files[0]), settings).run()


def test_an_ensemble_is_refined_member_by_member(dataset, tmp_path):
    model = load_model(saved(tmp_path, *(untrained(True, seed, gain=3.0, sigma=0.1) for seed in range(2))))
    one = part(dataset, dataset.pairs[:1])
    plain, refined = (
        evaluation(one, tmp_path / str(n), model, {"temperature": None, "refine_steps": n}).run() for n in (0, 20)
    )  # fmt: skip
    assert refined["structures"]["dice_mean"]["mean"] > plain["structures"]["dice_mean"]["mean"] + 0.01
    assert refined["pairs"]["unique"]["mean"] == 2


@pytest.mark.parametrize("parts", ["mean", "all"])
def test_refinement_is_that_of_inference(dataset, tmp_path, parts):
    one, model = part(dataset, dataset.pairs[:1]), untrained(sigma=0.1)  # so small that a few steps show
    run = evaluation(one, tmp_path / "refined", model, {"refine_steps": 20, "refine_parts": parts})
    plain = evaluation(one, tmp_path / "plain", model)
    summary, before = run.run(), plain.run()
    assert summary["structures"]["dice_mu"]["mean"] > before["structures"]["dice_mu"]["mean"] + 0.01
    assert run.store.results[0].pair["ncc_after"] > plain.store.results[0].pair["ncc_after"]
    assert run.store.results[0].pair["seconds_network"] > plain.store.results[0].pair["seconds_network"]

    pair = LabeledPair.of_item(one[0])
    seed, images = pair_seed(pair.names), prepared(model.target, pair.images)
    with torch.no_grad():
        raw = model.network(torch.cat([pair.images.moving, pair.images.fixed], dim=1))
    if parts == "all":
        raw = refine_all(raw, model.objective, images, 20, seed=seed).raw
    else:
        raw = model.layout.with_means(raw, refine_mean(model.layout.means(raw), model.target, images, 20).mean)

    sampler = Sampler(Model(Always(model.layout, raw), model.objective), {**FEW, "seed": seed})
    result = evaluate_pair(sampler, pair, SCORED)
    assert str(result.structures) == str(run.store.results[0].structures)


def test_steps_are_noted(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    evaluation(one, tmp_path).run()
    now = noted(tmp_path)
    assert (now["refine_steps"], now["refine_parts"], now["detail_steps"]) == (0, "mean", 0)
    for name, value in (("refine_steps", 2), ("refine_parts", "all"), ("detail_steps", 1)):
        with pytest.raises(ResultsError, match=f"{name} was {now[name]!r}, now {value!r}"):
            evaluation(one, tmp_path, settings={name: value}).run()


def test_scale_comes_from_training(dataset, tmp_path):
    model = untrained()
    model.network.weight_scale.value.fill_(1e9)  # so large that all weights are equal
    one = part(dataset, dataset.pairs[:1])
    trained = evaluation(one, tmp_path / "trained", model)
    trained.run()
    assert trained.store.results[0].pair["ess"] == pytest.approx(6)
    own = evaluation(one, tmp_path / "own")
    own.run()
    assert own.store.results[0].pair["ess"] < 5.9


@pytest.mark.parametrize(
    ("objective", "temperature", "scale"),
    [(VariationalObjective, 0.0, None), (ImportanceObjective, 1.0, None), (SIRObjective, 3.0, 40.0)],
)
def test_samples_are_weighed_as_their_training_says(dataset, tmp_path, objective, temperature, scale):
    model = untrained(objective=objective)
    model.network.weight_scale.value.fill_(40.0)  # V and I may have been started from weights of S
    (file,) = saved(tmp_path, model)
    one, settings = part(dataset, dataset.pairs[:1]), {"temperature": None}
    run = evaluation(one, tmp_path / "out", load_model(file), settings)
    run.run()
    now = noted(tmp_path / "out")
    assert (now["weighting.temperature"], now["weighting.scale"]) == (temperature, scale)
    # By hand
    pair = LabeledPair.of_item(one[0])
    sampler = Sampler(model, {**FEW, **settings, "seed": pair_seed(pair.names)})
    log_weights = sampler.posterior(pair.images).draws.proposals.log_weights
    spread = log_weights.std() if scale is None else scale
    weights = torch.softmax(temperature * log_weights / spread, dim=0)
    assert run.store.results[0].pair["ess"] == pytest.approx(float(1 / weights.square().sum()))
    assert (run.store.results[0].pair["ess"] == pytest.approx(6)) == (temperature == 0)


def test_what_was_fitted_counts_unless_it_is_left_aside(dataset, tmp_path):
    model, one = untrained(), part(dataset, dataset.pairs[:1])
    model.network.weight_scale.value.fill_(40.0)
    model.fitted = Fitted(8.0, 55.0)
    expected = {
        "used": (None, True, (8.0, 55.0)),
        "aside": (None, "false", (3.0, 40.0)),
        "asked": (2.0, True, (2.0, 55.0)),
    }
    for name, (temperature, calibrated, weighting) in expected.items():
        run = evaluation(one, tmp_path / name, model, {"temperature": temperature}, calibrated=calibrated)
        run.run()
        now = noted(tmp_path / name)
        assert (now["weighting.temperature"], now["weighting.scale"]) == weighting
    assert model.fitted is not None  # nobody else's model was changed


def test_voxel_sizes(dataset, tmp_path):
    """The same arrays with voxels of half the size: displacements are half as long, all else is the same."""

    class Halved(PairDataset):
        def __getitem__(self, k):
            item = super().__getitem__(k)
            for role in ("fixed", "moving"):
                item[role].affine = item[role].affine @ torch.diag(torch.tensor([0.5, 0.5, 0.5, 1.0])).double()
            return item

    one = part(dataset, dataset.pairs[:1])
    halved = Halved(dataset.subjects, dataset.load, dataset.pairs[:1])
    results = []
    for name, pairs in (("a", one), ("b", halved)):
        run = evaluation(pairs, tmp_path / name)
        run.run()
        results.append(run.store.results[0])
    variances = [result.pair["displacement_variance"] for result in results]
    assert variances[0] == pytest.approx(4 * variances[1], rel=1e-5)
    assert results[0].structures["ece"] == pytest.approx(results[1].structures["ece"], nan_ok=True)


def test_scans_without_labels_are_an_error(dataset, tmp_path):
    bare = PairDataset(dataset.subjects, load_transforms(keys=["image"]), dataset.pairs[:1])
    with pytest.raises(DataError, match="evaluation needs images and label maps"):
        evaluation(bare, tmp_path).run()


def test_from_a_config(tmp_path):
    (weights,) = saved(tmp_path, untrained())
    parser = ConfigParser(
        {
            "model": {"_target_": "scripts.inference.model_file.load_model", "paths": str(weights)},
            "sampler": {"_target_": "scripts.posterior.sampler.Sampler", "model": "@model", "settings": FEW},
            "subjects": {
                "_target_": "scripts.data.datalist.load_datalist",
                "split": "all",
                "synthetic": {**COARSE, "num_subjects": 2},
            },
            "dataset": {
                "_target_": "scripts.data.pairs.PairDataset",
                "subjects": "@subjects",
                "load": {"_target_": "scripts.data.transforms.load_transforms"},
            },
            "evaluator": {
                "_target_": "scripts.evaluation.evaluator.Evaluation",
                "sampler": "@sampler",
                "dataset": "@dataset",
                "labels": [1, 2, 20, 21],
                "output_dir": str(tmp_path / "out"),
            },
            "evaluation": ["$@evaluator.run()"],
        }
    )
    (summary,) = parser.get_parsed_content("evaluation", instantiate=True)
    assert summary["num_pairs"] == 2


SHIPPED = {"s_lc_t4": (4.0, None), "v_lc": (0.0, None), "i_lc": (1.0, None), "vxm": (0.0, None)}


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize("variant", SHIPPED)
def test_the_shipped_configs_weigh_each_variant_in_its_own_way(tmp_path, variant, described):
    """Whether the file of weights says what it is, or is of an earlier version, so that the config has to."""
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / name) for name in ("train.yaml", f"variants/{variant}.yaml", "evaluate.yaml")])
    parser["device"], parser["ckpt_path"] = "cpu", str(tmp_path / "model.pt")
    model = parser.get_parsed_content("configured")
    if described:
        model.save(tmp_path / "model.pt")
    else:
        torch.save(model.network.state_dict(), tmp_path / "model.pt")
    sampler = parser.get_parsed_content("sampler")
    assert sampler.model.weighting(sampler.settings.temperature) == SHIPPED[variant]
    assert asdict(sampler.settings) == asdict(replace(sampler.settings, num_proposals=1200, num_samples=80))
