"""Another likelihood or another kind of proposal, one line of config each: from files to files, and what follows."""

from __future__ import annotations

import csv
import json

import nibabel as nib
import numpy as np
import pytest
import torch

from scripts.commands.apply import Application
from scripts.core.described import Described
from scripts.inference.model import Model
from scripts.inference.objectives import MeanObjective
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.networks.fields import Fields
from scripts.posterior.posterior_file import load
from scripts.posterior.sampler import Sampler
from scripts.registration.target import Target
from tests.commands.conftest import SPACING, PairOnDisk, evaluator, small_model

PARTS = {
    "mind": {"_target_": "scripts.registration.self_similarity.MINDLikelihood"},
    "mi": {"_target_": "scripts.registration.mutual_information.MutualInformationLikelihood", "bins": 16},
    "mse": {"_target_": "scripts.registration.local_correlation.MSELikelihood"},
}


def deterministic(seed: int) -> Model:
    """A network that predicts one field."""
    torch.manual_seed(seed)
    layout = ProposalLayout(rank=0, deterministic=True)
    return Model(ProposalNetwork(layout, mean_gain=0.4), MeanObjective(Target(), layout), SPACING)


@pytest.fixture(scope="module")
def fine_pair(tmp_path_factory):
    """The brains at half the model's voxel size, so that there is detail to be found."""
    return PairOnDisk(tmp_path_factory.mktemp("fine"), SPACING / 2)


@pytest.fixture(scope="module", params=[*PARTS, "ensemble"])
def registered(request, fine_pair, weights, tmp_path_factory):
    """Registered with this part: its name, and the result's folder."""
    folder, paths, options = tmp_path_factory.mktemp(request.param), weights, {}
    if request.param == "ensemble":
        paths = [str(folder / f"{seed}.pt") for seed in (1, 2, 3)]
        for seed, path in enumerate(paths):
            deterministic(seed).save(path)
    else:
        options["likelihood"] = PARTS[request.param]
    work = evaluator(
        folder, paths, **fine_pair.files, **options, report=True, refine_steps=4, detail_steps=2, temperature=0.1
    )
    return request.param, folder / work.run()[0]["name"]


def test_refined_detailed_weighed_and_reported(registered):
    name, folder = registered
    figures = json.loads((folder / "diagnostics.json").read_text())
    assert figures["refine_gain_log_posterior"] > 0
    assert figures["detail_gain_log_posterior"] > 0
    assert np.isfinite(figures["ess"])
    assert figures["ncc_after"] > figures["ncc_before"]
    assert (folder / "report.html").stat().st_size > 100_000
    assert (nib.load(folder / "uncertainty_std.nii.gz").get_fdata()[..., 0] > 0).any()
    if name == "ensemble":
        assert figures["num_proposals"] == 3
        assert figures["unique_samples"] == 3
        assert figures["ess"] == pytest.approx(3, abs=0.1)  # at such a temperature, nearly alike


def test_saved_and_drawn_again(registered):
    name, folder = registered
    posterior = load(folder / "posterior.pt")
    kind = {"ensemble": "ncc"}.get(name, name)
    assert posterior.target.settings()["likelihood"]["kind"] == kind
    fields = [points for _, _, points in posterior.samples()]
    assert len(fields) == len(posterior.draws.counts())
    again = posterior.target.log_prior(torch.stack(fields))
    torch.testing.assert_close(
        again, posterior.draws.proposals.log_prior[list(posterior.draws.counts())], rtol=1e-5, atol=1e-2
    )
    assert isinstance(posterior.proposal, Fields) == (name == "ensemble")


def test_carried_to_other_files(registered, fine_pair, tmp_path):
    _, folder = registered
    middle = load(folder / "posterior.pt").space.fixed.to_world(np.array([[20.0, 24, 28]]))[0]
    (tmp_path / "points.csv").write_text("x,y,z\n" + ",".join(map(str, middle)))
    files = Application(
        str(folder / "posterior.pt"), label=fine_pair.files["moving_label"], points=str(tmp_path / "points.csv"),
        transforms=True, output_dir=str(tmp_path / "out"), progress=False,
    ).run()  # fmt: skip
    assert all(path.is_file() for path in files)
    labels = nib.load(tmp_path / "out/moving_label_labels.nii.gz").get_fdata()
    assert np.array_equal(labels, nib.load(folder / "labels.nii.gz").get_fdata())
    (row,) = csv.DictReader((tmp_path / "out/points_moved.csv").open())
    assert all(np.isfinite(float(value)) for key, value in row.items() if key != "name" and value)


def test_conditioned_on_what_an_expert_knows_if_it_is_a_gaussian(registered, tmp_path, capsys):
    name, folder = registered
    posterior = load(folder / "posterior.pt")
    middle = posterior.space.fixed.to_world(np.array([[20.0, 24, 28]]))
    moving = posterior.space.align(middle + posterior.space.displacement_at(posterior.mean.numpy(), middle)) + 2.0
    head = "name,fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z\n"
    (tmp_path / "l.csv").write_text(head + ",".join(map(str, ["p", *middle[0], *moving[0]])))
    options = {"landmarks": str(tmp_path / "l.csv"), "output_dir": str(tmp_path / "out"), "progress": False}
    work = Application(str(folder / "posterior.pt"), **options, report=False)
    if name == "ensemble":
        with pytest.raises(SystemExit):
            work.run()
        assert "needs a Gaussian" in capsys.readouterr().err
        return
    work.run()
    figures = json.loads((tmp_path / "out/diagnostics.json").read_text())["conditioning"]
    assert figures["landmark_error_after_mm"][0] < figures["landmark_error_before_mm"][0]


def test_what_cannot_be_stored_is_refused_before_anything_is_drawn():
    class Unnamed(Described, torch.nn.Module):
        """A likelihood without a kind."""

    model = small_model()
    with pytest.raises(Exception, match="Unnamed cannot be stored: give it a `kind`"):
        Sampler(model, likelihood=Unnamed())


def test_another_likelihood_is_not_weighed_by_what_was_fitted_with_the_old_one():
    from scripts.inference.model import Fitted
    from scripts.registration.self_similarity import MINDLikelihood

    model = small_model()
    model.fitted = Fitted(0.1, 7.0)
    assert Sampler(model).model.weighting() == (0.1, 7.0)
    assert Sampler(model, likelihood=MINDLikelihood()).model.weighting() == (3.0, None)
