"""Synthetic brains: the same person for the same seed, plausible anatomy, and files that others can read."""

import json
from functools import lru_cache

import nibabel as nib
import numpy as np
import pytest
import torch

from experiments.synthesize import main, split_subjects
from scripts.core.seg35 import NOT_SCORED, SCORED, SEG35
from scripts.synthetic.implicit import ellipsoid, random_lattice, sample_lattice, smooth_lattice, soft_min, tube
from scripts.synthetic.subjects import Subject, cohort_seeds, synthesize_subject

COARSE = {"shape": (40, 48, 56), "spacing": 4.0}
NUMBERS = {label.name: number for number, label in SEG35.items()}
PAIRS = [
    (number, NUMBERS[name.replace("Left-", "Right-")]) for name, number in NUMBERS.items() if name.startswith("Left-")
]


@lru_cache
def coarse(seed: int) -> Subject:
    return synthesize_subject(seed, **COARSE)


@lru_cache
def fine(seed: int) -> Subject:
    return synthesize_subject(seed)


def dice(a: np.ndarray, b: np.ndarray, label: int) -> float:
    a, b = a == label, b == label
    return float(2 * (a & b).sum() / max(a.sum() + b.sum(), 1))


def milliliters(subject: Subject, label: int) -> float:
    voxel = abs(np.linalg.det(subject.affine[:3, :3]))
    return float((subject.label == label).sum() * voxel / 1000)


class TestSubject:
    def test_types_and_range(self):
        subject = coarse(0)
        assert subject.image.shape == subject.label.shape == COARSE["shape"]
        assert subject.image.dtype == np.float32
        assert subject.label.dtype == np.uint8
        assert subject.image.min() == 0.0
        assert 0.8 < subject.image.max() <= 1.0

    def test_same_seed_same_brain(self):
        again = synthesize_subject(1, **COARSE)
        assert np.array_equal(again.image, coarse(1).image)
        assert np.array_equal(again.label, coarse(1).label)

    def test_global_random_state_is_neither_read_nor_changed(self):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        synthesize_subject(1, **COARSE)
        assert torch.equal(before, torch.get_rng_state())

    def test_other_seed_other_brain(self):
        assert np.mean(coarse(0).label != coarse(1).label) > 0.05

    def test_affine_is_centered_and_left_inferior_anterior(self):
        affine = coarse(0).affine
        assert nib.aff2axcodes(affine) == ("L", "I", "A")
        center = (np.array(COARSE["shape"]) - 1) / 2
        assert np.allclose(affine @ [*center, 1], [0, 0, 0, 1])

    def test_volume_is_black_at_its_border_and_outside_of_labels_there_is_only_fluid(self):
        image, label = fine(0).image, fine(0).label
        assert all(np.take(image, side, axis).max() == 0 for axis in range(3) for side in (0, -1))
        assert image[label == 0].max() < 0.65
        assert image[label > 0].min() >= 0

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"seed": -1}, "seed must be"),
            ({"seed": 0, "shape": (40, 48)}, "shape must be three positive"),
            ({"seed": 0, "shape": (40, 0, 56)}, "shape must be three positive"),
            ({"seed": 0, "spacing": 0.0}, "spacing must be positive"),
        ],
    )
    def test_bad_arguments_are_named(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            synthesize_subject(**kwargs)


class TestAnatomy:
    @pytest.mark.parametrize("seed", [0, 1])
    def test_every_scored_label_is_there_and_no_other(self, seed):
        assert set(np.unique(fine(seed).label)) == {0, *SCORED}

    @pytest.mark.parametrize("seed", range(3))
    def test_left_is_left(self, seed):
        label = coarse(seed).label
        middle = label.shape[0] / 2 - 0.5
        for left, right in PAIRS:
            if (label == left).any() and (label == right).any():
                assert np.argwhere(label == left)[:, 0].mean() > middle > np.argwhere(label == right)[:, 0].mean()

    def test_up_is_up_and_front_is_front(self):
        y, z = (np.array([np.argwhere(fine(0).label == n)[:, axis].mean() for n in (2, 13, 6, 8)]) for axis in (1, 2))
        cortex, stem, cerebellum, caudate = range(4)
        assert y[cortex] < y[stem]  # index 1 grows downwards
        assert y[cortex] < y[cerebellum]
        assert z[cerebellum] < z[stem] < z[caudate]  # index 2 grows to the front

    @pytest.mark.parametrize("seed", [0, 1])
    def test_sides_have_similar_volumes(self, seed):
        for left, right in PAIRS:
            if left not in NOT_SCORED and left != 4:  # the temporal horn is a few voxels wide
                ratio = milliliters(fine(seed), left) / milliliters(fine(seed), right)
                assert 0.6 < ratio < 1.67, SEG35[left].name

    @pytest.mark.parametrize("seed", [0, 1])
    def test_volumes_are_plausible(self, seed):
        # In ml, for one side. In the frame of neurite-OASIS, brains are 1.2 to 1.4 times larger than life.
        ranges = {1: (200, 400), 2: (280, 520), 3: (3, 40), 5: (10, 35), 6: (50, 120), 7: (5, 15), 8: (2, 7), 9: (3, 9),
                  10: (1, 4), 11: (0.3, 5), 12: (1, 6), 13: (18, 40), 14: (2.5, 8), 15: (0.6, 3), 16: (0.3, 1.8),
                  17: (3, 10)}  # fmt: skip
        for label, (low, high) in ranges.items():
            assert low < milliliters(fine(seed), label) < high, SEG35[label].name

    @pytest.mark.parametrize("seed", [0, 1])
    def test_contrast_is_that_of_t1(self, seed):
        image, label = fine(seed).image, fine(seed).label
        mean = {name: np.median(image[np.isin(label, numbers)]) for name, numbers in {
            "csf": (3, 22), "gray": (2, 21), "white": (1, 20), "thalamus": (7, 26), "pallidum": (10, 29),
        }.items()}  # fmt: skip
        assert mean["csf"] + 0.15 < mean["gray"] < mean["thalamus"] < mean["pallidum"] < mean["white"]
        assert mean["gray"] + 0.15 < mean["white"]

    def test_borders_are_soft(self):
        # Between the medians of gray and white matter lie many voxels of mixed content.
        image, label = fine(0).image, fine(0).label
        gray, white = (np.median(image[np.isin(label, numbers)]) for numbers in ((2, 21), (1, 20)))
        third = (white - gray) / 3
        assert np.mean((image > gray + third) & (image < white - third)) > 0.02

    def test_same_person_at_two_resolutions(self):
        large, small = fine(0), coarse(0)
        blocks = large.image.reshape(40, 2, 48, 2, 56, 2).mean((1, 3, 5))
        assert np.corrcoef(blocks.ravel(), small.image.ravel())[0, 1] > 0.97
        # A coarse voxel's label against the most frequent one of its eight fine voxels.
        eight = large.label.reshape(40, 2, 48, 2, 56, 2).transpose(0, 2, 4, 1, 3, 5).reshape(40, 48, 56, 8)
        counts = (eight[..., None] == eight[..., None, :]).sum(-1)
        majority = np.take_along_axis(eight, counts.argmax(-1)[..., None], -1)[..., 0]
        assert all(dice(majority, small.label, label) > 0.8 for label in (1, 20, 6, 25, 7, 26, 9, 28, 13))
        assert all(dice(majority, small.label, label) > 0.7 for label in (2, 21))

    def test_people_differ_as_much_as_affinely_aligned_people_do(self):
        people = [fine(seed) for seed in range(3)]
        pairs = [(a.label, b.label) for i, a in enumerate(people) for b in people[:i]]
        assert 0.5 < np.mean([dice(a, b, label) for a, b in pairs for label in SCORED]) < 0.7
        # Folds have no one-to-one partner.
        assert 0.35 < np.mean([dice(a, b, label) for a, b in pairs for label in (2, 21)]) < 0.7


class TestCohort:
    def test_seed_decides_who_is_in_it(self):
        assert cohort_seeds(3, seed=1) == cohort_seeds(4, seed=1)[:3]
        assert not set(cohort_seeds(50, seed=1)) & set(cohort_seeds(50, seed=2))

    @pytest.mark.parametrize("kwargs", [{"num_subjects": 0}, {"num_subjects": 1, "seed": -1}])
    def test_bad_arguments(self, kwargs):
        with pytest.raises(ValueError, match="got"):
            cohort_seeds(**kwargs)


class TestFiles:
    def test_cohort_round_trip(self, tmp_path, capsys):
        assert main(["--output_dir", str(tmp_path), "--subjects", "3", "--spacing", "4", "--seed", "2"]) == 0
        assert capsys.readouterr().out == f"Wrote 3 synthetic brains (1 train, 1 val, 1 test) at 4 mm to {tmp_path}\n"
        split = json.loads((tmp_path / "split.json").read_text())
        names = split["train"] + split["val"] + split["test"]
        assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "split.json"]
        for name, seed in zip(names, cohort_seeds(3, seed=2), strict=True):
            person = coarse(seed)
            image = nib.load(tmp_path / name / "aligned_norm.nii.gz")
            label = nib.load(tmp_path / name / "aligned_seg35.nii.gz")
            assert sorted(path.name for path in (tmp_path / name).iterdir()) == [
                "aligned_norm.nii.gz",
                "aligned_seg35.nii.gz",
            ]
            assert nib.aff2axcodes(image.affine) == nib.aff2axcodes(label.affine) == ("L", "I", "A")
            assert np.allclose(image.affine, person.affine)
            assert np.allclose(image.get_fdata(), person.image, atol=0.5 / 255 + 1e-6)
            assert np.array_equal(np.asarray(label.dataobj), person.label)

    def test_too_few_people_is_an_error_without_files(self, tmp_path, capsys):
        assert main(["--output_dir", str(tmp_path / "new"), "--subjects", "2"]) == 2
        assert "at least 3 subjects" in capsys.readouterr().err
        assert not (tmp_path / "new").exists()

    def test_split_keeps_everybody_once(self):
        names = [str(number) for number in range(20)]
        split = split_subjects(names)
        assert {part: len(people) for part, people in split.items()} == {"train": 14, "val": 3, "test": 3}
        assert sorted(name for people in split.values() for name in people) == sorted(names)


class TestShapesAndFields:
    def test_sphere_distance_is_exact(self):
        points = torch.tensor([[0.0, 0.0, 7.0], [3.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
        assert torch.allclose(ellipsoid(points, (0, 0, 0), (5, 5, 5)), torch.tensor([2.0, -2.0, 0.0]), atol=1e-5)

    def test_tube_distance_along_side_and_end(self):
        points = torch.tensor([[5.0, 3.0, 0.0], [13.0, 0.0, 0.0], [5.0, 0.0, 0.0]])
        distance = tube(points, [(0, 0, 0, 1), (10, 0, 0, 1)])
        assert torch.allclose(distance, torch.tensor([2.0, 2.0, -1.0]))

    def test_soft_min_is_min_away_from_the_crease(self):
        a, b = torch.tensor([0.0, 5.0, 1.0]), torch.tensor([5.0, 0.0, 1.0])
        assert torch.allclose(soft_min(a, b, 2.0), torch.tensor([0.0, 0.0, 0.5]))

    @pytest.mark.parametrize("bandwidth", [0.0, 0.25])
    def test_random_fields_have_unit_variance(self, bandwidth):
        field = random_lattice(torch.Generator().manual_seed(0), 4, 24.0, bandwidth)
        assert field.std().item() == pytest.approx(1.0, abs=0.1)
        assert field.mean().item() == pytest.approx(0.0, abs=0.1)

    def test_lattice_is_linear_between_its_points_and_smoothing_keeps_constants(self):
        ramp = torch.linspace(-92, 92, 24)[:, None, None].expand(24, 9, 9)[None]
        points = torch.tensor([[-40.3, 5.0, 60.0], [12.7, -30.0, 2.0]])
        assert torch.allclose(sample_lattice(ramp, points)[0], points[:, 0], atol=1e-3)
        assert torch.allclose(smooth_lattice(torch.ones(2, 24, 25, 26), 12.0), torch.ones(2, 24, 25, 26))


def test_labels_are_numbered_named_and_paired():
    assert list(SEG35) == list(range(1, 36))
    assert len({label.name for label in SEG35.values()}) == len({label.freesurfer_id for label in SEG35.values()}) == 35
    assert len(PAIRS) == 16
    assert all(right == left + 19 or left > 10 for left, right in PAIRS)
    assert all(0 <= channel <= 255 for label in SEG35.values() for channel in label.color)
