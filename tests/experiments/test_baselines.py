"""Other tools on the same pairs: conventions of displacements, resumption, and the tools themselves where installed."""

import math
import re

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import MetaTensor

from experiments.baselines.__main__ import main, option
from experiments.baselines.displacement import read_displacement
from experiments.baselines.methods import NAMES, Registered, Unregistered, _voxels, make
from experiments.baselines.run import pairs_of, run, score
from experiments.baselines.samples import append_volumes, read_volumes, volumes_of
from scripts.core.grid import Grid
from scripts.data.pairs import PairDataset
from scripts.data.transforms import load_transforms
from scripts.evaluation.pair_report import LabeledPair
from scripts.evaluation.pair_result import RIBBON_SCORES
from scripts.evaluation.results import ResultsError, ResultStore
from scripts.files.itk import write_displacement
from scripts.inference.model_file import load_model
from scripts.registration.warp import warp_labels
from scripts.synthetic.subjects import synthesize_subject
from tests.engines.conftest import ROOT
from tests.evaluation.brains import LABELS, SHIFT, shifted_pair

SYNTHETIC = {"num_subjects": 3, "shape": [24, 32, 32], "spacing": 7.0}
LIA = np.array([[-2.0, 0, 0, 60], [0, 0, 2.0, -70], [0, -2.0, 0, 50], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def dataset():
    return pairs_of("", "all", None, 2, SYNTHETIC)


def test_score_takes_displacements_from_fixed_to_moving_in_voxels():
    pair = shifted_pair()
    ddf = torch.zeros(3, *pair.fixed_label.shape)
    ddf[0] = SHIFT
    result = score(Registered(ddf, 1.5), pair, LABELS)
    assert result.structures["dice_mean"] == pytest.approx([1.0, 1.0])
    assert result.pair["dice_before"] < 0.9
    assert result.pair["fold_mean"] == 0
    assert result.pair["seconds_network"] == 1.5
    assert all(math.isnan(value) for name in RIBBON_SCORES for value in result.structures[name])


def test_fields_in_millimeters_become_voxels_of_the_arrays_axes(tmp_path):
    grid = Grid((6, 7, 8), LIA)
    voxels = np.random.default_rng(0).normal(size=(3, *grid.shape)).astype(np.float32)
    write_displacement(tmp_path / "field.nii.gz", np.tensordot(LIA[:3, :3].astype(np.float32), voxels, axes=1), grid)
    np.testing.assert_allclose(_voxels(*read_displacement(tmp_path / "field.nii.gz")), voxels, atol=2e-4)


def test_run_is_resumed_and_refuses_other_settings(dataset, tmp_path, capsys):
    called = []

    class Counting(Unregistered):
        def __call__(self, fixed, moving):
            called.append(fixed.shape)
            return super().__call__(fixed, moving)

    one = PairDataset(dataset.subjects, load_transforms(), dataset.pairs[:1])
    run("unregistered", Counting(), one, tmp_path, progress=False)
    summary = run("unregistered", Counting(), dataset, tmp_path)
    assert len(called) == 2  # the first pair was not done again
    assert "2/2" in capsys.readouterr().err
    assert summary["structures"]["dice_mean"]["mean"] == pytest.approx(
        summary["pairs"]["dice_before"]["mean"], abs=0.02
    )
    with pytest.raises(ResultsError, match="method was 'unregistered', now 'syn'"):
        run("syn", Counting(), dataset, tmp_path)


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Of the bundle, with a model for the voxels of these brains."""
    path, model = tmp_path_factory.mktemp("weights") / "model.pt", load_model(ROOT / "models/model.pt")
    model.voxel_mm = 7.0
    model.save(path)
    return {"num_proposals": 8, "num_samples": 6, "align": "none", "num_modes": 0, "ckpt_path": str(path)}


def test_the_bundle_itself_through_files(dataset, options, tmp_path):
    one = PairDataset(dataset.subjects, load_transforms(), dataset.pairs[:1])
    summary = run("bundle", make("bundle", options), one, tmp_path, progress=False)
    assert summary["num_pairs"] == 1
    # Neither the registration nor what is around it takes no time.
    assert summary["pairs"]["seconds"]["mean"] > summary["pairs"]["seconds_network"]["mean"] > 0
    # Whatever the weights: labels that were carried by a field in a wrong frame would overlap hardly at all.
    before, after = summary["pairs"]["dice_before"]["mean"], summary["structures"]["dice_mean"]["mean"]
    assert after > before - 0.05


def test_results_of_other_weights_of_the_bundle_are_refused(dataset, tmp_path):
    weights = tmp_path / "model.pt"
    weights.write_bytes(b"some")
    method = make("bundle", {"ckpt_path": str(weights)})
    one = PairDataset(dataset.subjects, load_transforms(), dataset.pairs[:1])
    store = ResultStore(tmp_path / "out")
    store.check_settings({"method": "bundle", **method.settings()})
    store.add(score(Registered(torch.zeros(3, 24, 32, 32), 1.0), LabeledPair.of_item(one[0])))
    weights.write_bytes(b"others")
    with pytest.raises(ResultsError, match="weights was"):
        run("bundle", method, one, tmp_path / "out", progress=False)
    assert make("bundle").settings()["weights"] != method.settings()["weights"]


def moved_ball():
    """A textured ball at 2 mm, and the same two voxels further along the first axis."""
    x, y, z = torch.meshgrid(*(torch.arange(float(n)) - n / 2 for n in (48, 48, 48)), indexing="ij")

    def ball(shift):
        u = x - shift
        inside = (u.square() + y.square() + z.square()) < 200
        return MetaTensor(((0.5 + 0.3 * torch.sin(u / 3) * torch.cos(y / 4)) * inside)[None], affine=torch.tensor(LIA))

    return ball(0), ball(2), (x.square() + y.square() + z.square()) < 100


@pytest.mark.parametrize(("name", "package"), [("affine", "ants"), ("syn", "ants"), ("convexadam", "convexAdam")])
def test_tools_find_a_shift(name, package):
    pytest.importorskip(package, reason=f"{package} comes with experiments/baselines/requirements.txt")
    fixed, moving, inside = moved_ball()
    registered = make(name)(fixed, moving)
    assert registered.ddf.shape == (3, 48, 48, 48)
    assert registered.ddf[:, inside].mean(1).tolist() == pytest.approx([2.0, 0.0, 0.0], abs=0.3)
    assert registered.seconds > 0


@pytest.mark.parametrize(("spacing", "expected"), [(1.0, (100, 70, 50, 20)), (2.0, (100, 70, 50)), (4.0, (100, 70))])
def test_syn_iterates_down_to_the_images_own_resolution(spacing, expected):
    assert make("syn").options(spacing) == {"reg_iterations": expected}
    assert make("syn_default").options(spacing) == {}


def test_command(tmp_path, capsys):
    for number in range(2):
        person = tmp_path / f"data/OASIS_OAS1_{number:04d}_MR1"
        person.mkdir(parents=True)
        subject = synthesize_subject(seed=number, shape=(16, 24, 24), spacing=9.0)
        for name, values in (("norm", subject.image), ("seg35", subject.label.astype(np.int16))):
            nib.save(nib.Nifti1Image(values, subject.affine), person / f"aligned_{name}.nii.gz")
    where = ["--dataset_dir", str(tmp_path / "data"), "--split_file", "", "--split", "all", "--num_pairs", "1"]
    main(["unregistered", *where, "--output_dir", str(tmp_path / "out")])
    assert "unregistered: 1 pairs, Dice 0." in capsys.readouterr().out
    assert (tmp_path / "out/pairs.csv").is_file()
    (done,) = ResultStore(tmp_path / "out").results
    names = (done.fixed, done.moving)
    both = pairs_of(str(tmp_path / "data"), "all", None, None)
    assert len(both) == 2
    other = pairs_of(str(tmp_path / "data"), "all", None, None, known={names})
    assert [tuple(other.subjects[i]["name"] for i in other.pair(0))] == [names[::-1]]
    assert len(other) == 1
    assert option("refine_steps=30") == ("refine_steps", 30)
    assert option("ckpt_path=a.pt") == ("ckpt_path", "a.pt")
    for wrong in ({"options": {"refine_steps": 3}}, {"preset": "fast"}):
        with pytest.raises(SystemExit, match="only the bundle itself has options"):
            make("syn", **wrong)
    fast, fine = make("bundle", preset="fast").settings(), make("bundle", preset="one_mm").settings()
    assert (fast["preset"], fast["weights"]) == ("fast", make("bundle").settings()["weights"])
    assert fine["weights"] != fast["weights"]  # the preset has weights of its own
    assert set(NAMES) >= {"affine", "syn", "convexadam", "bundle"}


def test_pins_are_those_of_the_project_where_antspyx_allows():
    def pins(path):
        return dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / path).read_text(), re.M))

    own, project = pins("experiments/baselines/requirements.txt"), pins("requirements.txt")
    different = {name for name in own if project.get(name) != own[name]}
    assert different == {"numpy", "scipy", "convexAdam", "antspyx"}


def test_samples_of_the_bundle_are_scored_as_by_an_evaluation(dataset, options, tmp_path):
    """Dice of the best sample, calibration and volumes by hand, from the posterior that the files hold."""
    one = PairDataset(dataset.subjects, load_transforms(), dataset.pairs[:1])
    item = one[0]
    registered = make("bundle", options, samples=True)(item["fixed"], item["moving"])
    pair = LabeledPair.of_item(item)
    labels = (1, 2, 20)
    stored, truth = registered.samples[0], pair.fixed_label.numpy()
    result, volumes = score(registered, pair, labels), volumes_of(stored, pair, labels)
    maps, counts = [], []
    for _, count, points in stored.samples():
        ddf = stored.space.in_fixed_voxels(stored.space.displacement(points[None]))
        maps.append(warp_labels(pair.moving_label[None, None], ddf)[0, 0].numpy())
        counts.append(count)
    dice = np.array(
        [[2 * ((m == v) & (truth == v)).sum() / ((m == v).sum() + (truth == v).sum()) for v in labels] for m in maps]
    )
    assert result.pair["dice_oracle"] == pytest.approx(dice.mean(1).max())
    assert result.pair["samples"] == 6
    field_alone = score(registered._replace(samples=None), pair, labels)
    assert result.structures["dice_mean"] == pytest.approx(field_alone.structures["dice_mean"], abs=0.02)
    assert all(math.isfinite(value) for name in RIBBON_SCORES for value in result.structures[name])
    for row, value in zip(volumes, labels, strict=True):
        sizes = np.repeat([(m == value).sum() * 343.0 for m in maps], counts)
        assert row.true == pytest.approx((truth == value).sum() * 343.0)
        assert row.mean == pytest.approx(sizes.mean())
        assert (row.lower, row.upper) == pytest.approx((sizes.min(), sizes.max()))  # of six samples
    append_volumes(tmp_path / "v.csv", volumes)
    append_volumes(tmp_path / "v.csv", volumes[:1])  # once more, after an interruption
    assert [row.label for row in read_volumes(tmp_path / "v.csv")] == list(labels)
    with pytest.raises(SystemExit, match="only the bundle"):
        make("syn", samples=True)
