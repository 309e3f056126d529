"""The CPU's path gives what torch's convolution gives, forwards and backwards."""

import pytest
import torch
from torch import nn

from scripts.networks.convolution import Conv3d


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(2, 9, 8, 7), (4, 16, 24, 8), (3, 1, 5, 2)])
def test_agrees_with_torch(stride, shape):
    torch.manual_seed(0)
    ours = Conv3d(shape[0], 5, stride)
    x = torch.randn(1, *shape, requires_grad=True)
    reference = nn.functional.conv3d(x.double(), ours.weight.double(), stride=stride, padding=1)
    weights = torch.randn_like(reference)
    expected = torch.autograd.grad((reference * weights).sum(), [x, ours.weight])
    out = ours(x)
    torch.testing.assert_close(out.double(), reference, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad((out * weights.float()).sum(), [x, ours.weight])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_other_dtypes_and_autocast_take_torchs_own_way():
    layer = Conv3d(2, 3)
    x = torch.randn(1, 2, 4, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer.double()(x.double()).dtype == torch.float64


def test_a_traced_network_holds_no_cpu_only_operation():
    layer = Conv3d(2, 3)
    x = torch.randn(1, 2, 4, 4, 4)
    traced = torch.jit.trace(layer, x)
    assert "mkldnn" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), layer(x), rtol=1e-5, atol=1e-6)
