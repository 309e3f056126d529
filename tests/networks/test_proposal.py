from __future__ import annotations

import math

import pytest
import torch
from monai.networks.nets import SegResNet
from torch import nn

from scripts.gaussian.errors import ShapeError
from scripts.networks import MonaiBackbone, ProposalLayout, ProposalNetwork, UNetBackbone

VARIANTS = {
    "D": ({"cross_channel": "none", "rank": 0}, 6),
    "LD": ({"cross_channel": "none", "rank": 10}, 36),
    "C": ({"cross_channel": "voxel", "rank": 0}, 48),
    "LC": ({"cross_channel": "voxel", "rank": 10}, 78),
    "LC full": ({"cross_channel": "full", "rank": 25}, 201),
    "mean only": ({"deterministic": True, "rank": 0}, 3),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_output_has_half_the_resolution_and_the_layout_s_channels(variant):
    arguments, channels = VARIANTS[variant]
    network = ProposalNetwork(ProposalLayout(**arguments))
    raw = network(torch.rand(2, 2, 16, 24, 32))
    assert network.layout.out_channels == channels
    assert raw.shape == (2, channels, 8, 12, 16)


@pytest.mark.parametrize("level", ["quarter", "half"])
def test_the_factor_comes_from_the_level_that_was_asked_for(level):
    torch.manual_seed(0)
    layout, pair = ProposalLayout(rank=2), torch.rand(1, 2, 16, 16, 16)
    network = ProposalNetwork(layout, factor_level=level)
    with torch.no_grad():
        factor = layout.gaussian(network(pair)).cov_factor
        half, quarter = network.backbone(pair)
        expected = network.factor_head(half if level == "half" else quarter)
        if level == "quarter":
            expected = nn.functional.interpolate(expected, scale_factor=2.0, mode="trilinear", align_corners=False)
    torch.testing.assert_close(factor.flatten(1, 2), expected)


def test_each_column_of_the_factor_has_a_scale_that_learns_by_factors():
    torch.manual_seed(0)
    layout, pair = ProposalLayout(rank=2), torch.rand(1, 2, 16, 16, 16)
    network = ProposalNetwork(layout, column_rate=100.0)
    with torch.no_grad():
        before = layout.gaussian(network(pair))
        network.column_scale.copy_(torch.tensor([0.0, -0.02]))
        after = layout.gaussian(network(pair))
    torch.testing.assert_close(after.cov_factor[:, 0], before.cov_factor[:, 0])
    torch.testing.assert_close(after.cov_factor[:, 1], before.cov_factor[:, 1] * math.exp(-2))
    torch.testing.assert_close(after.mean, before.mean)
    assert ProposalNetwork(layout).column_scale is None
    assert ProposalNetwork(ProposalLayout(rank=0), column_rate=100.0).column_scale is None
    with pytest.raises(ValueError, match="column_rate must not be negative, got -1"):
        ProposalNetwork(layout, column_rate=-1.0)


def test_another_level_of_the_factor_is_an_error():
    with pytest.raises(ValueError, match="'half' or 'quarter', got 'eighth'"):
        ProposalNetwork(ProposalLayout(rank=2), factor_level="eighth")


def test_paper_s_network_has_no_biases_and_four_levels():
    network = ProposalNetwork(ProposalLayout())
    assert not [name for name, _ in network.named_parameters() if name.endswith("bias")]
    assert network.stride == 8
    widths = [p.shape[0] for name, p in network.named_parameters() if "stem" in name or "down" in name]
    assert widths == [16, 24, 24, 24, 24, 24, 24]


def test_zero_images_give_a_zero_mean_and_the_initial_standard_deviation():
    # Without biases nothing comes from nothing: outside of the brain the field is the identity.
    layout = ProposalLayout(rank=4, initial_std=0.3)
    gaussian = layout.gaussian(ProposalNetwork(layout)(torch.zeros(1, 2, 16, 16, 16)))
    assert not gaussian.mean.any()
    torch.testing.assert_close(gaussian.marginal_variance()[0], torch.full((1, 3, 8, 8, 8), 0.09))


def test_fresh_network_starts_near_the_identity_with_a_visible_low_rank_part():
    torch.manual_seed(0)
    layout = ProposalLayout(rank=10)
    with torch.no_grad():
        gaussian = layout.gaussian(ProposalNetwork(layout)(torch.rand(1, 2, 32, 32, 32)))
    assert gaussian.mean.abs().max() < 0.1
    low_rank = gaussian.cov_factor.square().sum(1)
    assert 1e-4 < float(low_rank.mean()) < 0.25


def test_channels_go_where_the_layout_says():
    layout = ProposalLayout("voxel", rank=2)
    raw = torch.arange(layout.out_channels, dtype=torch.float32).reshape(1, -1, 1, 1, 1).expand(1, -1, 2, 2, 2)
    gaussian = layout.gaussian(raw.contiguous())
    assert gaussian.mean[0, :, 0, 0, 0].tolist() == [0, 1, 2]
    assert gaussian.stencil_parameters[0, 3:, 0, 0, 0].tolist() == list(range(6, 48))
    assert gaussian.cov_factor[0, :, :, 0, 0, 0].tolist() == [[48, 49, 50], [51, 52, 53]]
    assert layout.off_diagonals(raw)[0, :, 0, 0, 0].tolist() == list(range(6, 48))


def test_gradients_reach_every_parameter():
    layout = ProposalLayout(rank=3)
    network = ProposalNetwork(layout, column_rate=10.0)
    gaussian = layout.gaussian(network(torch.rand(1, 2, 16, 16, 16)))
    (gaussian.rsample(2).square().sum() - gaussian.entropy().sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_another_backbone_from_monai_by_name_or_built():
    arguments = {"spatial_dims": 3, "init_filters": 8, "in_channels": 2, "out_channels": 12}
    outputs = []
    for inner in ({"name": "SegResNet", **arguments}, SegResNet(**arguments)):
        backbone = MonaiBackbone(inner, features=12, stride=8)
        network = ProposalNetwork(ProposalLayout(rank=2), backbone)
        torch.manual_seed(0)
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.1)
        outputs.append(network(torch.rand(1, 2, 16, 16, 24)))
    assert outputs[0].shape == (1, 54, 8, 8, 12)
    assert torch.equal(*outputs)


@pytest.mark.parametrize("shape", [(1, 1, 16, 16, 16), (1, 2, 16, 16, 20), (2, 16, 16, 16)])
def test_wrong_input_says_expected_and_got(shape):
    with pytest.raises(ShapeError, match=r"multiples of 8\), got|multiples of 8, got"):
        ProposalNetwork(ProposalLayout())(torch.zeros(shape))


def test_layout_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="rank must not be negative"):
        ProposalLayout(rank=-1)
    with pytest.raises(ValueError, match="set it to 0"):
        ProposalLayout(deterministic=True, rank=3)
    with pytest.raises(ValueError, match="not a distribution"):
        ProposalLayout(deterministic=True, rank=0).gaussian(torch.zeros(1, 3, 2, 2, 2))
    with pytest.raises(ShapeError, match="78"):
        ProposalLayout().gaussian(torch.zeros(1, 77, 2, 2, 2))
    with pytest.raises(ValueError, match="at least 3 levels"):
        UNetBackbone((16, 24))


def test_deeper_network_has_a_larger_stride():
    backbone = UNetBackbone((16, 24, 24, 24, 24))
    assert backbone.stride == 16
    half, quarter = backbone(torch.rand(1, 2, 32, 32, 32))
    assert half.shape == (1, 24, 16, 16, 16)
    assert quarter.shape == (1, 24, 8, 8, 8)
