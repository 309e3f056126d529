from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments import grow
from scripts.inference.model import Model
from scripts.inference.objectives import SIRObjective
from scripts.networks import ProposalLayout, ProposalNetwork, UNetBackbone
from scripts.registration.target import Target


def networks(column_rate: float = 0.0) -> tuple[ProposalNetwork, ProposalNetwork]:
    """A small network whose mean and columns are not nearly zero, and the large one, grown from it."""
    torch.manual_seed(3)
    layout = ProposalLayout(rank=2)
    small = ProposalNetwork(layout, factor_level="half", mean_gain=1.0, column_rate=column_rate)
    large = ProposalNetwork(
        layout, UNetBackbone((16, 24, 24, 24, 24)), factor_level="quarter", coarse_mean=True, column_rate=column_rate
    )
    if column_rate:
        with torch.no_grad():
            small.column_scale.copy_(torch.tensor([0.01, -0.02]))
    missing, unexpected = large.load_state_dict(grow.grown(small.state_dict()), strict=False)
    assert not unexpected
    assert {name.split(".")[0] for name in missing} == {"stencil_head", "weight_scale"}
    return small, large


@pytest.mark.parametrize("column_rate", [0.0, 100.0])
def test_the_grown_network_gives_the_small_one_s_mean_and_columns_in_voxels_of_half_the_size(column_rate):
    small, large = networks(column_rate)
    fine = torch.rand(1, 2, 32, 32, 48)
    with torch.no_grad():
        expected = small(nn.functional.avg_pool3d(fine, 2))
        got = large(fine)
    upsampled = 2 * nn.functional.interpolate(expected, scale_factor=2, mode="trilinear", align_corners=False)
    mean, factor = slice(0, 3), slice(3 + small.layout.stencil_channels, None)
    assert expected[:, mean].std() > 0.1
    torch.testing.assert_close(got[:, mean], upsampled[:, mean], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[:, factor], upsampled[:, factor], rtol=1e-4, atol=1e-5)


def test_all_that_is_new_learns():
    _, large = networks()
    fine = torch.rand(1, 2, 32, 32, 32)
    # Two steps: behind heads that start at zero, nothing has a gradient in the first.
    optimizer = torch.optim.SGD(large.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        (large(fine) - 1).square().sum().backward()
        optimizer.step()
    silent = [name for name, part in large.named_parameters() if not part.grad.abs().sum() > 0]
    assert not silent


def test_the_same_seed_gives_the_same_channels_and_leaves_the_caller_s_randomness_alone():
    small, _ = networks()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, second, other = (grow.grown(small.state_dict(), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    name = "backbone.up.2.0.conv.weight"
    assert torch.equal(first[name], second[name])
    assert not torch.equal(first[name], other[name])


def test_the_command_grows_the_weights_of_a_file(tmp_path, capsys):
    small, _ = networks()
    Model(small, SIRObjective(Target(), small.layout)).save(tmp_path / "small.pt", progress={"epoch": 2})
    torch.save(small.state_dict(), tmp_path / "earlier.pt")
    expected = grow.grown(small.state_dict())
    for name in ("small.pt", "earlier.pt"):
        grow.main([str(tmp_path / name), str(tmp_path / "large.pt")])
        assert "large.pt" in capsys.readouterr().out
        written = torch.load(tmp_path / "large.pt", weights_only=True)
        assert written.keys() == expected.keys()
        assert all(torch.equal(written[key], value) for key, value in expected.items())
    torch.save({"other": torch.zeros(1)}, tmp_path / "foreign.pt")
    with pytest.raises(SystemExit, match="no weights of a U-Net"):
        grow.main([str(tmp_path / "foreign.pt"), str(tmp_path / "large.pt")])
