"""Temperatures scored together give what the evaluation gives one by one."""

import pytest
import torch

from scripts.evaluation.ignite_metrics import AUSE, ECE
from scripts.evaluation.temperature import SCORES, RibbonSamples, choose
from scripts.inference.model import Weighting
from scripts.inference.proposals import Weighted
from scripts.inference.weights import normalize, resample
from tests.evaluation.brains import label_entropies

LABELS = (3, 7, 22)


def random_maps(count, seed=0, shape=(14, 12, 16)):
    """Blobs that move a little from sample to sample; label 7 is absent, 9 is not listed."""
    generator = torch.Generator().manual_seed(seed)
    maps = torch.zeros(count, *shape, dtype=torch.int16)
    for label_map in maps:
        x, y, z = torch.randint(0, 3, (3,), generator=generator).tolist()
        label_map[2 + x : 8, 2 + y : 8, 3 + z : 9] = 3
        label_map[8 : 11 + x, 4 : 8 + y, 6 : 12 + z] = 22
        label_map[0:2] = 9
    return maps


def test_scores_are_those_of_the_metrics():
    truth, maps = random_maps(1, seed=1)[0], random_maps(6)
    samples = RibbonSamples(truth, LABELS, radius=2)
    for label_map in maps:
        samples.add(label_map)
    counts = torch.tensor([[1, 1, 1, 1, 1, 1], [5, 0, 0, 2, 0, 1]])
    scores = samples.score(counts.float())
    assert scores.shape == (2, len(SCORES), len(LABELS))
    for row, count in zip(scores, counts, strict=True):
        repeated = maps.repeat_interleave(count, dim=0)
        metrics = [metric(LABELS, radius=2)([repeated], [truth[None]])[0] for metric in (AUSE, ECE)]
        for values, expected in zip(row, [*metrics, label_entropies(repeated, truth, LABELS, 2)], strict=True):
            torch.testing.assert_close(values, expected, rtol=0, atol=1e-12, equal_nan=True)
    assert scores[..., 1].isnan().all()  # the absent structure


def test_choice_is_that_of_resampling_alone():
    log_weights = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(3)) * 4
    zeros = torch.zeros(50, dtype=torch.float64)
    weightings = [Weighting(0.5, 2.0), Weighting(3.0, 4.0), Weighting(50.0, 1.0), Weighting(1.0, None)]
    choice = choose(Weighted(log_weights, zeros, zeros, 11), weightings, 20)
    assert choice.indices == sorted(set(choice.indices))
    for (temperature, scale), counts, ess in zip(weightings, choice.counts, choice.ess, strict=True):
        weights = normalize(log_weights, temperature, log_weights.std() if scale is None else scale)
        alone = resample(weights, 20, torch.Generator().manual_seed(11))
        repeated = torch.tensor(choice.indices).repeat_interleave(counts.long())
        assert torch.equal(repeated, alone.sort().values)
        assert float(ess) == pytest.approx(1 / float(weights.square().sum()))
    assert choice.ess[0] > choice.ess[1] > choice.ess[2]
