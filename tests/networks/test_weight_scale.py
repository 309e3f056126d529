from __future__ import annotations

import math

import pytest
import torch

from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone, WeightScale
from scripts.networks.weight_scale import trained_scale


def test_first_spread_is_taken_as_is():
    scale = WeightScale()
    assert scale.value.isnan()
    # {0, 2, 4}: variance ((−2)² + 0² + 2²)/2 = 4
    assert float(scale.update(torch.tensor([0.0, 2.0, 4.0]))) == pytest.approx(2.0)
    assert float(scale.value) == pytest.approx(2.0)


def test_later_spreads_are_averaged_exponentially():
    scale = WeightScale()
    for spread in (2.0, 5.0, 1.0):
        scale.update(torch.tensor([-spread, 0.0, spread]) + 1e6)
    # 2 → 0.9 · 2 + 0.1 · 5 = 2.3 → 0.9 · 2.3 + 0.1 · 1 = 2.17
    assert float(scale.value) == pytest.approx(2.17)


def test_large_log_weights_keep_their_spread():
    # At 1.6 million dimensions log-densities are of the order 10⁶ and float32 has steps of 0.1.
    log_weights = 1e6 + torch.tensor([0.0, 0.001, 0.002], dtype=torch.float64)
    assert float(WeightScale().update(log_weights)) == pytest.approx(0.001, rel=1e-6)


def test_nothing_is_differentiated():
    scale = WeightScale()
    value = scale.update(torch.randn(5, dtype=torch.float64, requires_grad=True))
    assert not value.requires_grad
    assert not list(scale.parameters())


@pytest.mark.parametrize("values", [[1.0, math.nan, 2.0], [1.0, math.inf, 2.0], [1.0, -math.inf, 2.0]])
def test_a_spread_that_means_nothing_leaves_the_average_alone(values):
    scale = WeightScale()
    scale.update(torch.tensor([0.0, 2.0, 4.0]))
    scale.update(torch.tensor(values))
    assert float(scale.value) == pytest.approx(2.0)


def test_equal_log_weights_at_the_very_beginning_have_a_usable_scale():
    # Dividing by a spread of 0 would make all weights NaN.
    scale = WeightScale()
    assert float(scale.update(torch.zeros(4))) == 1.0
    assert scale.value.isnan()  # for inference: take each pair's own
    assert float(scale.update(torch.tensor([0.0, 2.0, 4.0]))) == pytest.approx(2.0)


def test_checkpoint_brings_it_back():
    scale = WeightScale()
    scale.update(torch.tensor([0.0, 2.0, 4.0]))
    again = WeightScale()
    again.load_state_dict(scale.state_dict())
    for each in (scale, again):
        each.update(torch.tensor([-5.0, 0.0, 5.0]))
    assert float(again.value) == float(scale.value) == pytest.approx(2.3)


def test_a_fresh_one_survives_a_checkpoint():
    again = WeightScale()
    again.load_state_dict(WeightScale().state_dict())
    assert float(again.update(torch.tensor([0.0, 2.0, 4.0]))) == pytest.approx(2.0)


class TestInsideTheNetwork:
    def network(self) -> ProposalNetwork:
        return ProposalNetwork(ProposalLayout(rank=1), UNetBackbone((2, 2, 2)))

    def test_a_forward_pass_leaves_it_alone(self):
        # The SIR objective holds the same module: a new one would cut it off from the network's checkpoint.
        network = self.network()
        scale = network.weight_scale
        scale.update(torch.tensor([0.0, 2.0, 4.0]))
        network(torch.rand(1, 2, 8, 8, 8))
        assert network.weight_scale is scale
        assert float(network.weight_scale.value) == pytest.approx(2.0)

    def test_it_is_in_the_checkpoint_and_not_trained(self):
        network = self.network()
        network.weight_scale.update(torch.tensor([0.0, 2.0, 4.0]))
        state = network.state_dict()
        assert float(state["weight_scale.value"]) == pytest.approx(2.0)
        assert not [name for name, _ in network.named_parameters() if "weight_scale" in name]
        again = self.network()
        again.load_state_dict(state)
        assert float(again.weight_scale.value) == pytest.approx(2.0)

    def test_what_training_left_is_a_number_or_nothing(self):
        network = self.network()
        assert trained_scale(network) is None
        network.weight_scale.update(torch.tensor([0.0, 2.0, 4.0]))
        assert trained_scale(network) == pytest.approx(2.0)
        assert trained_scale(torch.nn.Linear(2, 2)) is None


def test_a_batch_counts_by_the_mean_of_its_spreads():
    scale = WeightScale()
    pairs = torch.tensor([[0.0, 0.0], [2.0, 4.0], [4.0, 8.0]])  # spreads 2 and 4
    assert float(scale.update(pairs)) == pytest.approx(3.0)
