"""The posterior on disk: small, and every sample comes back to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from scripts.core.errors import CheckpointError, DataError
from scripts.core.grid import Grid
from scripts.inference.proposals import sample_posterior
from scripts.networks import ProposalLayout
from scripts.posterior.stored import StoredPosterior, load_posterior, rounded, save_posterior
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.space import PairSpace
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from tests.registration.conftest import brain_like

GRIDS = [Grid((16, 12, 8), np.diag([2.0, 2, 2, 1])), Grid((30, 20, 10), np.diag([-1.0, 1, 3, 1]))]


def make(variant=("voxel", 2), transform=None):
    layout = ProposalLayout(*variant, initial_std=0.3)
    raw = rounded(0.3 * torch.randn(1, layout.out_channels, 8, 6, 4, generator=torch.Generator().manual_seed(0)))
    transform = transform or DisplacementTransform()
    target = Target(NCCLikelihood(3), DiffusionPrior(1.0), None, transform)
    pair = target.prepare(brain_like(16, 12, 8), brain_like(16, 12, 8, seed=1))[0]
    posterior = sample_posterior(layout.gaussian(raw), target, pair, num_proposals=20, num_samples=9, seed=4)
    alignment = np.eye(4)
    alignment[0, 3] = 7.5
    space = PairSpace(GRIDS[1], GRIDS[1], GRIDS[0], alignment)
    return StoredPosterior(raw, layout, transform, space, posterior, 3.0, 2.5, raw[0, :3], ("mövt", "fixed"))


@pytest.mark.parametrize("variant", [("voxel", 2), ("full", 0), ("none", 3)])
@pytest.mark.parametrize("transform", [DisplacementTransform(), VelocityTransform(steps=4)])
def test_samples_come_back_to_the_bit(tmp_path, variant, transform):
    stored = make(variant, transform)
    save_posterior(stored, tmp_path / "posterior.pt")
    loaded = load_posterior(tmp_path / "posterior.pt")
    before, after, others = list(stored.samples(chunk=4)), list(loaded.samples(chunk=4)), list(loaded.samples(chunk=3))
    assert [part[:2] for part in before] == [part[:2] for part in after]
    assert sum(count for _, count, _ in after) == 9
    for (_, _, a), (_, _, b), (_, _, c) in zip(before, after, others, strict=True):
        assert torch.equal(a, b)
        # In other chunks a matrix product may add up in another order; some processors' does.
        torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-6)
    assert torch.equal(stored.posterior.weights, loaded.posterior.weights)
    assert (loaded.temperature, loaded.scale, loaded.names) == (3.0, 2.5, ("mövt", "fixed"))
    for name in ("fixed", "moving", "work"):
        assert getattr(loaded.space, name).same_as(getattr(stored.space, name), 1e-12)
    np.testing.assert_array_equal(loaded.space.alignment, stored.space.alignment)


def test_it_loads_without_running_anything_and_takes_half_of_the_parameters(tmp_path):
    stored = make()
    path = tmp_path / "posterior.pt"
    save_posterior(stored, path)
    content = torch.load(path, weights_only=True)
    assert content["parameters"].dtype == torch.float16
    assert content["parameters"].shape[0] + 3 == stored.layout.out_channels
    voxels = 8 * 6 * 4
    needed = voxels * (2 * (stored.layout.out_channels - 3) + 4 * 3 + 4 * 3)
    assert path.stat().st_size < needed + 20_000


def test_detail_comes_back_to_the_bit_and_older_files_have_none(tmp_path):
    stored = make()
    save_posterior(stored, tmp_path / "posterior.pt")
    content = torch.load(tmp_path / "posterior.pt", weights_only=True)
    del content["detail"]
    torch.save({**content, "version": 2}, tmp_path / "older.pt")
    assert load_posterior(tmp_path / "older.pt").space.detail is None
    detail = torch.randn(3, 16, 12, 8, generator=torch.Generator().manual_seed(1)).half().float()
    stored.space = replace(stored.space, detail=detail)
    save_posterior(stored, tmp_path / "posterior.pt")
    assert torch.equal(load_posterior(tmp_path / "posterior.pt").space.detail, detail)


def test_other_files_are_refused(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(DataError, match=r"not a posterior\.pt"):
        load_posterior(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="no such file"):
        load_posterior(tmp_path / "none.pt")
    save_posterior(make(), tmp_path / "new.pt")
    content = torch.load(tmp_path / "new.pt", weights_only=True)
    torch.save({**content, "version": 99}, tmp_path / "new.pt")
    with pytest.raises(DataError, match="version 99"):
        load_posterior(tmp_path / "new.pt")


def test_parameters_beyond_half_precision_are_refused():
    raw = torch.zeros(1, 78, 2, 2, 2)
    raw[0, 5] = 1e6
    with pytest.raises(DataError, match="half precision"):
        rounded(raw)
