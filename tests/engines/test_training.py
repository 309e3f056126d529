from __future__ import annotations

import csv

import pytest
import torch

from scripts.core.checkpoint import read
from scripts.engines.errors import NonFiniteTrainingError
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


def state(path):
    content = read(path)
    return content["network"], content["optimizer"], content["progress"]


def assert_same(a, b):
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
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
    assert all(torch.isfinite(v).all() for v in content["network"].values())


def test_warm_start_from_the_mean(tmp_path):
    train(tmp_path / "mean", ("variants/mean.yaml",))
    workflow = make_workflow(tmp_path / "s", start_from=str(tmp_path / "mean/last.pt"))
    workflow.initialize()
    workflow.parser.get_parsed_content("train::trainer")
    network = workflow.parser.get_parsed_content("network")
    mean = read(tmp_path / "mean/last.pt")["network"]
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
