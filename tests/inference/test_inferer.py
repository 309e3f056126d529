"""What the inferer hands on of a network."""

from __future__ import annotations

import torch

from scripts.inference.inferer import ProposalInferer
from scripts.networks import ProposalLayout, ProposalNetwork


def test_raw_parameters_and_the_scale_that_training_left():
    torch.manual_seed(0)
    network = ProposalNetwork(ProposalLayout()).eval()
    images = torch.rand(2, 2, 8, 8, 16)
    with torch.no_grad():
        before = ProposalInferer()(images, network)
        network.weight_scale.value.fill_(7.0)
        after = ProposalInferer()(images, network)
        assert torch.equal(after["raw"], network(images))
    assert after["scale"].tolist() == [[7.0], [7.0]]
    assert before["scale"].isnan().all()
