"""The posterior on disk: small, and every sample comes back to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from scripts.core.errors import CheckpointError, DataError
from scripts.core.grid import Grid
from scripts.gaussian.errors import GaussianError
from scripts.inference.proposals import sample_posterior
from scripts.networks import ProposalLayout
from scripts.networks.ensemble import EnsembleLayout
from scripts.posterior.posterior import Posterior, mean_of
from scripts.posterior.posterior_file import load, save
from scripts.registration.local_correlation import MSELikelihood, NCCLikelihood
from scripts.registration.prior import DiffusionPrior, FoldPrior
from scripts.registration.space import PairSpace
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from tests.registration.conftest import brain_like

GRIDS = [Grid((16, 12, 8), np.diag([2.0, 2, 2, 1])), Grid((30, 20, 10), np.diag([-1.0, 1, 3, 1]))]


def make(layout=None, transform=None, likelihood=None, prior=None):
    layout = layout or ProposalLayout("voxel", 2, initial_std=0.3)
    noise = torch.randn(1, layout.out_channels, 8, 6, 4, generator=torch.Generator().manual_seed(0))
    raw = layout.rounded(0.3 * noise)
    transform = transform or DisplacementTransform()
    target = Target(likelihood or NCCLikelihood(3), prior or DiffusionPrior(1.0), None, transform)
    pair = target.prepare(brain_like(16, 12, 8), brain_like(16, 12, 8, seed=1))[0]
    proposal = layout.proposal(raw)
    draws = sample_posterior(proposal, target, pair, num_proposals=20, num_samples=9, seed=4, scale=2.5)
    alignment = np.eye(4)
    alignment[0, 3] = 7.5
    space = PairSpace(GRIDS[1], GRIDS[1], GRIDS[0], alignment)
    return Posterior(raw, layout, target, space, draws, mean_of(proposal, target, draws), ("mövt", "fixed"))


LAYOUTS = [ProposalLayout("voxel", 2), ProposalLayout("full", 0), ProposalLayout("none", 3), EnsembleLayout(4)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transform", [DisplacementTransform(), VelocityTransform(steps=4)])
def test_samples_come_back_to_the_bit(tmp_path, layout, transform):
    posterior = make(layout, transform)
    save(posterior, tmp_path / "posterior.pt")
    loaded = load(tmp_path / "posterior.pt")
    before, after = list(posterior.samples(chunk=4)), list(loaded.samples(chunk=4))
    others = list(loaded.samples(chunk=3))
    assert [part[:2] for part in before] == [part[:2] for part in after]
    assert sum(count for _, count, _ in after) == 9
    for (_, _, a), (_, _, b), (_, _, c) in zip(before, after, others, strict=True):
        assert torch.equal(a, b)
        # In other chunks a matrix product may add up in another order; some processors' does.
        torch.testing.assert_close(a, c, rtol=1e-6, atol=1e-6)
    assert torch.equal(posterior.draws.weights, loaded.draws.weights)
    assert (loaded.draws.temperature, loaded.draws.scale, loaded.names) == (3.0, 2.5, ("mövt", "fixed"))
    assert loaded.layout.settings() == layout.settings()
    for name in ("fixed", "moving", "work"):
        assert getattr(loaded.space, name).same_as(getattr(posterior.space, name), 1e-12)
    np.testing.assert_array_equal(loaded.space.alignment, posterior.space.alignment)


@pytest.mark.parametrize("transform", [DisplacementTransform(), VelocityTransform(steps=4)])
def test_the_mean_is_that_of_the_samples(transform):
    posterior = make(transform=transform)
    samples = list(posterior.samples())
    mean = sum(count * points for _, count, points in samples) / sum(count for _, count, _ in samples)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "prior"), [(MSELikelihood(0.2), FoldPrior(2.0, 0.3)), (NCCLikelihood(5, 0.7), None)]
)
def test_what_the_weights_were_made_of_comes_back(tmp_path, likelihood, prior):
    posterior = make(likelihood=likelihood, prior=prior, transform=VelocityTransform(steps=3))
    save(posterior, tmp_path / "posterior.pt")
    assert load(tmp_path / "posterior.pt").target.settings() == posterior.target.settings()


def test_a_file_of_the_version_before_is_read(tmp_path):
    posterior = make(transform=VelocityTransform(steps=4))
    save(posterior, tmp_path / "posterior.pt")
    content = torch.load(tmp_path / "posterior.pt", weights_only=True)
    content["transform"] = content["target"].pop("transform")
    del content["target"]["mean_prior"], content["target"]["overlap"], content["layout"]["kind"]
    del content["layout"]["deterministic"], content["gains"], content["conditioning"]
    torch.save({**content, "version": 4}, tmp_path / "older.pt")
    loaded = load(tmp_path / "older.pt")
    assert loaded.target.settings() == posterior.target.settings()
    assert not loaded.of_earlier_version
    assert torch.equal(next(loaded.samples())[2], next(posterior.samples())[2])


def test_it_loads_without_running_anything_and_takes_half_of_the_parameters(tmp_path):
    posterior = make()
    path = tmp_path / "posterior.pt"
    save(posterior, path)
    content = torch.load(path, weights_only=True)
    assert content["parameters"].dtype == torch.float16
    assert content["parameters"].shape[0] + 3 == posterior.layout.out_channels
    voxels = 8 * 6 * 4
    needed = voxels * (2 * (posterior.layout.out_channels - 3) + 4 * 3 + 4 * 3)
    assert path.stat().st_size < needed + 20_000


def test_detail_comes_back_to_the_bit_and_older_files_have_none(tmp_path):
    posterior = make()
    save(posterior, tmp_path / "posterior.pt")
    content = torch.load(tmp_path / "posterior.pt", weights_only=True)
    del content["detail"]
    torch.save({**content, "version": 2}, tmp_path / "older.pt")
    assert load(tmp_path / "older.pt").space.detail is None
    detail = torch.randn(3, 16, 12, 8, generator=torch.Generator().manual_seed(1)).half().float()
    posterior.space = replace(posterior.space, detail=detail)
    save(posterior, tmp_path / "posterior.pt")
    assert torch.equal(load(tmp_path / "posterior.pt").space.detail, detail)


def test_other_files_are_refused(tmp_path):
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(DataError, match=r"not a posterior\.pt"):
        load(tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="no such file"):
        load(tmp_path / "none.pt")
    save(make(), tmp_path / "new.pt")
    content = torch.load(tmp_path / "new.pt", weights_only=True)
    torch.save({**content, "version": 99}, tmp_path / "new.pt")
    with pytest.raises(DataError, match="version 99"):
        load(tmp_path / "new.pt")


def test_parameters_beyond_half_precision_are_refused():
    layout = ProposalLayout("voxel", 10)
    raw = torch.zeros(1, layout.out_channels, 2, 2, 2)
    raw[0, 5] = 1e6
    with pytest.raises(GaussianError, match="half precision"):
        layout.rounded(raw)
