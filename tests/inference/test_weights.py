from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from arviz_stats.base import array_stats

from scripts.inference.errors import WeightError
from scripts.inference.proposals import Draws, Weighted
from scripts.inference.weights import effective_sample_size, normalize, pareto_khat, resample


def test_weights_are_unchanged_by_a_constant():
    log_weights = torch.randn(50, dtype=torch.float64)
    torch.testing.assert_close(normalize(log_weights + 1.5e6), normalize(log_weights), rtol=1e-8, atol=0)


def test_temperature_and_scale_act_on_the_logarithm():
    # w_1 / w_0 = exp(T (l_1 − l_0) / σ) = exp(3 · 2 / 4)
    weights = normalize(torch.tensor([1.0, 3.0]), temperature=3.0, scale=4.0)
    assert weights[1] / weights[0] == pytest.approx(math.exp(1.5))


def test_equal_weights_have_an_effective_sample_size_of_n():
    assert effective_sample_size(normalize(torch.full((40, 3), -7.0))).tolist() == pytest.approx([40.0] * 3)


def test_one_dominant_sample_has_an_effective_sample_size_of_one():
    log_weights = torch.zeros(100)
    log_weights[17] = 1e4
    weights = normalize(log_weights)
    assert effective_sample_size(weights) == pytest.approx(1.0)


def test_effective_sample_size_by_hand():
    # Weights 1/2, 1/4, 1/4: 1 / (1/4 + 1/16 + 1/16) = 8/3.
    assert effective_sample_size(torch.tensor([0.5, 0.25, 0.25])) == pytest.approx(8 / 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([-math.inf, -math.inf], "all log-weights are -inf"),
        ([0.0, math.nan], "1 of 2 log-weights are NaN"),
        ([0.0, math.inf], r"1 are \+inf"),
        ([], "no proposals"),
    ],
)
def test_weights_that_mean_nothing_are_a_clear_error(values, message):
    with pytest.raises(WeightError, match=message):
        normalize(torch.tensor(values))


def test_a_single_minus_infinity_is_just_a_zero_weight():
    assert normalize(torch.tensor([0.0, -math.inf, 0.0])).tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("temperature", [0.0, torch.tensor([0.0, 0.0])])
def test_at_temperature_zero_what_explains_nothing_still_has_no_weight(temperature):
    log_weights = torch.tensor([[0.0, -3.0], [-math.inf, 2.0], [700.0, -math.inf]])
    assert normalize(log_weights, temperature).tolist() == [[0.5, 0.5], [0.0, 0.5], [0.5, 0.0]]
    # Further evidence is not tempered: the weights of the others are e⁰ : e^log 3.
    evidence = torch.tensor([[0.0, 0.0], [9.0, math.log(3)], [math.log(3), 9.0]], dtype=torch.float64)
    expected = torch.tensor([[0.25, 0.25], [0.0, 0.75], [0.75, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(normalize(log_weights, temperature, log_evidence=evidence), expected)


def test_the_temperature_has_a_gradient_beside_weights_of_zero():
    temperature = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    log_weights = torch.tensor([0.0, -math.inf, 1.0], dtype=torch.float64)
    normalize(log_weights, temperature)[2].backward()
    likely = 1 / (1 + math.exp(-2.0))
    assert temperature.grad is not None
    assert float(temperature.grad) == pytest.approx(likely * (1 - likely))


def test_khat_is_that_of_the_weights_at_temperature_zero_too():
    likelihood = torch.zeros(200, dtype=torch.float64)
    likelihood[::7] = -math.inf
    evidence = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros_like(likelihood)
    draws = Draws.of(Weighted(likelihood, zeros, zeros, 0, evidence), 20, temperature=0.0, scale=5.0)
    assert draws.khat == pareto_khat(evidence.masked_fill(likelihood.isneginf(), -math.inf))
    assert not draws.weights[::7].any()


def test_resampled_counts_are_unbiased():
    weights = normalize(torch.linspace(-3, 0, 7))
    draws = 200_000
    counts = torch.bincount(resample(weights, draws, torch.Generator().manual_seed(0)), minlength=7)
    # Each count is binomial: five standard deviations.
    assert ((counts - draws * weights).abs() < 5 * (draws * weights * (1 - weights)).sqrt()).all()


def test_zero_weights_are_never_drawn():
    weights = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert set(resample(weights, 10_000, torch.Generator().manual_seed(1)).tolist()) == {1, 3}


def test_resampling_repeats_with_its_seed():
    weights = normalize(torch.randn(100))
    first, second = (resample(weights, 80, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("count", [0, -1])
def test_nothing_to_resample_is_an_error(count):
    with pytest.raises(WeightError, match="positive"):
        resample(torch.ones(3) / 3, count)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("count", [100, 1200])
def test_khat_agrees_with_arviz(count, spread, seed):
    log_weights = spread * np.random.default_rng(seed).standard_normal(count)
    _, expected = array_stats.psislw(-log_weights)  # arviz takes log-likelihoods, whose weights are the inverse
    assert pareto_khat(torch.from_numpy(log_weights)) == pytest.approx(float(expected), rel=1e-6, abs=1e-8)


def test_khat_tells_light_from_heavy_tails():
    rng = np.random.default_rng(0)
    # log of Pareto(a) variables is exponential with mean 1/a; the tail index of the weights is k = 1/a.
    # Its estimate from the n = 948 largest of 100,000 has a standard error of about (1 + k)/√n; four of them.
    for k in (0.3, 1.0, 2.0):
        estimate = pareto_khat(torch.from_numpy(rng.exponential(k, 100_000)))
        assert estimate == pytest.approx(k, abs=4 * (1 + k) / math.sqrt(948))


def test_khat_of_constant_weights_cannot_be_fitted():
    assert pareto_khat(torch.zeros(1000)) == math.inf
    assert pareto_khat(torch.randn(10)) == math.inf
