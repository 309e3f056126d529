"""The whole evaluation on synthetic brains: interrupted and resumed, one network and an ensemble, from a config."""

import json

import pytest
import torch
from ignite.engine import Events
from monai.bundle import ConfigParser

from scripts.core.seg35 import SCORED
from scripts.data.datalist import load_datalist
from scripts.data.pairs import PairDataset
from scripts.data.transforms import load_transforms
from scripts.evaluation.evaluator import Evaluation
from scripts.evaluation.pair_report import LabeledPair, evaluate_pair, pair_seed
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.results import PAIRS_FILE, SETTINGS_FILE, STRUCTURES_FILE, ResultsError
from scripts.inference.objectives import MeanObjective, SIRObjective
from scripts.inference.refine import refine
from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target

COARSE = {"num_subjects": 3, "shape": [24, 24, 32], "spacing": 7.0}
BATCHED = ("fixed", "moving", "fixed_label", "moving_label")
FEW = {"num_proposals": 6, "num_samples": 4, "temperature": 0.5, "progress": False}


def synthetic_pairs(**options):
    subjects = load_datalist(None, "all", synthetic={**COARSE, **options})
    return PairDataset(subjects, load_transforms(), preload=True)


@pytest.fixture(scope="module")
def dataset():
    return synthetic_pairs()


def untrained(deterministic=False, seed=0, gain=0.01):
    torch.manual_seed(seed)
    layout = ProposalLayout(rank=0, deterministic=True) if deterministic else ProposalLayout(rank=3)
    return ProposalNetwork(layout, UNetBackbone((4, 4, 4)), mean_gain=gain), layout


def evaluation(dataset, folder, network=None, **options):
    default, layout = untrained()
    options = {**FEW, "figures": False, **options}
    return Evaluation(network or default, layout, Target(NCCLikelihood(3)), dataset, SCORED, folder, **options)


def part(dataset, pairs):
    """The same subjects, without loading them again."""
    smaller = PairDataset(dataset.subjects, dataset.load, pairs)
    smaller._cache = dataset._cache
    return smaller


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


def test_interrupted_and_resumed(dataset, tmp_path, capsys):
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
    summary = resumed.run()
    assert "4/4 [" in capsys.readouterr().err
    assert [output is None for output in computed] == [True, True, False, False]
    folders = tmp_path / "straight", tmp_path / "resumed"
    assert (folders[0] / STRUCTURES_FILE).read_text() == (folders[1] / STRUCTURES_FILE).read_text()
    assert without_seconds(folders[0]) == without_seconds(folders[1])
    for group in ("structures", "spearman", "per_structure"):
        assert str(summary[group]) == str(straight[group])
    # A third time nothing is left to do.
    assert str(evaluation(four, tmp_path / "resumed").run()["structures"]) == str(straight["structures"])


def test_order_of_pairs_does_not_matter(dataset, tmp_path):
    forward = evaluation(part(dataset, dataset.pairs[:2]), tmp_path / "a")
    backward = evaluation(part(dataset, dataset.pairs[1::-1]), tmp_path / "b", chunk=4)
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
        evaluation(one, tmp_path, untrained(seed=1)[0]).run()
    with pytest.raises(ResultsError, match="num_samples was 4, now 3"):
        evaluation(one, tmp_path, num_samples=3).run()
    evaluation(one, tmp_path, untrained(seed=1)[0], resume=False).run()


def test_refuses_another_reading_of_the_same_weights(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    network, _ = untrained()

    def run(**reading):
        layout = ProposalLayout(rank=3, **reading)
        Evaluation(network, layout, Target(NCCLikelihood(3)), one, SCORED, tmp_path, figures=False, **FEW).run()

    run()
    with pytest.raises(ResultsError, match=r"layout\.initial_std was 0\.25, now 0\.1"):
        run(initial_std=0.1)
    with pytest.raises(ResultsError, match=r"layout\.dominance was None, now 0\.9"):
        run(dominance=0.9)
    run()  # as it was: goes on


def test_ensemble(dataset, tmp_path):
    members = [untrained(deterministic=True, seed=seed, gain=3.0) for seed in range(3)]
    networks, layout = [network for network, _ in members], members[0][1]
    two = part(dataset, dataset.pairs[:2])
    run = Evaluation(networks, layout, Target(NCCLikelihood(3)), two, SCORED, tmp_path, figures=False, progress=False)
    summary = run.run()
    assert summary["pairs"]["samples"]["mean"] == 3
    assert summary["structures"]["label_entropy"]["mean"] > 0
    assert summary["structures"]["dice_mu"] == summary["structures"]["dice_mean"]
    with pytest.raises(ValueError, match="deterministic ones as an ensemble, got 2"):
        evaluation(two, tmp_path, [untrained()[0], untrained()[0]])


def refined(dataset, folder, network=None, **options):
    """An evaluation with an objective to refine by; σ is small, so that a few steps show."""
    default, layout = untrained()
    target = Target(NCCLikelihood(3, 0.1))
    objective = SIRObjective(target, layout, num_proposals=3, num_resampled=2)
    options = {**FEW, "figures": False, "objective": objective, **options}
    return Evaluation(network or default, layout, target, dataset, SCORED, folder, **options)


@pytest.mark.parametrize("parts", ["mean", "all"])
def test_refinement_is_that_of_inference(dataset, tmp_path, parts):
    one = part(dataset, dataset.pairs[:1])
    run = refined(one, tmp_path / "refined", refine_steps=20, refine_parts=parts)
    plain = refined(one, tmp_path / "plain")
    summary, before = run.run(), plain.run()
    assert summary["structures"]["dice_mu"]["mean"] > before["structures"]["dice_mu"]["mean"] + 0.01
    assert run.store.results[0].pair["ncc_after"] > plain.store.results[0].pair["ncc_after"]
    assert run.store.results[0].pair["seconds_network"] > plain.store.results[0].pair["seconds_network"]

    pair = LabeledPair.from_batch({key: value[None] if key in BATCHED else value for key, value in one[0].items()})
    seed = pair_seed(pair.names)
    with torch.no_grad():
        raw = run.networks[0].eval()(torch.cat([pair.moving, pair.fixed], dim=1))
    by_hand = refine(raw, run.refinement.objective, pair.moving, pair.fixed, 20, parts=parts, seed=seed)
    assert by_hand.after > by_hand.before
    options = {name: FEW[name] for name in ("num_proposals", "num_samples", "temperature")}
    result = evaluate_pair(run.layout.gaussian(by_hand.raw), run.target, pair, SCORED, seed=seed, **options)
    assert str(result.structures) == str(run.store.results[0].structures)


def test_no_steps_change_nothing_and_steps_are_noted(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    evaluation(one, tmp_path / "a").run()
    settings = json.loads((tmp_path / "a" / SETTINGS_FILE).read_text())
    assert (settings["refine_steps"], settings["refine_parts"]) == (0, "mean")
    layout = untrained()[1]
    given = SIRObjective(Target(NCCLikelihood(3)), layout)
    evaluation(one, tmp_path / "b", objective=given, refine_steps=0).run()
    assert without_seconds(tmp_path / "a") == without_seconds(tmp_path / "b")
    with pytest.raises(ResultsError, match="refine_steps was 0, now 2"):
        evaluation(one, tmp_path / "a", objective=given, refine_steps=2).run()
    with pytest.raises(ResultsError, match="refine_parts was 'mean', now 'all'"):
        evaluation(one, tmp_path / "a", objective=given, refine_parts="all").run()
    with pytest.raises(ValueError, match="needs the objective"):
        evaluation(one, tmp_path / "a", refine_steps=2)
    # A folder from before there was a choice.
    old = {name: value for name, value in settings.items() if not name.startswith("refine")}
    (tmp_path / "a" / SETTINGS_FILE).write_text(json.dumps(old))
    with pytest.raises(ResultsError, match="refine_steps was 0, now 2"):
        evaluation(one, tmp_path / "a", objective=given, refine_steps=2).run()
    evaluation(one, tmp_path / "a").run()


def test_an_ensemble_is_refined_member_by_member(dataset, tmp_path):
    members = [untrained(deterministic=True, seed=seed, gain=3.0) for seed in range(2)]
    networks, layout = [network for network, _ in members], members[0][1]
    one, target = part(dataset, dataset.pairs[:1]), Target(NCCLikelihood(3, 0.1))
    dice = []
    for steps in (0, 20):
        run = Evaluation(
            networks, layout, target, one, SCORED, tmp_path / str(steps), figures=False, progress=False,
            objective=MeanObjective(target, layout), refine_steps=steps,
        )  # fmt: skip
        dice.append(run.run()["structures"]["dice_mean"]["mean"])
    assert dice[1] > dice[0] + 0.01


def test_scale_comes_from_training(dataset, tmp_path):
    network, _ = untrained()
    network.weight_scale.value.fill_(1e9)  # so large that all weights are equal
    one = part(dataset, dataset.pairs[:1])
    trained = evaluation(one, tmp_path / "trained", network)
    trained.run()
    assert trained.store.results[0].pair["ess"] == pytest.approx(6)
    own = evaluation(one, tmp_path / "own")
    own.run()
    assert own.store.results[0].pair["ess"] < 5.9


def test_voxel_sizes(dataset, tmp_path):
    one = part(dataset, dataset.pairs[:1])
    variances = []
    for voxel_mm in (None, [3.5, 3.5, 3.5]):  # the scans' own 7 mm, and half of it
        run = evaluation(one, tmp_path, voxel_mm=voxel_mm, resume=False)
        run.run()
        variances.append(run.store.results[0].pair["displacement_variance"])
    assert variances[0] == pytest.approx(4 * variances[1], rel=1e-5)


def test_from_a_config(tmp_path):
    parser = ConfigParser(
        {
            "layout": {"_target_": "scripts.networks.ProposalLayout", "rank": 2},
            "backbone": {"_target_": "scripts.networks.UNetBackbone", "channels": [4, 4, 4]},
            "network_def": {
                "_target_": "scripts.networks.ProposalNetwork",
                "layout": "@layout",
                "backbone": "@backbone",
            },
            "likelihood": {"_target_": "scripts.registration.local_correlation.NCCLikelihood", "window": 3},
            "target": {"_target_": "scripts.registration.target.Target", "likelihood": "@likelihood"},
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
                "network": "@network_def",
                "layout": "@layout",
                "target": "@target",
                "dataset": "@dataset",
                "labels": [1, 2, 20, 21],
                "output_dir": str(tmp_path),
                "num_proposals": 4,
                "num_samples": 2,
            },
            "evaluation": ["$@evaluator.run()"],
        }
    )
    (summary,) = parser.get_parsed_content("evaluation", instantiate=True)
    assert summary["num_pairs"] == 2


def test_refuses_other_scans_of_the_same_names(dataset, tmp_path):
    evaluation(part(dataset, dataset.pairs[:1]), tmp_path).run()
    for options, words in (({"roi_size": (24, 24, 24)}, "shape was"), ({"pixdim": 8.0}, "spacing was|shape was")):
        other = PairDataset(dataset.subjects, load_transforms(**options), dataset.pairs[:1])
        with pytest.raises(ResultsError, match=words):
            evaluation(other, tmp_path).run()
