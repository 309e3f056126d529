"""What the inferer hands on of a network."""

from __future__ import annotations

import torch

from scripts.inference.inferer import ProposalInferer
from scripts.networks import ProposalLayout, ProposalNetwork


def test_raw_parameters_and_what_training_and_calibration_left():
    torch.manual_seed(0)
    network = ProposalNetwork(ProposalLayout()).eval()
    images = torch.rand(2, 2, 8, 8, 16)
    with torch.no_grad():
        before = ProposalInferer()(images, network)
        network.weight_scale.value.fill_(7.0)
        network.weight_scale.temperature.fill_(2.5)
        after = ProposalInferer()(images, network)
        assert torch.equal(after["raw"], network(images))
    assert after["scale"].tolist() == [[7.0], [7.0]]
    assert after["temperature"].tolist() == [[2.5], [2.5]]
    assert before["scale"].isnan().all()
    assert before["temperature"].isnan().all()
