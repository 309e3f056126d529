from __future__ import annotations

import pytest
import torch
from monai.data import MetaTensor
from monai.losses import DiffusionLoss, LocalNormalizedCrossCorrelationLoss
from monai.networks.blocks import Warp
from monai.networks.nets import LocalNet, VoxelMorph, VoxelMorphUNet
from torch import nn

from scripts.engines.field_loss import FieldLoss
from scripts.engines.field_sampler import FieldSamples
from scripts.gaussian.noise import fold
from scripts.registration.warp import warp

PAIR = torch.rand(2, 2, 8, 8, 8, generator=torch.Generator().manual_seed(0))


def dropping(seed=0):
    torch.manual_seed(seed)
    layers = [nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.Dropout3d(0.5), nn.Dropout(0.2), nn.Conv3d(4, 3, 1)]
    return nn.Sequential(*layers).eval()


def local_net(seed):
    torch.manual_seed(seed)
    return LocalNet(3, 2, num_channel_initial=2, extract_levels=(0, 1)).eval()


def voxel_morph(dropout=0.0):
    torch.manual_seed(0)
    backbone = VoxelMorphUNet(3, 2, 4, (4, 4), (4,), dropout=dropout)
    return VoxelMorph(backbone, integration_steps=2).eval()


@torch.no_grad()
def draw(*args, network, pair=PAIR, **options):
    return FieldSamples(*args, **options)(pair, network)


class TestDropout:
    def test_each_sample_is_the_network_with_a_seed_of_its_own(self):
        network = dropping()
        samples = draw(3, network=network, seed=5)
        assert samples.shape == (2, 3, 3, 8, 8, 8)
        for k in range(3):
            torch.manual_seed(fold(5, k))
            with torch.no_grad():
                features = network[1](network[0](PAIR))
                dropped = nn.functional.dropout(nn.functional.dropout3d(features, 0.5), 0.2)
                assert torch.equal(samples[:, k], network[4](dropped))
        assert not torch.equal(samples[:, 0], samples[:, 1])

    def test_what_was_drawn_before_does_not_matter(self):
        network = dropping()
        many = draw(4, network=network)
        torch.manual_seed(77)
        assert torch.equal(draw(2, network=network), many[:, :2])
        assert not torch.equal(draw(2, network=network, seed=1), many[:, :2])

    def test_nothing_else_is_in_training_mode_and_nothing_is_left_changed(self):
        network = dropping()
        before = {name: value.clone() for name, value in network.state_dict().items()}
        random = torch.get_rng_state()
        draw(2, network=network)
        assert torch.equal(torch.get_rng_state(), random)
        assert not any(module.training for module in network.modules())
        assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())

    def test_modes_come_back_after_an_error(self):
        network = dropping()
        with pytest.raises(RuntimeError):
            draw(2, network=network, pair=torch.rand(1, 5, 4, 4, 4))
        assert not any(module.training for module in network.modules())

    def test_without_it_the_network_stays_as_it_is(self):
        network = dropping().train()
        random = torch.get_rng_state()
        first, second = (draw(network=network, dropout=False) for _ in range(2))
        assert first.shape == (2, 1, 3, 8, 8, 8)
        assert not torch.equal(first, second)
        assert not torch.equal(torch.get_rng_state(), random)


class TestEnsemble:
    @pytest.mark.parametrize("container", [list, nn.ModuleList])
    def test_each_network_gives_a_sample(self, container):
        networks = [local_net(seed) for seed in range(3)]
        samples = draw(network=container(networks))
        for k, network in enumerate(networks):
            with torch.no_grad():
                assert torch.equal(samples[:, k], network(PAIR))

    def test_networks_with_dropout_take_turns(self):
        networks = [dropping(0), dropping(1)]
        samples = draw(4, network=networks)
        assert torch.equal(samples[:, :2], draw(network=networks))
        assert torch.equal(samples[:, 2], draw(3, network=networks[0])[:, 2])
        assert len({float(sample.sum()) for sample in samples.transpose(0, 1)}) == 4

    @pytest.mark.parametrize(
        ("count", "networks", "options"),
        [
            (2, [local_net(0)], {}),
            (2, [voxel_morph()], {"separate": True, "output": 1}),
            (2, [dropping()], {"dropout": False}),
            (3, [dropping(), local_net(0)], {}),
        ],
    )
    def test_samples_that_would_repeat_each_other_are_refused(self, count, networks, options):
        with pytest.raises(ValueError, match=f"{count} samples of {len(networks)} network.* would repeat"):
            draw(count, network=networks, **options)

    def test_gradients_reach_every_network(self):
        networks = nn.ModuleList([local_net(seed) for seed in range(2)])
        FieldSamples(dropout=False)(PAIR, networks).square().sum().backward()
        assert all(p.grad is not None for p in networks.parameters())


def test_a_network_of_two_images_that_gives_more_than_a_field():
    network = voxel_morph(dropout=0.3)
    one = draw(dropout=False, network=network, separate=True, output=1)
    with torch.no_grad():
        assert torch.equal(one[:, 0], network(PAIR[:, :1], PAIR[:, 1:])[1])
    samples = draw(3, network=network, separate=True, output=1)
    assert float(samples.std(dim=1).max()) > 0


def test_a_mapping_and_metadata():
    class Named(nn.Module):
        def forward(self, pair):
            assert type(pair) is torch.Tensor
            return {"ddf": pair.new_ones(len(pair), 3, *pair.shape[2:])}

    assert float(draw(network=Named(), pair=MetaTensor(PAIR), output="ddf").min()) == 1
    with pytest.raises(ValueError, match="got a mapping of ddf"):
        draw(network=Named())


@pytest.mark.parametrize(("network", "got"), [(nn.Identity(), r"\(2, 2, 8"), (voxel_morph(), "tuple")])
def test_what_is_no_field_is_refused(network, got):
    with pytest.raises(ValueError, match=f"expected a field of shape .2, 3, 8, 8, 8. from the network, got {got}"):
        draw(network=network, separate=isinstance(network, VoxelMorph))


def test_a_number_of_samples_is_positive():
    with pytest.raises(ValueError, match="at least one"):
        FieldSamples(0)


def test_the_loss_is_that_of_its_parts_and_the_mean_over_fields():
    similarity, smoothness = LocalNormalizedCrossCorrelationLoss(kernel_size=3), DiffusionLoss()
    loss = FieldLoss(similarity, smoothness, weight=0.3)
    fields = torch.randn(2, 3, 3, 8, 8, 8, generator=torch.Generator().manual_seed(1))
    single = [
        similarity(Warp()(PAIR[:, :1], field), PAIR[:, 1:]) + 0.3 * smoothness(field) for field in fields.unbind(1)
    ]
    torch.testing.assert_close(loss(fields[:, 0], MetaTensor(PAIR)), single[0])
    torch.testing.assert_close(loss(fields, PAIR), sum(single) / 3)
    ours = FieldLoss(similarity, smoothness, weight=0.3, warp=warp)
    torch.testing.assert_close(ours(fields, PAIR), loss(fields, PAIR), rtol=1e-3, atol=0)
