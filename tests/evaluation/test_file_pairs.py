"""Files on grids of their own: what is scored is what a person gets from `run inference`, sample by sample."""

import math

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.core.seg35 import SCORED
from scripts.data.datalist import load_datalist
from scripts.data.dataset_folders import IMAGE, LABEL
from scripts.data.pair_input import pair_input_transforms
from scripts.data.pairs import FilePairDataset
from scripts.evaluation.evaluator import Evaluation
from scripts.evaluation.fit_temperature import Calibration
from scripts.evaluation.ignite_metrics import AUSE, ECE
from scripts.evaluation.pair_report import LabeledPair, pair_seed
from scripts.evaluation.perturb import perturbation
from scripts.evaluation.results import ResultsError
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.sampler import Sampler
from scripts.registration.transform import VelocityTransform
from scripts.synthetic.subjects import synthesize_subject
from tests.evaluation.brains import label_entropies
from tests.evaluation.test_evaluator import CONFIGS, noted, untrained

WORK = 10.0
SETTINGS = {
    "num_proposals": 8, "num_samples": 5, "temperature": 0.5, "refine_steps": 3, "detail_steps": 2, "progress": False,
}  # fmt: skip
PEOPLE = {"OASIS_OAS1_0001_MR1": 7.0, "OASIS_OAS1_0002_MR1": 6.0}  # names to edges of voxels in mm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two people whose files differ in spacing, orientation and place."""
    root = tmp_path_factory.mktemp("files")
    for seed, (name, spacing) in enumerate(PEOPLE.items()):
        shape = [round(edge / spacing) for edge in (160, 190, 170)]
        subject = synthesize_subject(seed=seed, shape=shape, spacing=spacing)
        affine, values = np.array(subject.affine), {IMAGE: subject.image, LABEL: subject.label}
        if seed:  # the moving one lies 12 mm off and is stored from the other end
            values = {file: array[::-1].copy() for file, array in values.items()}
            affine[:3, 3] += (shape[0] - 1) * affine[:3, 0] + [12.0, 0.0, 0.0]
            affine[:3, 0] *= -1
        (root / name).mkdir()
        for file, array in values.items():
            nib.save(nib.Nifti1Image(array, affine), root / name / file)
    return root


def pairs_of(folder, **options):
    options = {"pixdim": WORK, "stride": 4, "alignment": "rigid", **options}
    return FilePairDataset(load_datalist(folder, "all"), pair_input_transforms(**options), [(0, 1)])


def nearest(label: np.ndarray, grid: Grid, points: np.ndarray) -> np.ndarray:
    """Values of a label map at points (P, 3) in RAS mm, 0 outside."""
    indices = np.floor(grid.to_indices(points) + 0.5).astype(int)
    inside = ((indices >= 0) & (indices < np.array(grid.shape))).all(1)
    return np.where(inside, label[tuple(np.where(inside[:, None], indices, 0).T)], 0)


def warped_labels(posterior: Posterior, label: np.ndarray, field: torch.Tensor) -> np.ndarray:
    """The moving label map at the fixed file's voxels, each looked up point by point."""
    space = posterior.space
    voxels = np.indices(space.fixed.shape).reshape(3, -1).T
    points = space.fixed.to_world(voxels)
    moved = space.align(points + space.displacement_at(field.numpy(), points))
    return nearest(label, space.moving, moved).reshape(space.fixed.shape)


def dice(a: np.ndarray, b: np.ndarray, value: int) -> float:
    total = int((a == value).sum() + (b == value).sum())
    return 2 * int(((a == value) & (b == value)).sum()) / total if total else math.nan


@pytest.mark.parametrize("transform", [None, VelocityTransform(steps=4)])
def test_scores_are_those_of_the_posteriors_samples(folder, tmp_path, transform):
    model, dataset = untrained(gain=1.0, sigma=0.1, transform=transform), pairs_of(folder)
    run = Evaluation(Sampler(model, SETTINGS), dataset, SCORED, tmp_path, figures=False, progress=False)
    run.run()
    (result,) = run.store.results
    assert (result.fixed, result.moving) == tuple(PEOPLE)

    # The way of `run inference`
    item = dataset[0]
    seed = pair_seed(tuple(PEOPLE))
    posterior = Sampler(model, {**SETTINGS, "seed": seed}).posterior(PairImages.of_item(item, factor=2))
    assert posterior.space.detail is not None
    assert np.abs(posterior.space.alignment - np.eye(4)).max() > 1
    fixed_label, moving_label = (nib.load(folder / name / LABEL).get_fdata() for name in PEOPLE)
    maps, counts, displacements = [], [], []
    for _, count, points in posterior.samples():
        maps.append(warped_labels(posterior, moving_label, points))
        counts.append(count)
        displacements.append(posterior.space.displacement(points[None])[0].double())
    means = {"dice_mu": posterior.center(), "dice_mean": posterior.mean}
    judged = {name: warped_labels(posterior, moving_label, field) for name, field in means.items()}
    each = np.array([[dice(label_map, fixed_label, value) for value in SCORED] for label_map in maps])
    judged["dice_oracle"] = maps[int(np.nanmean(each, 1).argmax())]
    for name, label_map in judged.items():
        by_hand = [dice(label_map, fixed_label, value) for value in SCORED]
        # A point in the middle between two voxels may go either way.
        assert result.structures[name] == pytest.approx(by_hand, abs=0.02, nan_ok=True)
        assert result.pair[name] == pytest.approx(np.nanmean(by_hand), abs=1e-3)
    before = nearest(moving_label, posterior.space.moving, posterior.space.align(
        posterior.space.fixed.to_world(np.indices(fixed_label.shape).reshape(3, -1).T)
    )).reshape(fixed_label.shape)  # fmt: skip
    assert result.pair["dice_before"] == pytest.approx(
        np.nanmean([dice(before, fixed_label, value) for value in SCORED]), abs=1e-3
    )
    repeated = torch.stack(displacements).repeat_interleave(torch.tensor(counts), 0)
    variance = repeated.var(0).sum(0)[torch.from_numpy(fixed_label > 0)].mean()
    assert result.pair["displacement_variance_total"] == pytest.approx(float(variance), rel=1e-4)
    assert (result.pair["ess"], result.pair["samples"]) == (pytest.approx(posterior.draws.ess), 5)
    every = torch.from_numpy(np.stack(maps)).repeat_interleave(torch.tensor(counts), 0)
    truth = torch.from_numpy(fixed_label)
    expected = {
        name: metric(SCORED)([every], [truth[None]])[0] for name, metric in (("ece", ECE), ("ause_label", AUSE))
    }
    expected["label_entropy"] = label_entropies(every, truth, SCORED)
    for name, values in expected.items():
        assert result.structures[name] == pytest.approx(values.tolist(), abs=0.02, nan_ok=True)


def test_what_the_posterior_depends_on_is_noted(folder, tmp_path):
    model = untrained()

    def run(settings=None, **options):
        few = {"num_proposals": 3, "num_samples": 2, "progress": False, **(settings or {})}
        dataset = pairs_of(folder, **options)
        Evaluation(Sampler(model, few), dataset, SCORED, tmp_path, figures=False, progress=False).run()

    run()
    assert noted(tmp_path)["transform.5.Alignd.method"] == "rigid"
    run()  # goes on: nothing in the settings is of this process alone
    with pytest.raises(ResultsError, match=r"transform\.5\.Alignd\.method was 'rigid', now 'none'"):
        run(alignment="none")
    with pytest.raises(ResultsError, match="detail_steps was 0, now 1"):
        run({"detail_steps": 1})


def test_calibration_on_files(folder, tmp_path):
    model = untrained()
    model.save(tmp_path / "model.pt")
    sampler = Sampler(model, SETTINGS)
    report = Calibration(
        sampler, pairs_of(folder), SCORED, tmp_path / "model.pt", tmp_path, temperatures=(0.5, 4.0), progress=False
    ).run()
    assert (report["detail_steps"], model.fitted.notes["detail_steps"]) == (2, 2)
    run = Evaluation(
        sampler.with_settings(temperature=None),
        pairs_of(folder),
        SCORED,
        tmp_path / "after",
        figures=False,
        progress=False,
    )
    scores = run.run()["structures"]
    assert report["after"]["ece"] == pytest.approx(scores["ece"]["mean"], abs=1e-12)
    assert report["after"]["dice_mean"] == pytest.approx(scores["dice_mean"]["mean"], abs=1e-3)


def test_items_are_files_as_inference_prepares_them(folder):
    seen = {}
    dataset = FilePairDataset(load_datalist(folder, "all"), lambda item: seen.update(item) or item, [(1, 0)])
    assert len(dataset) == len(list(dataset)) == 1
    first, second = PEOPLE
    assert seen == {
        "fixed_name": second, "fixed": str(folder / second / IMAGE), "fixed_label": str(folder / second / LABEL),
        "moving_name": first, "moving": str(folder / first / IMAGE), "moving_label": str(folder / first / LABEL),
    }  # fmt: skip
    pair = LabeledPair.of_item(pairs_of(folder)[0])
    assert pair.names == (first, second)
    assert pair.fixed_label.shape != pair.moving_label.shape


def test_a_disturbed_pair_is_disturbed_before_it_is_aligned(folder):
    (plain,), (moved,) = pairs_of(folder), pairs_of(folder, disturb=perturbation("shift"))
    assert torch.equal(moved["fixed"], plain["fixed"])
    assert (moved["moving_label"] != plain["moving_label"]).float().mean() > 0.01  # 6 mm on the moving file's own grid
    apart = np.linalg.norm(moved["alignment"].matrix[:3, 3] - plain["alignment"].matrix[:3, 3])
    assert 3 < apart < 9
    assert float((moved["moving"] - plain["moving"]).abs().mean()) < 0.05


def test_synthetic_scans_are_no_files():
    synthetic = load_datalist(None, "all", synthetic={"num_subjects": 2, "shape": [24, 24, 32], "spacing": 7.0})
    with pytest.raises(DataError, match="expected files, see --dataset_dir; got synthetic scans"):
        FilePairDataset(synthetic, pair_input_transforms())


@pytest.mark.parametrize("perturb", [None, "noise"])
def test_the_shipped_config(folder, tmp_path, perturb):
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / name) for name in ("train.yaml", "evaluate.yaml", "presets/files.yaml")])
    small = {
        "device": "cpu", "dataset_dir": str(folder), "split": "all", "num_pairs": 1, "voxel_mm": WORK, "rank": 2,
        "channels": [4, 4, 4, 4], "evaluated_proposals": 3, "evaluated_samples": 2, "refine_steps": 1,
        "detail_steps": 1, "ckpt_path": str(tmp_path / "model.pt"), "output_dir": str(tmp_path),
        "perturb": perturb,
    }  # fmt: skip
    for name, value in small.items():
        parser[name] = value
    parser.get_parsed_content("configured").save(tmp_path / "model.pt")
    summary = parser.get_parsed_content("evaluator").run()
    assert summary["num_pairs"] == 1
    now = noted(tmp_path / ("evaluation_all_files" if perturb is None else f"evaluation_all_files_{perturb}"))
    step = "transform.5." if perturb is None else "transform.5.1."
    assert (now["detail_steps"], now[f"{step}Alignd.method"], now["voxel_mm"]) == (1, "auto", WORK)
    assert now.get("transform.5.0.Perturbation.name") == perturb


def test_the_shipped_steps_are_those_of_inference():
    parser, inference = ConfigParser(), ConfigParser()
    parser.read_config([str(CONFIGS / name) for name in ("evaluate.yaml", "presets/files.yaml")])
    inference.read_config(str(CONFIGS / "inference.json"))
    for name in ("refine_steps", "detail_steps", "refine_parts", "align"):
        assert parser[name] == inference[name]
