"""The metric classes, alone and attached to an Ignite engine through MONAI's handler."""

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from monai.data import MetaTensor
from monai.handlers import IgniteMetricHandler
from scipy import ndimage

from scripts.evaluation.calibration import (
    binary_entropy,
    reliability_curve,
    sparsification_curves,
    voxel_error,
)
from scripts.evaluation.ignite_metrics import AUSE, ECE
from scripts.posterior.label_samples import LabelSamples

LABELS = [1, 300]
SHAPE = (14, 15, 16)


def pair(seed, samples=6):
    """A true label map [1, X, Y, Z] of two smooth blobs, and samples [K, X, Y, Z] of it with moved boundaries."""
    rng = np.random.default_rng(seed)
    base = ndimage.gaussian_filter(rng.standard_normal(SHAPE), 2)

    def label_map():
        field = base + 0.03 * ndimage.gaussian_filter(rng.standard_normal(SHAPE), 1)
        return torch.from_numpy((field > 0.04) * 1 + (field < -0.04) * 300).to(torch.int16)

    return label_map()[None], torch.stack([label_map() for _ in range(samples)])


def naive_scores(samples, truth):
    """ECE and AUSE of each structure with SciPy's morphology and a one-hot mean."""
    rows = []
    for label in LABELS:
        structure = (truth[0] == label).numpy()
        boundary = structure & ~ndimage.binary_erosion(structure, border_value=1)
        ribbon = torch.from_numpy(ndimage.binary_dilation(boundary, iterations=3))
        p, y = (samples == label).double().mean(0)[ribbon], torch.from_numpy(structure)[ribbon]
        area = sparsification_curves(binary_entropy(p), voxel_error(p, y)).area
        rows.append([reliability_curve(p, y).error, area])
    return torch.tensor(rows, dtype=torch.float64).T  # [2, S]


CALIBRATION = [(ECE, 0), (AUSE, 1)]


@pytest.mark.parametrize(("metric", "row"), CALIBRATION)
def test_agrees_with_full_volumes_for_every_kind_of_prediction(metric, row):
    (truth, samples), (truth2, samples2) = pair(0), pair(1)
    expected = torch.stack([naive_scores(samples, truth)[row], naive_scores(samples2, truth2)[row]])
    assert (expected > 0).all()
    p, p2 = (torch.stack([(s == label).double().mean(0) for label in LABELS]) for s in (samples, samples2))
    predictions = {
        "a batch of samples": (metric(LABELS), torch.stack([samples, samples2]), torch.stack([truth, truth2])),
        "a list of samples": (metric(LABELS), [samples, samples2.float()], [truth, truth2.float()]),
        "MetaTensors": (metric(LABELS), [MetaTensor(samples), MetaTensor(samples2)], [MetaTensor(truth), truth2]),
        "accumulators": (
            metric(LABELS),
            [LabelSamples.from_maps(s, LABELS) for s in (samples, samples2)],
            [truth, truth2],
        ),
        "probabilities": (metric(LABELS, probabilities=True), torch.stack([p, p2]), torch.stack([truth, truth2])),
    }
    for name, (score, y_pred, y) in predictions.items():
        rows = score(y_pred, y)
        torch.testing.assert_close(rows, expected, rtol=0, atol=1e-12, msg=name)
        torch.testing.assert_close(score.aggregate(), expected.mean(), msg=name)
        torch.testing.assert_close(score.aggregate("mean_batch"), expected.mean(0), msg=name)
        assert torch.equal(score.aggregate("none"), rows), name


def test_weighted_samples_count_by_their_weight():
    truth, samples = pair(0, samples=3)
    weighted = LabelSamples(LABELS)
    for sample, weight in zip(samples, (2, 1, 1), strict=True):
        weighted.add(sample, weight)
    repeated = torch.cat([samples[:1], samples])
    torch.testing.assert_close(ECE(LABELS)([weighted], [truth]), ECE(LABELS)([repeated], [truth]), rtol=0, atol=1e-15)


def test_absent_structures_are_left_out_and_never_reported_as_zero():
    truth, samples = pair(0)
    here = torch.where(truth == 300, 0, truth)
    there = torch.where(samples == 300, 0, samples)
    score = ECE(LABELS)
    rows = score(torch.stack([samples, there]), torch.stack([truth, here]))
    assert rows[1].isnan().tolist() == [False, True]
    per_structure = score.aggregate("mean_batch")
    torch.testing.assert_close(per_structure, torch.stack([rows[:, 0].mean(), rows[0, 1]]))
    torch.testing.assert_close(score.aggregate(), per_structure.mean())
    nowhere = ECE([999])
    nowhere(samples[None], truth[None])
    assert nowhere.aggregate().isnan()


def test_reset_forgets():
    truth, samples = pair(0)
    score = AUSE(LABELS)
    score(samples[None], truth[None])
    score.reset()
    with pytest.raises(ValueError, match=r"at least one pair before AUSE.aggregate\(\), got none"):
        score.aggregate()


def test_attached_to_an_engine_through_monai():
    pairs = [pair(seed) for seed in range(3)]

    def step(engine, batch):
        truth, samples = pairs[batch]
        return {
            "tensors": (samples[None], truth[None]),
            "lists": ([samples], [truth]),
            "accumulated": ([LabelSamples.from_maps(samples, LABELS)], [truth]),
        }

    engine = Engine(step)
    for metric in (ECE, AUSE):
        for kind in ("tensors", "lists", "accumulated"):
            handler = IgniteMetricHandler(metric_fn=metric(LABELS), output_transform=lambda x, kind=kind: x[kind])
            handler.attach(engine, f"{metric.__name__}_{kind}")
    by_structure = ECE(LABELS, reduction="mean_batch")
    IgniteMetricHandler(metric_fn=by_structure, output_transform=lambda x: x["tensors"]).attach(engine, "by_structure")

    for epochs in (1, 2):  # the second epoch must not remember the first
        engine.run(range(3), max_epochs=epochs)
        scores = torch.stack([naive_scores(samples, truth) for truth, samples in pairs])  # [P, 2, S]
        for kind in ("tensors", "lists", "accumulated"):
            for metric, row in CALIBRATION:
                assert engine.state.metrics[f"{metric.__name__}_{kind}"] == pytest.approx(scores[:, row].mean().item())
            torch.testing.assert_close(engine.state.metric_details[f"AUSE_{kind}"], scores[:, 1])
        torch.testing.assert_close(engine.state.metrics["by_structure"], scores[:, 0].mean(0))


def test_wrong_inputs_are_refused():
    truth, samples = pair(0)
    with pytest.raises(ValueError, match="expected a reduction of mean, mean_batch, none, got sum"):
        ECE(LABELS, reduction="sum")
    with pytest.raises(ValueError, match="for each of 1 predictions, got 0"):
        ECE(LABELS)(samples[None])
    with pytest.raises(ValueError, match="for each of 1 predictions, got 2"):
        ECE(LABELS)([samples], [truth, truth])
    with pytest.raises(ValueError, match=r"true label map of shape \[1, X, Y, Z\], got \(14, 15, 16\)"):
        ECE(LABELS)([samples], [truth[0]])
    with pytest.raises(ValueError, match=r"\[X, Y, Z\] = \(14, 15, 16\), got \(6, 14, 15, 15\)"):
        ECE(LABELS)([samples[..., 1:]], [truth])
    with pytest.raises(ValueError, match=r"\[X, Y, Z\] = \(14, 15, 16\), got \(14, 15, 15\)"):
        ECE(LABELS)([LabelSamples.from_maps(samples[..., 1:], LABELS)], [truth])
    with pytest.raises(ValueError, match=r"samples of labels \(1, 300\), got \(1,\)"):
        ECE(LABELS)([LabelSamples.from_maps(samples, [1])], [truth])
    with pytest.raises(ValueError, match="probabilities of 2 structures, got 3"):
        ECE(LABELS, probabilities=True)(torch.zeros(1, 3, *SHAPE), truth[None])
