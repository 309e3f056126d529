"""`run apply --landmarks`, `--corrected_label`, `--transforms`: on files, against the registration and SimpleITK."""

import csv
import json

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from monai.bundle import ConfigParser

from scripts.commands.apply import Application
from scripts.commands.carrying import Carrier
from scripts.core.errors import DataError
from scripts.data.pair_again import prepare_again
from scripts.evidence.landmarks import read_landmarks
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.proposals import sample_posterior
from scripts.posterior.posterior_file import load
from scripts.registration.transform import VelocityTransform
from tests.commands.conftest import ROOT, evaluator, small_model

AFFINE = np.array([[1.04, 0.05, 0, 3], [-0.05, 0.97, 0.02, -4], [0, -0.02, 1, 5], [0, 0, 0, 1.0]])


@pytest.fixture(scope="module")
def registered(pair, weights, tmp_path_factory):
    """Registered with an alignment, which must be part of everything that follows."""
    folder = tmp_path_factory.mktemp("registered")
    person, affine = pair.subjects[1], AFFINE @ pair.subjects[1].affine
    moved = pair.write("moved", person.image, affine)
    label = pair.write("moved_l", person.label.astype(np.int16), affine)
    files = {
        "fixed": pair.files["fixed"],
        "moving": moved,
        "moving_label": label,
        "fixed_label": pair.files["fixed_label"],
    }
    # Not refined: what conditioning does to the proposal of the network is what is looked at.
    return folder / evaluator(folder, weights, align="affine", refine_steps=0, **files).run()[0]["name"]


def apply(registered, folder, **options):
    posterior = str(registered / "posterior.pt")
    return Application(posterior, output_dir=str(folder), progress=False, report=False, **options).run()


def write_landmarks(path, stored, shift=(6.0, -4.0, 3.0), sign=(1, 1, 1)):
    """Four points; under the registration's mean they go `shift` mm elsewhere."""
    middle = stored.space.work.to_world(np.array(stored.space.work.shape)[None] / 2)
    fixed = middle + np.array([[0.0, 0, 0], [12, 0, 0], [0, 15, -5], [-10, 5, 12]])
    moving = stored.space.align(fixed + stored.space.displacement_at(stored.mean.numpy(), fixed)) + shift
    rows = ["name,fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z"]
    for i, (a, b) in enumerate(zip(fixed * sign, moving * sign, strict=True)):
        rows.append(",".join(map(str, [f"p{i}", *a, *b])))
    path.write_text("\n".join(rows))
    return fixed, moving


def test_the_files_prepared_again_are_the_same_and_give_the_same_weights(registered):
    stored = load(registered / "posterior.pt")
    assert not np.allclose(stored.space.alignment, np.eye(4))
    item = prepare_again(stored.space, stored.files)
    target = stored.target
    images = (item[key].as_tensor()[None] for key in ("moving", "fixed"))
    again = sample_posterior(
        stored.proposal, target, target.prepare(*images)[0], num_proposals=12, num_samples=6,
        temperature=stored.draws.temperature, scale=stored.draws.scale, seed=stored.draws.proposals.seed,
    )  # fmt: skip
    before = stored.draws.proposals
    torch.testing.assert_close(again.proposals.log_likelihood, before.log_likelihood, rtol=1e-5, atol=1e-2)
    torch.testing.assert_close(again.weights, stored.draws.weights, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def conditioned(registered, tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    stored = load(registered / "posterior.pt")
    fixed, moving = write_landmarks(folder / "landmarks.csv", stored)
    # By the shipped config, whose names have to fit the code's.
    parser = ConfigParser()
    parser.read_config(str(ROOT / "configs/apply.json"))
    options = {"posterior": str(registered / "posterior.pt"), "output_dir": str(folder / "out"), "report": False}
    parser.update({**options, "landmarks": str(folder / "landmarks.csv"), "landmark_std": 0.05})
    return folder, fixed, moving, parser.get_parsed_content("application").run()


def test_all_files_of_a_registration_are_there(conditioned, registered):
    folder, _, _, files = conditioned
    expected = {path.relative_to(registered) for path in registered.rglob("*") if path.is_file()}
    assert {path.relative_to(folder / "out") for path in files} == expected - {"report.html"}
    for name in ("warped", "labels", "uncertainty_std", "label_probability"):
        before, after = (nib.load(path / f"{name}.nii.gz").get_fdata() for path in (registered, folder / "out"))
        assert not np.array_equal(before, after)


def test_the_mean_transform_goes_through_the_landmarks_in_simpleitk(conditioned):
    """SimpleITK maps the fixed points to the moving ones: the alignment, LPS and the observation's units are right."""
    folder, fixed, moving, _ = conditioned
    stored = load(folder / "out" / "posterior.pt")
    assert isinstance(stored.proposal, ConditionedGaussian)
    files = apply(folder / "out", folder / "samples", transforms=True)
    assert files[-1].name == "weights.csv"
    for path in files[:-1]:
        transform = sitk.ReadTransform(str(path))
        for a, b in zip(fixed, moving, strict=True):
            got = np.array(transform.TransformPoint((a * [-1, -1, 1]).tolist())) * [-1, -1, 1]
            assert np.linalg.norm(got - b) < 0.3  # six standard deviations of 0.05 mm
    figures = json.loads((folder / "out/diagnostics.json").read_text())["conditioning"]
    assert max(figures["landmark_error_after_mm"]) < 0.2
    assert min(figures["landmark_error_before_mm"]) == pytest.approx(np.linalg.norm([6, -4, 3]), abs=0.01)


def test_the_conditioned_posterior_is_drawn_again_from_its_file(conditioned):
    stored = load(conditioned[0] / "out/posterior.pt")
    total, mean = 0, torch.zeros_like(stored.mean)
    for _, count, points in stored.samples():
        total += count
        mean += count * points
    torch.testing.assert_close(mean / total, stored.mean, rtol=1e-4, atol=1e-4)


def test_weights_come_from_the_images_alone(conditioned, registered):
    """log α has no landmark term: it is log p(I|z) + log p(z) − log q(z) but for one constant."""
    folder = conditioned[0]
    given, before = (load(path / "posterior.pt") for path in (folder / "out", registered))
    proposals = given.draws.proposals
    z = given.proposal.sample(len(proposals.log_prior), seed=proposals.seed)
    expected = proposals.log_likelihood + proposals.log_prior - before.proposal.log_prob(z)[:, 0]
    difference = proposals.log_weights - expected
    assert float(difference.std()) < 1e-3 * float(expected.std())


@pytest.mark.parametrize("space", ["RAS", "LPS"])
def test_both_conventions_give_the_same(registered, conditioned, tmp_path, space):
    stored = load(registered / "posterior.pt")
    write_landmarks(tmp_path / "l.csv", stored, sign=(-1, -1, 1) if space == "LPS" else (1, 1, 1))
    marks = read_landmarks(tmp_path / "l.csv", space)
    np.testing.assert_allclose(marks.fixed, conditioned[1], atol=1e-9)
    np.testing.assert_allclose(marks.moving, conditioned[2], atol=1e-9)


def test_samples_are_exact_b_splines_in_itk_with_their_weights(registered, tmp_path):
    files = apply(registered, tmp_path, transforms=True)
    stored = load(registered / "posterior.pt")
    rows = list(csv.DictReader(files[-1].open()))
    assert sum(float(row["weight"]) for row in rows) == pytest.approx(1)
    low, high = stored.space.fixed.bounds
    points = np.random.default_rng(0).uniform(low, high, (200, 3))
    for row, (index, count, field) in zip(rows, stored.samples(), strict=True):
        assert (int(row["proposal"]), int(row["count"])) == (index, count)
        transform = sitk.ReadTransform(str(tmp_path / "transforms" / row["file"]))
        got = np.array([transform.TransformPoint(p.tolist()) for p in points * [-1, -1, 1]]) * [-1, -1, 1]
        inside = ((w := stored.space.work.to_indices(points)) > 1).all(1) & (
            w < np.array(stored.space.work.shape) - 2
        ).all(1)
        expected = stored.space.align(points + stored.space.displacement_at(field.double().numpy(), points))
        np.testing.assert_allclose(got[inside], expected[inside], atol=1e-5)
        dense = stored.space.displacement(field[None].double())[0].numpy()
        voxels = np.random.default_rng(1).integers(0, stored.space.fixed.shape, (50, 3))
        world = stored.space.fixed.to_world(voxels)
        got = np.array([transform.TransformPoint(p.tolist()) for p in world * [-1, -1, 1]]) * [-1, -1, 1]
        np.testing.assert_allclose(got, stored.space.align(world + dense[:, *voxels.T].T), atol=1e-5)


def test_a_corrected_label_draws_the_outline_there(registered, pair, tmp_path):
    """The fixed person's own label as the correction: the structure's Dice rises, its outline's error falls."""
    own = nib.load(pair.files["fixed_label"])
    truth, before = own.get_fdata(), nib.load(registered / "labels.nii.gz").get_fdata()
    moving = nib.load(pair.folder / "moved_l.nii.gz").get_fdata()
    values = [v for v in np.unique(truth)[1:] if (truth == v).sum() > 60 and (moving == v).sum() > 60]

    def dice(found, value):
        return 2 * ((found == value) & (truth == value)).sum() / ((found == value).sum() + (truth == value).sum())

    worst = min(values, key=lambda value: dice(before, value))
    corrected = np.where(truth == worst, worst, np.where(before == worst, 0, before)).astype(np.int16)
    nib.save(nib.Nifti1Image(corrected, own.affine), tmp_path / "c.nii.gz")
    apply(registered, tmp_path / "out", corrected_label=str(tmp_path / "c.nii.gz"), corrected_structures=int(worst))
    after = nib.load(tmp_path / "out/labels.nii.gz").get_fdata()
    figures = json.loads((tmp_path / "out/diagnostics.json").read_text())["conditioning"]
    assert figures["structures"] == [worst]
    assert figures["outline_error_after_mm"] < 0.8 * figures["outline_error_before_mm"]
    assert dice(after, worst) > dice(before, worst)
    assert load(tmp_path / "out/posterior.pt").draws.proposals.log_evidence is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"landmarks": "/nowhere.csv"}, "does not exist"),
        ({"landmarks": "L", "landmark_std": 0}, "--landmark_std"),
        ({"landmarks": "L", "landmarks_space": "XYZ"}, "--landmarks_space"),
        ({"landmarks": "L", "landmarks_space": "LPS", "files": {"fixed": "/nowhere.nii"}}, "--fixed"),
        ({"landmarks": "FAR"}, "outside of the brain's box"),
        ({"landmarks": "L", "files": {"fixed": "MOVED"}}, "is not that of the image that was registered"),
        ({"landmarks": "L", "output_dir": "OWN"}, "holds the registration itself"),
        ({"landmarks": "L", "settings": {"num_proposals": 1}}, "--num_proposals"),
        ({"corrected_label": "/nowhere.nii"}, "does not exist"),
        ({"corrected_label": "SMALL"}, "is not that of the fixed image"),
        ({"corrected_label": "SAME"}, "nothing was corrected"),
        ({"corrected_label": "TRUE", "corrected_structures": [9999]}, "no structure 9999"),
        ({"corrected_label": "TRUE", "outline_std": -1}, "--outline_std"),
    ],
)
def test_mistakes_are_named_in_one_line(registered, pair, tmp_path, capsys, options, words):
    stored = load(registered / "posterior.pt")
    write_landmarks(tmp_path / "l.csv", stored)
    columns = "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z"
    (tmp_path / "far.csv").write_text(f"{columns}\n900,0,0,0,0,0\n")
    small = nib.Nifti1Image(np.ones((4, 4, 4), np.int16), np.diag([6.0, 6, 6, 1]))
    nib.save(small, tmp_path / "small.nii.gz")
    names = {
        "L": str(tmp_path / "l.csv"), "FAR": str(tmp_path / "far.csv"), "MOVED": str(pair.folder / "moved.nii.gz"),
        "OWN": str(registered.parent), "SMALL": str(tmp_path / "small.nii.gz"), "TRUE": pair.files["fixed_label"],
        "SAME": str(registered / "labels.nii.gz"),
    }  # fmt: skip
    options = {"output_dir": str(tmp_path / "out"), "progress": False, **options}
    options = {key: names.get(value, value) if isinstance(value, str) else value for key, value in options.items()}
    if "files" in options:
        options["files"] = {key: names.get(value, value) for key, value in options["files"].items()}
    with pytest.raises(SystemExit) as caught:
        Application(str(registered / "posterior.pt"), **options).run()
    assert caught.value.code == 1
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_what_is_conditioned_already_is_refused(conditioned, tmp_path, capsys):
    folder = conditioned[0]
    with pytest.raises(SystemExit):
        apply(folder / "out", tmp_path / "twice", landmarks=str(folder / "landmarks.csv"))
    assert "conditioned already" in capsys.readouterr().err


def test_velocities_are_refused(pair, weights, tmp_path, capsys):
    files = {key: pair.files[key] for key in ("fixed", "moving")}
    small_model(VelocityTransform()).save(tmp_path / "model.pt")
    name = evaluator(tmp_path, str(tmp_path / "model.pt"), **files).run()[0]["name"]
    write_landmarks(tmp_path / "l.csv", load(tmp_path / name / "posterior.pt"))
    with pytest.raises(SystemExit):
        apply(tmp_path / name, tmp_path / "out", landmarks=str(tmp_path / "l.csv"))
    assert "velocities" in capsys.readouterr().err


def test_a_posterior_of_an_earlier_version_is_refused(registered, tmp_path, capsys):
    content = torch.load(registered / "posterior.pt", weights_only=True)
    content["transform"] = content["target"]["transform"]
    for key in ("target", "files", "observations", "log_evidence"):
        del content[key]
    torch.save({**content, "version": 1}, tmp_path / "posterior.pt")
    write_landmarks(tmp_path / "l.csv", load(tmp_path / "posterior.pt"))
    with pytest.raises(SystemExit):
        apply(tmp_path, tmp_path / "out", landmarks=str(tmp_path / "l.csv"))
    assert "register the pair again" in capsys.readouterr().err


def test_earlier_samples_are_replaced_on_request_and_nothing_else_is(registered, tmp_path, capsys):
    files = apply(registered, tmp_path, transforms=True)
    more = tmp_path / "transforms/sample_999.h5"
    more.write_bytes(files[0].read_bytes())
    with pytest.raises(SystemExit):
        apply(registered, tmp_path, transforms=True)
    assert "--overwrite true" in capsys.readouterr().err
    assert apply(registered, tmp_path, transforms=True, overwrite="true") == files
    assert sorted((tmp_path / "transforms").iterdir()) == sorted(files)
    (tmp_path / "transforms/mine.txt").write_text("mine")
    with pytest.raises(SystemExit):
        apply(registered, tmp_path, transforms=True, overwrite=True)
    assert "also holds mine.txt" in capsys.readouterr().err
    (tmp_path / "transforms/weights.csv").write_text("weight\n70\n")
    with pytest.raises(SystemExit):
        apply(registered, tmp_path, transforms=True, overwrite=True)
    assert "is no folder of samples" in capsys.readouterr().err
    assert (tmp_path / "transforms/mine.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["transforms"]


def test_a_failure_while_samples_are_written_leaves_the_earlier_ones(registered, tmp_path):
    files = apply(registered, tmp_path, transforms=True)
    before = {path: path.read_bytes() for path in files}
    job = Carrier(load(registered / "posterior.pt"), tmp_path, True, True)
    job.take_transforms()
    job.posterior.samples = lambda: iter([(0, 1, torch.zeros(2, 2))])  # of a wrong shape
    with pytest.raises((ValueError, IndexError)):
        job.run(False)
    assert {path: path.read_bytes() for path in (tmp_path / "transforms").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["transforms"]


def test_false_as_a_word_is_false(registered):
    posterior = str(registered / "posterior.pt")
    assert Application(posterior, discrepancy="false").discrepancy is False
    with pytest.raises(DataError, match="--discrepancy must be true or false, got 'maybe'"):
        Application(posterior, discrepancy="maybe")


def test_what_others_put_beside_a_conditioned_result_stays(registered, conditioned, tmp_path):
    folder = conditioned[0]
    marks = str(folder / "landmarks.csv")
    apply(registered, tmp_path / "out", landmarks=marks)
    (tmp_path / "out/corrected.nii.gz").write_text("mine")
    apply(registered, tmp_path / "out", landmarks=marks, settings={"seed": 5})
    assert (tmp_path / "out/corrected.nii.gz").read_text() == "mine"


def test_a_registration_that_was_refined_is_refined_again_with_what_is_known(
    registered, pair, weights, tmp_path, monkeypatch
):
    """Marks are met as well as without, and the images match better: they have a say about all the rest."""
    files = {key: pair.files[key] for key in ("fixed", "moving")}
    name = evaluator(tmp_path / "in", weights, refine_steps=4, **files).run()[0]["name"]
    stored = load(tmp_path / "in" / name / "posterior.pt")
    assert stored.steps["refine_steps"] == 4
    write_landmarks(tmp_path / "l.csv", stored)
    solved, solve = [], ConditionedGaussian._solve_rows
    monkeypatch.setattr(ConditionedGaussian, "_solve_rows", lambda self: solved.append(1) or solve(self))
    figures = {}
    for steps in (None, 0):
        out = tmp_path / f"out{steps}"
        options = {"landmarks": str(tmp_path / "l.csv"), "landmark_std": 0.5}
        apply(tmp_path / "in" / name, out, **options, settings={"refine_steps": steps})
        figures[steps] = json.loads((out / "diagnostics.json").read_text())
    assert len(solved) == 2  # once for each, whatever the discrepancy and the refinement
    assert figures[None]["conditioning"]["refine_steps"] == 4
    assert "refinement" not in figures[0]["seconds"]
    assert figures[None]["ncc_after"] > figures[0]["ncc_after"]
    for part in figures.values():
        errors = part["conditioning"]
        assert np.mean(errors["landmark_error_after_mm"]) < 0.3 * np.mean(errors["landmark_error_before_mm"])
    given = load(tmp_path / "outNone/posterior.pt")
    total = sum(count * points for _, count, points in given.samples()) / len(given.draws.resampled)
    torch.testing.assert_close(total, given.mean, rtol=1e-4, atol=1e-4)
