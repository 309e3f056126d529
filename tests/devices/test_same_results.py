"""A step of training and the posterior of a pair are the same on every device."""

from __future__ import annotations

import pytest
import torch

from scripts.inference.objectives import SIRObjective
from scripts.inference.proposals import sample_posterior
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from tests.registration.conftest import brain_like

DEVICES = [
    pytest.param("cpu", id="torch on the cpu"),
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")),
]
SHAPE = (16, 16, 24)


def target() -> Target:
    return Target(NCCLikelihood(window=3), DiffusionPrior(1.0), DiffusionPrior(2.5))


def images(device: str) -> list[torch.Tensor]:
    return [brain_like(*SHAPE, seed=seed).to(device) for seed in (0, 1)]


def step(device: str, backend: str | None) -> tuple[float, list[torch.Tensor]]:
    torch.manual_seed(0)
    layout = ProposalLayout(rank=3, dominance=0.95)
    network = ProposalNetwork(layout, factor_level="half").to(device)
    objective = SIRObjective(target(), layout, 8, 2, scale=network.weight_scale, backend=backend).to(device)
    moving, fixed = images(device)
    loss = objective(network(torch.cat([moving, fixed], dim=1)), moving, fixed, seed=5).loss
    loss.backward()
    return float(loss.detach()), [parameter.grad.cpu() for parameter in network.parameters()]


@pytest.mark.parametrize("device", DEVICES)
def test_a_training_step(device):
    loss, gradients = step(device, "torch")
    expected, expected_gradients = step("cpu", None)
    assert loss == pytest.approx(expected, rel=1e-5)
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3 * float(wanted.abs().max()))


@pytest.mark.parametrize("device", DEVICES)
def test_the_posterior_of_a_pair(device):
    torch.manual_seed(0)
    layout = ProposalLayout(rank=3, dominance=0.95)
    raw = 0.3 * torch.randn(1, layout.out_channels, *(n // 2 for n in SHAPE))
    results = []
    for place, backend in ((device, "torch"), ("cpu", None)):
        model = target().to(place)
        (pair,) = model.prepare(*images(place))
        gaussian = layout.gaussian(raw.to(place), backend)
        results.append(sample_posterior(gaussian, model, pair, num_proposals=12, num_samples=4, seed=3))
    got, expected = results
    torch.testing.assert_close(got.proposals.log_weights, expected.proposals.log_weights, rtol=1e-5, atol=1e-2)
    assert torch.equal(got.resampled, expected.resampled)
