from __future__ import annotations

import pytest
import torch

from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.networks.convolution import Conv3d

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


@pytest.mark.parametrize("device", DEVICES)
def test_half_precision_is_for_features_only(device):
    layout = ProposalLayout(rank=2)
    torch.manual_seed(0)
    network = ProposalNetwork(layout, amp=True, mean_gain=1.0).to(device)
    dtypes = {}
    for name, module in network.named_modules():
        if isinstance(module, Conv3d):
            module.register_forward_hook(lambda m, i, out, name=name: dtypes.__setitem__(name, out.dtype))
    pair = torch.rand(1, 2, 16, 16, 24, device=device)
    raw = network(pair)
    assert raw.dtype == torch.float32
    assert {dtype for name, dtype in dtypes.items() if name.startswith("backbone")} == {torch.bfloat16}
    assert {dtype for name, dtype in dtypes.items() if name.endswith("head")} == {torch.float32}
    network.amp = False
    full = network(pair)
    assert float((raw - full).abs().max()) < 0.05 * float(full.abs().max())
    assert not torch.equal(raw, full)
    raw.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in network.parameters())


def test_a_compiled_backbone_gives_the_same_and_keeps_its_names():
    layout = ProposalLayout(rank=2)
    torch.manual_seed(0)
    plain = ProposalNetwork(layout, mean_gain=1.0)
    compiled = ProposalNetwork(layout, compile="eager")  # the graph as it is captured; no compiler is needed
    compiled.load_state_dict(plain.state_dict())
    pair = torch.rand(1, 2, 16, 16, 24)
    torch.testing.assert_close(compiled(pair), plain(pair), rtol=1e-4, atol=1e-5)
