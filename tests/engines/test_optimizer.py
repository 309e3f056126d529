from __future__ import annotations

import pytest
import torch
from torch import nn

from scripts.engines.optimizer import cosine_decay, parameter_groups, soap
from scripts.networks import ProposalLayout, ProposalNetwork


def rates(steps: int, **options) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = cosine_decay(optimizer, **options)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_cosine_falls_to_its_final_factor_and_stays():
    found = rates(7, decay_steps=4, final_factor=0.2)
    assert found[0] == 1.0
    assert found[2] == pytest.approx(0.6)
    assert found[4:] == pytest.approx([0.2] * 3)


def test_warm_up_rises_linearly():
    assert rates(5, decay_steps=10**9, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("options", [{"decay_steps": 0}, {"warmup_steps": -1}])
def test_impossible_schedules_are_refused(options):
    with pytest.raises(ValueError, match="decay_steps must be positive and warmup_steps not negative"):
        rates(1, **options)


@pytest.mark.parametrize("wrap", [lambda network: network, lambda network: nn.ModuleDict({"module": network})])
def test_the_heads_of_the_covariance_have_a_rate_of_their_own(wrap):
    network = ProposalNetwork(ProposalLayout(rank=2), column_rate=10.0)
    wrapped = wrap(network)
    if wrapped is not network:
        wrapped.module = network  # as DistributedDataParallel has it
    others, heads = parameter_groups(wrapped, lr=0.5, covariance_rate=0.1)
    assert (others["lr"], heads["lr"]) == (0.5, pytest.approx(0.05))
    covariance = [network.column_scale, network.stencil_head.weight, network.factor_head.weight]
    assert [id(p) for p in heads["params"]] == [id(p) for p in covariance]
    assert len(others["params"]) + 3 == len(list(network.parameters()))
    optimizer = soap([others, heads])
    schedule = cosine_decay(optimizer, decay_steps=2, final_factor=0.2)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        optimizer.step()
        schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([0.1, 0.01])


def test_a_network_without_a_covariance_has_one_group():
    network = ProposalNetwork(ProposalLayout(rank=0, deterministic=True))
    (group,) = parameter_groups(network, covariance_rate=0.1)
    assert len(group["params"]) == len(list(network.parameters()))
    with pytest.raises(ValueError, match="covariance_rate must be positive, got 0"):
        parameter_groups(network, covariance_rate=0)
