"""Datalists: every layout gives the same kind of items, nobody is in two splits, and mistakes are named in one line."""

import json
import logging
from pathlib import Path

import pytest

from scripts.core.errors import DataError
from scripts.data.datalist import Datalist, load_datalist, subject_pairs
from scripts.data.dataset_folders import IMAGE, LABEL, person_of
from tests.data.files import brain, labels, oasis, write, write_learn2reg, write_neurite


def names(subjects) -> list[str]:
    return [scan["name"] for scan in subjects]


def named_pairs(subjects, pairs) -> list[tuple[str, str]]:
    return [(subjects[i]["name"], subjects[j]["name"]) for i, j in pairs]


def write_images(root: Path, *stems: str) -> None:
    for seed, stem in enumerate(stems):
        write(root / f"{stem}.nii.gz", brain(seed))
        write(root / f"{stem}_seg.nii.gz", labels(seed))


class TestNeuriteLayout:
    def test_split_file_in_the_folder(self, tmp_path):
        people = [*oasis(1, 2, 3), "IXI_013"]
        root = write_neurite(tmp_path, people, {"train": people[:2], "val": people[2:], "date": "today"})
        subjects = load_datalist(root, "val")
        assert names(subjects) == ["IXI_013", "OASIS_OAS1_0003_MR1"]
        assert subjects[0]["image"] == str(root / "IXI_013" / IMAGE)
        assert subjects[0]["label"] == str(root / "IXI_013" / LABEL)
        assert names(load_datalist(str(root), "train")) == people[:2]

    def test_all_is_every_scan_even_of_two_people(self, tmp_path):
        assert names(load_datalist(write_neurite(tmp_path, oasis(1, 2)), "all")) == oasis(1, 2)

    def test_split_file_elsewhere_and_by_name(self, tmp_path):
        root = write_neurite(tmp_path / "data", oasis(1, 2, 3))
        split = tmp_path / "mine.json"
        split.write_text(json.dumps({"fold1": oasis(2, 3), "fold2": oasis(1)}))
        assert names(load_datalist(root, "fold1", split)) == oasis(2, 3)
        split.rename(root / "split_b.json")
        assert names(load_datalist(root, "fold2", "split_b.json")) == oasis(1)

    def test_without_split_file_the_rule_is_stable_and_said(self, tmp_path, caplog):
        root = write_neurite(tmp_path, oasis(*range(20)))
        with caplog.at_level(logging.INFO, "scripts.data"):
            parts = {part: names(load_datalist(root, part)) for part in ("train", "val", "test")}
        assert "no split file" in caplog.text
        assert "15 %" in caplog.text
        assert {part: len(people) for part, people in parts.items()} == {"train": 14, "val": 3, "test": 3}
        assert sorted(name for people in parts.values() for name in people) == oasis(*range(20))
        assert parts["test"] == names(load_datalist(root, "test"))

    def test_two_visits_of_a_person_stay_together(self, tmp_path):
        people = [f"OASIS_OAS1_{k:04d}_MR{visit}" for k in range(6) for visit in (1, 2)]
        root = write_neurite(tmp_path, people)
        for part in ("train", "val", "test"):
            chosen = names(load_datalist(root, part))
            assert {name[:-1] for name in chosen if name.endswith("1")} == {
                name[:-1] for name in chosen if name.endswith("2")
            }

    @pytest.mark.parametrize(
        ("name", "person"),
        [
            ("OASIS_OAS1_0101_MR2", "OASIS_OAS1_0101"),
            ("sub-07_ses-2_T1w", "sub-07"),
            ("IXI_013", "IXI_013"),
        ],
    )
    def test_person_behind_a_name(self, name, person):
        assert person_of(name) == person


class TestLearn2Reg:
    def test_validation_people_are_taken_out_of_training(self, tmp_path):
        root = write_learn2reg(tmp_path)
        assert names(load_datalist(root, "train")) == ["OASIS_0001_0000", "OASIS_0002_0000"]
        val = load_datalist(root, "val")
        assert names(val) == ["OASIS_0003_0000", "OASIS_0004_0000"]
        assert all("labelsTr" in scan["label"] for scan in val)

    def test_listed_pairs_win_over_all_pairs(self, tmp_path):
        root = write_learn2reg(tmp_path)
        val, train = load_datalist(root, "val"), load_datalist(root, "train")
        assert named_pairs(val, subject_pairs(val)) == [("OASIS_0003_0000", "OASIS_0004_0000")]
        assert len(subject_pairs(train)) == 2

    def test_test_images_have_no_labels(self, tmp_path):
        root = write_learn2reg(tmp_path)
        with pytest.raises(DataError, match="label of OASIS_0090_0000 is missing: none is listed"):
            load_datalist(root, "test")
        subjects = load_datalist(root, "test", require_labels=False)
        assert len(subjects) == 2
        assert "label" not in subjects[0]

    def test_entries_as_plain_paths_and_labels_beside_images(self, tmp_path):
        write(tmp_path / "imagesTr" / "a.nii.gz", brain(0))
        write(tmp_path / "labelsTr" / "a.nii.gz", labels(0))
        (tmp_path / "x_dataset.json").write_text(json.dumps({"training": ["imagesTr/a.nii.gz"]}))
        (scan,) = load_datalist(tmp_path, "train")
        assert scan["label"] == str(tmp_path / "labelsTr" / "a.nii.gz")


class TestLists:
    def test_csv_of_images_with_splits(self, tmp_path):
        write_images(tmp_path, "a", "b", "c")
        rows = ["image, label, split", "a.nii.gz, a_seg.nii.gz, train", "", "b.nii.gz,b_seg.nii.gz,train"]
        text = "\n".join([*rows, "c.nii.gz,c_seg.nii.gz,val"])
        (tmp_path / "scans.csv").write_text(text, encoding="utf-8-sig")
        for source in (tmp_path, tmp_path / "scans.csv"):
            assert names(load_datalist(source, "train")) == ["a", "b"]
            assert names(load_datalist(source, "val")) == ["c"]

    def test_csv_of_pairs(self, tmp_path):
        write_images(tmp_path, "a", "b", "c")
        (tmp_path / "pairs.csv").write_text(
            "fixed,moving,fixed_label,moving_label\n"
            "a.nii.gz,b.nii.gz,a_seg.nii.gz,b_seg.nii.gz\nc.nii.gz,a.nii.gz,c_seg.nii.gz,a_seg.nii.gz\n"
        )
        subjects = load_datalist(tmp_path, "all")
        assert names(subjects) == ["a", "b", "c"]
        assert named_pairs(subjects, subject_pairs(subjects)) == [("a", "b"), ("c", "a")]
        with pytest.raises(DataError, match="unknown split 'val'; known are all"):
            load_datalist(tmp_path, "val")

    def test_json_lists(self, tmp_path):
        write_images(tmp_path, "a", "b", "c")
        rows = [{"image": f"{stem}.nii.gz", "label": f"{stem}_seg.nii.gz", "person": "p"} for stem in "abc"]
        path = tmp_path / "scans.json"
        path.write_text(json.dumps({"training": rows[:2], "validation": rows[2:]}))
        with pytest.raises(DataError, match=r"p \(train, val\)"):
            load_datalist(path, "train")
        path.write_text(json.dumps(rows))
        subjects = load_datalist(path, "all")
        assert {scan["person"] for scan in subjects} == {"p"}

    def test_equal_file_names_are_told_apart_by_their_folders(self, tmp_path):
        write_neurite(tmp_path / "x", oasis(1, 2))
        rows = "".join(f"x/{name}/{IMAGE},x/{name}/{LABEL}\n" for name in oasis(1, 2))
        (tmp_path / "scans.csv").write_text("image,label\n" + rows)
        assert names(load_datalist(tmp_path / "scans.csv", "all")) == oasis(1, 2)


class TestSeveralSets:
    def test_pairs_stay_within_a_set(self, tmp_path):
        roots = [write_neurite(tmp_path / "a", oasis(1, 2, 3)), write_neurite(tmp_path / "b", ["IXI_1", "IXI_2"])]
        subjects = load_datalist(roots, "all")
        pairs = subject_pairs(subjects)
        assert len(pairs) == 3 * 2 + 2 * 1
        assert all(subjects[i]["cohort"] == subjects[j]["cohort"] for i, j in pairs)

    def test_equal_names_get_their_sets_name(self, tmp_path):
        roots = [write_neurite(tmp_path / "one", oasis(1, 2)), write_neurite(tmp_path / "two", oasis(2, 3))]
        assert names(load_datalist(roots, "all")) == [
            oasis(1)[0],
            "one_" + oasis(2)[0],
            "two_" + oasis(2)[0],
            oasis(3)[0],
        ]

    def test_person_in_train_of_one_and_val_of_another(self, tmp_path):
        one = write_neurite(tmp_path / "one", oasis(1, 2), {"train": oasis(1, 2)})
        two = write_neurite(tmp_path / "two", oasis(2, 3), {"val": oasis(2, 3)})
        with pytest.raises(DataError, match=r"1 people .*: OASIS_OAS1_0002 \(train, val\)"):
            load_datalist([one, two], "train")

    def test_same_set_twice(self, tmp_path):
        root = write_neurite(tmp_path / "one", oasis(1, 2))
        with pytest.raises(DataError, match="given twice"):
            load_datalist([root, root], "all")


class TestSynthetic:
    @pytest.mark.parametrize("dataset_dir", [None, "", []])
    def test_no_folder_means_synthetic_people(self, dataset_dir):
        options = {"num_subjects": 7, "seed": 3, "shape": [20, 24, 28], "spacing": 8.0}
        subjects = load_datalist(dataset_dir, "train", synthetic=options)
        assert len(subjects) == 5
        assert subjects[0]["synthetic"]["shape"] == (20, 24, 28)
        everyone = load_datalist(dataset_dir, "all", synthetic=options)
        assert len({scan["synthetic"]["seed"] for scan in everyone}) == 7


class TestPairs:
    def test_all_ordered_pairs(self, tmp_path):
        subjects = load_datalist(write_neurite(tmp_path, oasis(*range(5))), "all")
        pairs = subject_pairs(subjects)
        assert len(pairs) == len(set(pairs)) == 5 * 4
        assert all(i != j for i, j in pairs)

    def test_seeded_sample(self):
        subjects = load_datalist(None, "all", synthetic={"num_subjects": 8})
        chosen = subject_pairs(subjects, num_pairs=10, seed=1)
        assert len(set(chosen)) == 10
        assert chosen == subject_pairs(subjects, num_pairs=10, seed=1) != subject_pairs(subjects, num_pairs=10, seed=2)
        assert subject_pairs(subjects, num_pairs=1000) == subject_pairs(subjects)

    def test_same_person_is_no_pair(self, tmp_path):
        people = oasis(1, 2, 3, 4)
        split = {"train": people, "same_person": [[people[0], people[2]], [people[2], people[3]]]}
        subjects = load_datalist(write_neurite(tmp_path, people, split), "train")
        assert len({scan["person"] for scan in subjects}) == 2
        assert len(subject_pairs(subjects)) == 4 * 3 - 3 * 2

    def test_same_person_as_argument_and_across_splits(self, tmp_path, caplog):
        people = oasis(1, 2, 3)
        root = write_neurite(tmp_path, people, {"train": people[:2], "val": people[2:]})
        with pytest.raises(DataError, match=r"OASIS_OAS1_0001 \(train, val\)"):
            load_datalist(root, "train", same_person=[[people[0], people[2]]])
        subjects = load_datalist(root, "train", same_person=[people[:2], ["nobody", people[2]]])
        assert "not there: nobody" in caplog.text
        with pytest.raises(DataError, match="no pairs among 2 scans"):
            subject_pairs(subjects)

    def test_bad_number(self):
        with pytest.raises(ValueError, match="num_pairs must be positive"):
            subject_pairs(Datalist(), num_pairs=0)


class TestMistakes:
    """Each in one line that says what and where."""

    def fails(self, match, *args, **kwargs):
        with pytest.raises(DataError, match=match) as caught:
            load_datalist(*args, **kwargs)
        assert "\n" not in str(caught.value)

    def test_missing_folder(self, tmp_path):
        self.fails("nowhere does not exist", tmp_path / "nowhere")

    def test_nothing_found(self, tmp_path):
        self.fails(r"no scans found in .*aligned_norm.nii.gz .*_dataset.json .*\.csv", tmp_path)

    def test_several_lists(self, tmp_path):
        for name in ("a.csv", "b.csv"):
            (tmp_path / name).touch()
        self.fails(r"several lists \(a.csv, b.csv\)", tmp_path)

    @pytest.mark.parametrize(("gone", "role"), [(IMAGE, "image"), (LABEL, "label")])
    def test_missing_file(self, tmp_path, gone, role):
        root = write_neurite(tmp_path, oasis(1, 2))
        (root / oasis(1)[0] / gone).unlink()
        self.fails(f"the {role} of OASIS_OAS1_0001_MR1 is missing: .*{gone}", root, "all")

    def test_unknown_and_empty_split(self, tmp_path):
        root = write_neurite(tmp_path, oasis(1, 2), {"train": oasis(1, 2), "val": []})
        self.fails("unknown split 'valid'; known are train, val, all", root, "valid")
        self.fails("the split 'val' of .* is empty", root, "val")

    def test_person_in_two_splits(self, tmp_path):
        self.fails(
            r"OASIS_OAS1_0001 \(train, val\)",
            write_neurite(tmp_path, oasis(1, 2), {"train": oasis(1, 2), "val": oasis(1)}),
        )

    def test_split_file_mistakes(self, tmp_path):
        root = write_neurite(tmp_path, oasis(1))
        self.fails("split file .*none.json does not exist", root, split_file="none.json")
        for text, message in {
            '{"train": [\n"a",,]}': "split.json, line 2: not valid JSON",
            "[1]": "expected an object",
            '{"train": [1]}': "'train' must be a list of names",
            '{"train": ["a", "a"]}': "lists a scan twice: a",
            '{"train": [], "same_person": [["a"]]}': "'same_person' must be",
            '{"train": ["ghost"]}': "lists 1 scans that are not there: ghost",
        }.items():
            (root / "split.json").write_text(text)
            self.fails(message, root)

    def test_too_few_people_to_divide(self, tmp_path):
        self.fails("cannot divide 2 people", write_neurite(tmp_path, oasis(1, 2)))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"line 1: the header must name image"),
            ("a.nii.gz,b.nii.gz\n", r"line 1: the header must name image"),
            ("image,label\na.nii.gz,b.nii.gz\nc.nii.gz\n", "line 3: expected 2 fields as in the header, got 1"),
            ("image,label\n", "lists no scans"),
            ("image,fixed\n,f.nii.gz\n", "line 2: expected image, or fixed and moving"),
            ("image,label\na,b\na,c\n", "line 3: .* has two labels"),
        ],
    )
    def test_malformed_csv(self, tmp_path, text, message):
        (tmp_path / "list.csv").write_text(text)
        self.fails(message, tmp_path)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"training": [\n\n{]}', "line 3: not valid JSON"),
            ('{"other": []}', "expected a list, or an object with one of train"),
            ('{"training": {}}', "'training' must be a list, got dict"),
            ('{"training": [3]}', r"training\[0\]: expected an object or a path, got int"),
            ('[{"label": "x"}]', "expected image, or fixed and moving"),
        ],
    )
    def test_malformed_json(self, tmp_path, text, message):
        (tmp_path / "x_dataset.json").write_text(text)
        self.fails(message, tmp_path)
