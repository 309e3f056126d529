import nibabel as nib
import pytest

from scripts.commands.pair_list import PairFiles, pair_list, stem
from scripts.core.errors import DataError


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_one_pair_is_named_after_its_files():
    (item,) = pair_list("a/Fix.nii.gz", "b/mov.NII", moving_label="l.nii", fixed_mask=None)
    assert item == {
        "fixed": "a/Fix.nii.gz",
        "moving": "b/mov.NII",
        "moving_label": "l.nii",
        "fixed_name": "Fix",
        "moving_name": "mov",
        "name": "mov__to__Fix",
    }


@pytest.mark.parametrize(("path", "expected"), [("/x/é a.nii.gz", "é a"), ("v1.2.mgz", "v1.2"), (".nii", "image")])
def test_stem(path, expected):
    assert stem(path) == expected


def test_many_pairs_come_from_a_list_with_paths_relative_to_it(tmp_path):
    text = "\ufefffixed, moving, moving_label, name\nf.nii.gz,s/m.nii.gz,,first\n/abs/f.nii,m2.nii.gz,l.nii.gz,\n"
    first, second = pair_list(pairs=write(tmp_path / "pairs.csv", text))
    assert first["name"] == "first"
    assert first["moving"] == str(tmp_path / "s/m.nii.gz")
    assert "moving_label" not in first
    assert second["name"] == "m2__to__f"
    assert second["fixed"] == "/abs/f.nii"
    assert second["moving_label"] == str(tmp_path / "l.nii.gz")


def test_files_of_the_same_name_are_told_apart_by_their_folders():
    (item,) = pair_list("/d/ann/t1.nii.gz", "/d/bob/t1.nii.gz")
    assert item["name"] == "bob_t1__to__ann_t1"
    assert (item["fixed_name"], item["moving_name"]) == ("ann_t1", "bob_t1")


def test_pairs_of_the_same_file_names_get_their_folders_names(tmp_path):
    rows = "".join(f"{person}/t1.nii,{person}/t2.nii\n" for person in ("ann", "bob"))
    names = [item["name"] for item in pair_list(pairs=write(tmp_path / "p.csv", "fixed,moving\n" + rows))]
    assert names == ["ann_t2__to__ann_t1", "bob_t2__to__bob_t1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no pairs"),
        ("fixed,moving\n", "no pairs"),
        ("fixed,movin\na,b\n", "columns must be"),
        ("fixed,moving\na,\n", "line 2: fixed or moving is empty"),
        ("fixed,moving\na,b\na,b\n", "several pairs are called"),
        ("fixed,moving,name\na,b,../c\n", "cannot be a folder"),
    ],
)
def test_a_malformed_list_is_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        pair_list(pairs=write(tmp_path / "p.csv", text))


def test_contradictions_are_named(tmp_path):
    with pytest.raises(DataError, match="--moving is missing"):
        pair_list(fixed="a.nii")
    with pytest.raises(DataError, match="--fixed is missing"):
        pair_list(moving_label="a.nii", moving="b.nii")
    with pytest.raises(DataError, match="either --pairs or"):
        pair_list(fixed="a.nii", pairs="p.csv")
    with pytest.raises(DataError, match="does not exist"):
        pair_list(pairs=str(tmp_path / "none.csv"))


def test_the_list_is_made_when_it_is_needed(tmp_path):
    files = PairFiles(lambda item: item, pairs=str(tmp_path / "p.csv"))
    write(tmp_path / "p.csv", "fixed,moving\na.nii,b.nii\n")
    assert len(files) == len(files.find()) == 1
    assert files[0]["name"] == "b__to__a"


def test_without_files_there_is_an_example_in_two_orientations(tmp_path):
    (item,) = pair_list(example_dir=tmp_path)
    codes = {role: "".join(nib.aff2axcodes(nib.load(item[role]).affine)) for role in ("fixed", "moving")}
    assert codes["fixed"] != codes["moving"]
    for role in ("fixed", "moving"):
        image, label = nib.load(item[role]), nib.load(item[f"{role}_label"])
        assert image.shape == label.shape
        inside = label.get_fdata() > 0
        assert (image.get_fdata()[inside] > 0).mean() > 0.99
