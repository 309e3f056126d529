"""Signs of a failure: what they are for a registration that is right and for ones that are wrong."""

from __future__ import annotations

import math

import pytest
import torch

from scripts.posterior.failure import SIGNS, judge, probability, signs
from scripts.posterior.pair_images import PairImages
from scripts.synthetic.subjects import synthesize_subject
from tests.commands.conftest import small_model

FITTED = {
    "bias": -1.0,
    "reach": 6.0,
    "signs": {"similarity": [0.8, 0.1, 2.0], "motion": [4.0, 1.0, 0.5]},
}


def test_the_probability_is_a_logistic_function_of_the_signs():
    expected = 1 / (1 + math.exp(-(-1.0 + 2.0 * 3.0 + 0.5 * 1.0)))
    assert probability({"similarity": 0.5, "motion": 5.0}, FITTED) == pytest.approx(expected)


def test_what_is_better_than_usual_or_missing_counts_as_usual_and_far_ones_are_cut_off():
    assert probability({"similarity": 0.99, "motion": 1.0}, FITTED) == pytest.approx(1 / (1 + math.e))
    assert probability({"motion": math.nan}, FITTED) == pytest.approx(1 / (1 + math.e))
    assert probability({"similarity": -50.0}, FITTED) == pytest.approx(1 / (1 + math.exp(1 - 12)))


def test_the_worst_sign_is_named():
    assert judge({"similarity": 0.2, "motion": 4.0}, FITTED)["failure_reason"] == SIGNS["similarity"]
    assert judge({"similarity": 0.8, "motion": 9.0}, FITTED)["failure_reason"] == SIGNS["motion"]
    assert judge({}, FITTED)["failure_reason"] == ""
    assert judge({"similarity": 0.9, "motion": 3.0}, FITTED)["failure_reason"] == ""


@pytest.fixture(scope="module")
def values():
    """Signs of a brain onto another one: as it is, mirrored, half of it, and with labels of somebody else."""
    shape = (32, 32, 40)
    brains = [synthesize_subject(seed=seed, shape=shape, spacing=5.0) for seed in (3, 4, 9)]
    fixed, moving, other = (torch.from_numpy(brain.image)[None, None].float() for brain in brains)
    labels = [torch.from_numpy(brain.label).int() for brain in brains]
    half = moving.clone()
    half[..., :20] = 0
    from scripts.posterior.sampler import Sampler

    sampler = Sampler(small_model(), {"num_samples": 2, "refine_steps": 3, "progress": False}, spread="noise")
    out = {}
    for name, image, label in (
        ("right", moving, labels[1]), ("half", half, labels[1]), ("labels", moving, labels[2]),
        ("noise", torch.rand_like(moving), labels[1]),
    ):  # fmt: skip
        plain = PairImages.on_one_grid(image, fixed)
        pair = PairImages(fixed, image, plain.space, moving_label=label.numpy(), on_files=plain.on_files)
        out[name] = signs(sampler.model, pair, sampler.posterior(pair))
    del other
    return out


def test_all_signs_are_there(values):
    assert all(set(found) == set(SIGNS) and all(map(math.isfinite, found.values())) for found in values.values())


def test_what_is_wrong_shows(values):
    assert values["noise"]["similarity"] < 0.7 * values["right"]["similarity"]
    assert values["half"]["overlap"] < values["right"]["overlap"] - 0.1
    assert values["half"]["unexplained"] > values["right"]["unexplained"]
    assert values["labels"]["labels"] < values["right"]["labels"]
