"""Pairs: items depend on seed and number alone, subjects are loaded once, processes share without overlap."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import DataLoader, MetaTensor, list_data_collate, set_track_meta

from scripts.core.errors import DataError
from scripts.core.processes import Processes
from scripts.core.seg35 import SEG35
from scripts.data.datalist import load_datalist, subject_pairs
from scripts.data.dataset_folders import LABEL
from scripts.data.pairs import PairDataset, RandomPairDataset
from scripts.data.samplers import EpochSampler, ShardSampler
from scripts.data.transforms import load_transforms, pair_transforms
from tests.data.files import SHAPE, brain, labels, oasis, write, write_learn2reg, write_neurite

KEYS = {"fixed", "moving", "fixed_label", "moving_label", "fixed_name", "moving_name"}


@pytest.fixture
def subjects(tmp_path):
    return load_datalist(write_neurite(tmp_path, oasis(1, 2, 3, 4)), "all")


class CountingLoad:
    def __init__(self) -> None:
        self.load, self.names = load_transforms(), []

    def __call__(self, item):
        self.names.append(item["name"])
        return self.load(item)


def equal(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[key], b[key]) if isinstance(a[key], torch.Tensor) else a[key] == b[key] for key in a
    )


def random_pairs(subjects, **options) -> RandomPairDataset:
    return RandomPairDataset(subjects, load_transforms(), transform=pair_transforms(2, 1), **options)


class TestFixedList:
    def test_items(self, subjects):
        dataset = PairDataset(subjects, load_transforms(), cache_dtype="float32")
        assert len(dataset) == len(list(dataset)) == 12
        item = dataset[5]
        fixed, moving = dataset.pairs[5]
        assert set(item) == KEYS
        assert item["fixed_name"] == subjects[fixed]["name"]
        assert item["moving_name"] == subjects[moving]["name"]
        assert isinstance(item["fixed"], MetaTensor)
        assert item["fixed"].shape == (1, *SHAPE)
        assert np.array_equal(item["fixed"][0], brain(fixed))
        assert np.array_equal(item["moving_label"][0], labels(moving))
        assert item["moving_label"].dtype == torch.int32

    def test_each_subject_is_loaded_once_and_the_cache_is_out_of_reach(self, subjects):
        load = CountingLoad()
        dataset = PairDataset(subjects, load)
        for item in dataset:
            item["fixed"].zero_()
            item["moving_label"].zero_()
        assert sorted(load.names) == sorted(scan["name"] for scan in subjects)
        assert all(item["fixed"].max() > 0 and item["moving_label"].max() > 0 for item in dataset)

    def test_cache_is_compact_and_precise(self, subjects):
        load = CountingLoad()
        dataset = PairDataset(subjects, load, preload=True)
        kept = [volume for cached in dataset._cache.values() for volume in (cached.image, cached.label)]
        assert sum(volume.nbytes for volume in kept) == len(load.names) * np.prod(SHAPE) * (2 + 1) > 0
        assert np.allclose(dataset[0]["fixed"][0], brain(0), atol=2.5e-4)

    def test_large_labels_survive_the_cache(self, tmp_path, subjects):
        values = labels(0, largest=10_000)
        write(Path(subjects[0]["label"]), values.astype(np.float32))
        write(Path(subjects[1]["label"]), values.astype(np.int32) * 6)
        item = PairDataset(subjects, load_transforms(), [(0, 1)])[0]
        assert np.array_equal(item["fixed_label"][0], values)
        assert np.array_equal(item["moving_label"][0], values.astype(np.int32) * 6)

    def test_scans_without_labels(self, tmp_path):
        root = write_neurite(tmp_path, oasis(1, 2))
        (root / oasis(2)[0] / LABEL).unlink()
        dataset = PairDataset(load_datalist(root, "all", require_labels=False), load_transforms())
        assert set(dataset[0]) == KEYS - {"moving_label"}

    def test_labels_that_are_not_asked_for(self, subjects):
        item = PairDataset(subjects, load_transforms(keys=["image"]), [(0, 1)])[0]
        assert set(item) == {"fixed", "moving", "fixed_name", "moving_name"}

    def test_plain_tensors_when_meta_is_off(self, subjects):
        with_meta = PairDataset(subjects, load_transforms())[0]
        set_track_meta(False)
        try:
            item = PairDataset(subjects, load_transforms(), transform=pair_transforms(0, 0))[0]
        finally:
            set_track_meta(True)
        assert type(item["fixed"]) is torch.Tensor
        assert torch.equal(item["fixed"], with_meta["fixed"].as_tensor())

    def test_different_shapes_and_frames(self, tmp_path, subjects, caplog):
        write(Path(subjects[1]["image"]), brain(1), np.diag([2.0, 2.0, 2.0, 1.0]))
        item = PairDataset(subjects, load_transforms(), [(0, 2)])[0]
        assert caplog.text == ""
        del item
        with pytest.raises(DataError, match=r"shapes \(8, 10, 12\) and \(8, 12, 10\): set roi_size"):
            PairDataset(subjects, load_transforms(), [(0, 1)])[0]
        assert PairDataset(subjects, load_transforms(roi_size=(8, 8, 8)), [(0, 1)])[0]["fixed"].shape == (1, 8, 8, 8)
        assert "mm apart in space" in caplog.text

    @pytest.mark.parametrize("pairs", [[], [(0, 4)], [(-1, 0)]])
    def test_bad_pairs(self, subjects, pairs):
        with pytest.raises(ValueError, match="indices into 4 subjects"):
            PairDataset(subjects, load_transforms(), pairs)


class TestRandomPairs:
    def test_an_epoch_repeats_no_pair_and_epochs_differ(self, subjects):
        dataset = random_pairs(subjects)
        first, second = ([dataset.pair(12 * epoch + k) for k in range(12)] for epoch in (0, 1))
        assert sorted(first) == sorted(second) == dataset.pairs
        assert first != second

    def test_part_of_the_pairs_and_more_than_all(self, subjects):
        assert len({random_pairs(subjects, pairs_per_epoch=5).pair(k) for k in range(5)}) == 5
        counts = np.bincount(random_pairs(subjects, pairs_per_epoch=30).order(3), minlength=12)
        assert counts.sum() == 30
        assert set(counts) == {2, 3}

    def test_an_item_depends_on_seed_and_number_only(self, subjects):
        one, two = random_pairs(subjects, seed=4), random_pairs(subjects, seed=4)
        late = two[40]  # a resumed run asks for it first
        for k in range(40):
            one[k]
        assert equal(one[40], late)
        assert not equal(one[40], random_pairs(subjects, seed=5)[40])

    def test_iteration_ends(self, subjects):
        assert len(list(random_pairs(subjects, pairs_per_epoch=3))) == 3

    def test_balanced_cohorts(self, tmp_path):
        roots = [write_neurite(tmp_path / "a", oasis(*range(6))), write_neurite(tmp_path / "b", ["IXI_1", "IXI_2"])]
        dataset = random_pairs(load_datalist(roots, "all"), pairs_per_epoch=2000, balance_cohorts=True)
        small = np.mean([dataset.pairs[k][0] >= 6 for k in dataset.order(0)])
        assert abs(small - 0.5) < 4 * 0.5 / 2000**0.5

    def test_bad_numbers(self, subjects):
        with pytest.raises(ValueError, match="pairs_per_epoch must be positive"):
            random_pairs(subjects, pairs_per_epoch=0)
        with pytest.raises(IndexError, match="start at 0"):
            random_pairs(subjects).pair(-1)


class TestLoaders:
    @pytest.mark.parametrize("persistent", [False, True])
    def test_workers_give_the_same_items_as_none(self, subjects, persistent):
        def epochs(workers: int) -> list[dict]:
            dataset = random_pairs(subjects, pairs_per_epoch=4, preload=True)
            loader = DataLoader(
                dataset,
                sampler=EpochSampler(dataset),
                num_workers=workers,
                collate_fn=list_data_collate,
                persistent_workers=persistent and workers > 0,
            )
            return [batch for _ in range(2) for batch in loader]

        alone, helped = epochs(0), epochs(2)
        assert len(alone) == 8
        assert alone[0]["fixed"].shape == (1, 1, *SHAPE)
        assert alone[0]["fixed_name"][0].startswith("OASIS")
        assert all(equal(a, b) for a, b in zip(alone, helped, strict=True))

    def test_batches_of_two(self, subjects):
        loader = DataLoader(PairDataset(subjects, load_transforms()), batch_size=2, collate_fn=list_data_collate)
        batch = next(iter(loader))
        assert batch["moving_label"].shape == (2, 1, *SHAPE)
        assert isinstance(batch["fixed"], MetaTensor)
        assert len(batch["fixed_name"]) == 2

    def test_a_bad_file_is_named_through_a_worker(self, subjects):
        Path(subjects[0]["image"]).write_bytes(b"")
        loader = DataLoader(PairDataset(subjects, load_transforms(), [(0, 1)]), num_workers=1)
        batches = iter(loader)
        with pytest.raises(DataError, match="the file is empty"):
            next(batches)
        with pytest.raises(StopIteration):  # an iterator that is dropped before its end waits 5 s for its worker
            next(batches)


class TestSamplers:
    def test_processes_share_an_epoch_without_overlap(self, subjects):
        dataset = random_pairs(subjects, pairs_per_epoch=11)
        shares = [list(EpochSampler(dataset, Processes(rank, 3))) for rank in range(3)]
        assert [len(share) for share in shares] == [3, 3, 3]
        assert sorted(k for share in shares for k in share) == list(range(9))

    def test_epochs_go_on_and_resume(self, subjects):
        dataset = random_pairs(subjects, pairs_per_epoch=3)
        sampler, resumed = EpochSampler(dataset), EpochSampler(dataset)
        assert [list(sampler) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
        resumed.set_epoch(2)
        assert list(resumed) == [6, 7, 8]

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_evaluation_sees_every_pair_once(self, subjects, size):
        dataset = PairDataset(subjects, load_transforms())
        shares = [ShardSampler(dataset, Processes(rank, size)) for rank in range(size)]
        assert sorted(k for share in shares for k in share) == list(range(12))
        assert sum(len(share) for share in shares) == 12

    def test_too_many_processes(self, subjects):
        dataset = random_pairs(subjects, pairs_per_epoch=3)
        with pytest.raises(ValueError, match="too short for 4 processes"):
            EpochSampler(dataset, Processes(0, 4))


def test_wired_by_a_config(tmp_path):
    write_learn2reg(tmp_path)
    parser = ConfigParser(
        {
            "subjects": {
                "_target_": "scripts.data.datalist.load_datalist",
                "dataset_dir": str(tmp_path),
                "split": "val",
            },
            "dataset": {
                "_target_": "scripts.data.pairs.PairDataset",
                "subjects": "@subjects",
                "load": {"_target_": "scripts.data.transforms.load_transforms", "roi_size": [8, 8, 8]},
                "pairs": {"_target_": "scripts.data.datalist.subject_pairs", "subjects": "@subjects", "num_pairs": 5},
            },
            "sampler": {"_target_": "scripts.data.samplers.ShardSampler", "dataset": "@dataset"},
        }
    )
    dataset = parser.get_parsed_content("dataset")
    assert dataset.pairs == [(0, 1)]  # the listed one
    assert dataset[0]["moving_label"].shape == (1, 8, 8, 8)
    assert list(parser.get_parsed_content("sampler")) == [0]


def test_synthetic_people_from_end_to_end():
    options = {"num_subjects": 4, "shape": (20, 24, 28), "spacing": 8.0}
    subjects = load_datalist(None, "train", synthetic=options)
    item = RandomPairDataset(subjects, load_transforms(roi_size=(16, 24, 24)), transform=pair_transforms(1, 1))[0]
    assert set(item) == KEYS
    assert item["fixed"].shape == item["fixed_label"].shape == (1, 16, 24, 24)


@pytest.mark.skipif("SIR_DATA" not in os.environ, reason="SIR_DATA does not name a folder with oasis2mm and ixi2mm")
class TestRealData:
    ROOT = Path(os.environ.get("SIR_DATA", ""))

    def test_sets_have_their_splits(self):
        counts = {
            name: [len(load_datalist(self.ROOT / name, split)) for split in ("train", "val")]
            for name in ("oasis2mm", "ixi2mm")
        }
        assert counts == {"oasis2mm": [24, 3], "ixi2mm": [146, 10]}

    def test_both_sets_and_people_scanned_twice(self):
        twice = [oasis(a, a + 20) for a in (1003, 1004, 1005, 1018, 1019)]
        roots = [self.ROOT / "oasis2mm", self.ROOT / "ixi2mm"]
        subjects = load_datalist(roots, "train", same_person=twice)
        assert len(subject_pairs(subjects)) == 24 * 23 - 10 + 146 * 145

    @pytest.mark.parametrize("name", ["oasis2mm", "ixi2mm"])
    def test_volumes(self, name):
        subjects = load_datalist(self.ROOT / name, "val")
        item = PairDataset(subjects, load_transforms(roi_size=(72, 80, 96)))[0]
        for role in ("fixed", "moving"):
            assert item[role].shape == item[f"{role}_label"].shape == (1, 72, 80, 96)
            assert 0.9 < item[role].max() <= 1
            assert set(item[f"{role}_label"].unique().tolist()) <= {0, *SEG35}


def test_training_takes_people_without_label_maps(tmp_path):
    """One of four has none: no item has any, so that items of a batch fit together."""
    folder = write_neurite(tmp_path, oasis(1, 2, 3, 4))
    next(iter(sorted(folder.rglob("*seg35*")))).unlink()
    with pytest.raises(DataError, match="label of"):
        load_datalist(folder, "all")
    people = load_datalist(folder, "all", require_labels=False)
    loader = DataLoader(random_pairs(people), batch_size=4, collate_fn=list_data_collate)
    batch = next(iter(loader))
    assert batch["fixed"].shape[0] == 4
    assert "fixed_label" not in batch
    labeled = [person for person in people if "label" in person]
    assert "fixed_label" in random_pairs(labeled)[0]
