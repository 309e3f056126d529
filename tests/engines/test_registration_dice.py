from __future__ import annotations

import csv
import math
from itertools import product

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import DataLoader, MetaTensor
from monai.engines import SupervisedEvaluator
from monai.inferers import SimpleInferer
from monai.metrics import DiceMetric

from scripts.core.processes import Processes
from scripts.engines.handlers.registration_dice import RegistrationDice

SHAPE = (7, 8, 9)
LABELS = (1, 2, 5)


def make_batch(pairs, seed=0, values=(0, *LABELS, 9)):
    """Label maps of large blocks, and their names."""
    rng = np.random.default_rng(seed)
    coarse = rng.choice(values, size=(2, pairs, 1, 4, 4, 5))
    fixed, moving = coarse.repeat(2, 3).repeat(2, 4).repeat(2, 5)[..., :7, :8, :9]
    names = {f"{role}_name": [f"{role[0]}{k}" for k in range(pairs)] for role in ("fixed", "moving")}
    return {"fixed_label": torch.tensor(fixed), "moving_label": torch.tensor(moving), **names}


def make_fields(*leading, seed=0):
    return 1.5 * torch.randn(*leading, 3, *SHAPE, generator=torch.Generator().manual_seed(seed))


def nearest(moving, field):
    """[X, Y, Z] and [3, X, Y, Z], voxel by voxel."""
    out = np.empty_like(moving)
    for index in product(*map(range, SHAPE)):
        place = [math.floor(i + float(field[(a, *index)]) + 0.5) for a, i in enumerate(index)]
        out[index] = moving[tuple(np.clip(p, 0, n - 1) for p, n in zip(place, SHAPE, strict=True))]
    return out


def counted(prediction, truth, labels=LABELS):
    """Dice of each structure by counting."""
    rows = []
    for label in labels:
        a, b = prediction == label, truth == label
        rows.append(2 * (a & b).sum() / (a.sum() + b.sum()) if a.any() or b.any() else np.nan)
    return np.array(rows)


def run(handler, batches, outputs):
    engine = Engine(lambda engine, batch: outputs[engine.state.iteration - 1])
    handler.attach(engine)
    engine.run(batches)
    return engine.state.metrics


def decollated(content):
    return [{key: value[k] for key, value in content.items()} for k in range(len(next(iter(content.values()))))]


@pytest.mark.parametrize("listed", [False, True])
def test_a_field_a_pair(listed, tmp_path):
    batches = [make_batch(2, 0), make_batch(1, 1)]
    outputs = [{"ddf": make_fields(len(batch["fixed_name"]), seed=k)} for k, batch in enumerate(batches)]
    expected, before = [], []
    for batch, output in zip(batches, outputs, strict=True):
        for k, field in enumerate(output["ddf"]):
            fixed, moving = (batch[key][k, 0].numpy() for key in ("fixed_label", "moving_label"))
            expected.append(counted(nearest(moving, field), fixed))
            before.append(counted(moving, fixed))
    if listed:
        batches, outputs = ([decollated(content) for content in part] for part in (batches, outputs))
    metrics = run(RegistrationDice(LABELS, csv_path=tmp_path / "new/dice.csv"), batches, outputs)
    names = {"dice", "dice_unregistered", "dice_1", "dice_2", "dice_5"}
    assert set(metrics) == names
    assert metrics["dice"] == pytest.approx(np.mean(np.mean(expected, axis=1)))
    assert metrics["dice_unregistered"] == pytest.approx(np.mean(before))
    assert [metrics[f"dice_{k}"] for k in LABELS] == pytest.approx(np.mean(expected, axis=0))
    rows = list(csv.DictReader((tmp_path / "new/dice.csv").open()))
    assert [(row["fixed"], row["moving"]) for row in rows] == [("f0", "m0"), ("f1", "m1"), ("f0", "m0")]
    assert set(rows[0]) == names | {"fixed", "moving"}
    assert [[float(row[f"dice_{k}"]) for k in LABELS] for row in rows] == [pytest.approx(each) for each in expected]


def test_samples():
    batch, samples = make_batch(2), make_fields(2, 4)
    samples += make_fields(2, 1, seed=9)  # so that the mean is no zero
    metrics = run(RegistrationDice(LABELS, per_structure=False), [batch], [{"ddf": samples}])
    mean, single, vote = [], [], []
    for k in range(2):
        fixed, moving = (batch[key][k, 0].numpy() for key in ("fixed_label", "moving_label"))
        mean.append(counted(nearest(moving, samples[k].mean(0)), fixed))
        warped = np.stack([nearest(moving, field) for field in samples[k]])
        single.append([counted(each, fixed) for each in warped])
        # 9 is no structure; it wins ties like the background, then the first.
        candidates = (0, *LABELS)
        votes = np.stack([(np.where(warped == 9, 0, warped) == value).sum(0) for value in candidates])
        vote.append(counted(np.array(candidates)[votes.argmax(0)], fixed))
    assert set(metrics) == {"dice", "dice_unregistered", "dice_most_probable", "dice_single"}
    assert metrics["dice"] == pytest.approx(np.mean(mean))
    assert metrics["dice_single"] == pytest.approx(np.mean(single))
    assert metrics["dice_most_probable"] == pytest.approx(np.mean(vote))
    assert len({round(value, 6) for value in metrics.values()}) == 4


def test_it_agrees_with_the_metric_of_monai_in_an_evaluator():
    batch, fields = make_batch(3, values=(0, 1, 2)), make_fields(3)

    class Network(torch.nn.Module):
        def forward(self, image):
            return fields[image[:, 0, 0, 0, 0].long()]

    items = [
        {
            "image": MetaTensor(torch.full((1, *SHAPE), float(k))),
            "label": MetaTensor(batch["fixed_label"][k]),
            "segmentation": MetaTensor(batch["moving_label"][k], meta={"filename_or_obj": "/data/p/seg.nii.gz"}),
        }
        for k in range(3)
    ]
    metrics = {}
    for decollate in (False, True):
        handler = RegistrationDice([1, 2], ddf="pred", fixed_label="label", moving_label="segmentation")
        evaluator = SupervisedEvaluator(
            device=torch.device("cpu"),
            val_data_loader=DataLoader(items, batch_size=2),
            network=Network(),
            inferer=SimpleInferer(),
            key_val_metric={"overlap": handler},
            decollate=decollate,
        )
        evaluator.run()
        metrics[decollate] = evaluator.state.metrics
        assert evaluator.state.best_metric == evaluator.state.metrics["overlap"]
    assert metrics[True] == metrics[False]

    reference = DiceMetric(include_background=False, num_classes=3)
    warped = [nearest(batch["moving_label"][k, 0].numpy(), fields[k]) for k in range(3)]
    reference(torch.tensor(np.stack(warped))[:, None].long(), batch["fixed_label"].long())
    assert metrics[True]["overlap"] == pytest.approx(float(reference.aggregate()))


def test_fields_are_pulled_back_along_the_axes_of_the_array():
    moving = torch.zeros(1, 1, *SHAPE, dtype=torch.int32)
    moving[0, 0, 3, 4, 5] = 1
    field = torch.zeros(1, 3, *SHAPE)
    field[:, 0], field[:, 2] = 1.0, -2.0
    batch = {"moving_label": moving, "fixed_label": moving.roll((-1, 2), (2, 4))}
    metrics = run(RegistrationDice([1]), [batch], [{"ddf": field}])
    assert (metrics["dice"], metrics["dice_unregistered"]) == (1.0, 0.0)
    half = run(RegistrationDice([1]), [batch], [{"ddf": field.half()}])
    assert half["dice"] == 1.0


def test_what_is_in_neither_map_is_left_out_and_what_is_in_one_counts():
    fixed, moving = (torch.zeros(2, 1, *SHAPE, dtype=torch.int32) for _ in range(2))
    fixed[0, :, :2], moving[0, :, :2] = 1, 1  # the first pair has 1 only, the second 1 and, in one map, 2
    fixed[1, :, :2], moving[1, :, :2], moving[1, :, 4:] = 1, 1, 2
    metrics = run(
        RegistrationDice([1, 2, 3]),
        [{"fixed_label": fixed, "moving_label": moving}],
        [{"ddf": torch.zeros(2, 3, *SHAPE)}],
    )
    assert metrics["dice"] == pytest.approx((1 + 0.5) / 2)
    assert (metrics["dice_1"], metrics["dice_2"]) == (1, 0)
    assert math.isnan(metrics["dice_3"])


def test_the_rows_of_several_processes_are_one_table(tmp_path, monkeypatch):
    batches = [make_batch(3)]
    outputs = [{"ddf": make_fields(3)}]
    alone = run(RegistrationDice(LABELS, csv_path=tmp_path / "alone.csv"), batches, outputs)
    told = []

    def gather(processes, text):
        told.append(text)
        return told[::-1]

    monkeypatch.setattr(Processes, "gather", gather)
    for rank in (1, 0):  # so that the first one, at last, hears them all
        monkeypatch.setattr(Processes, "current", classmethod(lambda cls, rank=rank: cls(rank, 2)))
        share = {key: value[rank::2] for key, value in (batches[0] | outputs[0]).items()}
        metrics = run(RegistrationDice(LABELS, csv_path=tmp_path / f"{rank}.csv"), [share], [{}])
    assert metrics == pytest.approx(alone)
    assert (tmp_path / "0.csv").read_text() == (tmp_path / "alone.csv").read_text()
    assert not (tmp_path / "1.csv").exists()


def test_a_second_epoch_starts_anew():
    handler = RegistrationDice(LABELS)
    first = run(handler, [make_batch(1, 0)], [{"ddf": make_fields(1)}])
    second = run(handler, [make_batch(1, 1)], [{"ddf": make_fields(1)}])
    assert second != first
    assert second == run(RegistrationDice(LABELS), [make_batch(1, 1)], [{"ddf": make_fields(1)}])


@pytest.mark.parametrize(
    ("output", "labels", "message"),
    [
        ({"other": torch.zeros(1)}, LABELS, "expected 'ddf' in the engine's output or batch"),
        ({"ddf": torch.zeros(1, 2, *SHAPE)}, LABELS, r"expected fields of shape .* got \[2, 7, 8, 9\]"),
        ({"ddf": torch.zeros(1, 3, *SHAPE)}, [77], "none of the structures .77. is in the label maps of f0 and m0"),
    ],
)
def test_what_is_missing_is_said(output, labels, message):
    with pytest.raises(ValueError, match=message):
        run(RegistrationDice(labels), [make_batch(1)], [output])
