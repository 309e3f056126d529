"""Loading: any orientation gives the same array, labels keep their values, and bad files are named in one line."""

import gzip
import itertools

import nibabel as nib
import numpy as np
import pytest
import torch
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

from scripts.core.errors import DataError
from scripts.data.loading import LoadVolumed, ScaleBraind
from scripts.data.transforms import load_transforms
from tests.data.files import AFFINE, SHAPE, brain, labels, write


def reoriented(values: np.ndarray, affine: np.ndarray, codes: str) -> nib.Nifti1Image:
    image = nib.Nifti1Image(values, affine)
    return image.as_reoriented(ornt_transform(io_orientation(affine), axcodes2ornt(codes)))


ORIENTATIONS = [
    "".join(codes) for axes in itertools.permutations(("LR", "PA", "IS")) for codes in itertools.product(*axes)
]


class TestOrientation:
    def test_there_are_48(self):
        assert len(set(ORIENTATIONS)) == 48

    @pytest.mark.parametrize("codes", ORIENTATIONS)
    def test_any_orientation_loads_to_the_same_array(self, tmp_path, codes):
        nib.save(reoriented(brain(0), AFFINE, codes), tmp_path / "image.nii.gz")
        nib.save(reoriented(labels(0), AFFINE, codes), tmp_path / "label.nii.gz")
        item = load_transforms()({"image": tmp_path / "image.nii.gz", "label": tmp_path / "label.nii.gz"})
        assert np.array_equal(item["image"][0], brain(0))
        assert np.array_equal(item["label"][0], labels(0))
        assert np.allclose(item["image"].affine, AFFINE)


class TestLabels:
    @pytest.mark.parametrize("dtype", [np.int16, np.int32, np.float32, np.float64])
    def test_values_up_to_ten_thousand_in_any_storage(self, tmp_path, dtype):
        values = labels(1, largest=10_000).astype(dtype)
        values.flat[0] = 10_000
        item = load_transforms()({"label": write(tmp_path / "l.nii.gz", values)})
        assert item["label"].dtype == torch.int32
        assert np.array_equal(item["label"][0], values)

    @pytest.mark.parametrize("dtype", [np.int32, np.float32])
    def test_values_of_three_bytes(self, tmp_path, dtype):
        """As FreeSurfer makes them from the colors of an annotation: red + 256 green + 65,536 blue."""
        values = labels(1).astype(dtype)
        values.flat[:3] = 70_000, 9_182_740, 2**24 - 1
        item = load_transforms()({"label": write(tmp_path / "l.nii.gz", values)})
        assert item["label"].dtype == torch.int32
        assert np.array_equal(item["label"][0], values)

    @pytest.mark.parametrize("value", [2**24, 2**24 + 1, 2**31 - 1])
    def test_values_that_float32_would_change_are_refused(self, tmp_path, value):
        values = labels(1).astype(np.int32)
        values[3, 3, 3] = value
        path = write(tmp_path / "l.nii.gz", values)
        read = int(np.float32(value))
        with pytest.raises(DataError, match=rf"must be in 0\.\.16777215, got 0\.\.{read}$") as caught:
            LoadVolumed("moving_label")({"moving_label": path})
        assert str(caught.value).startswith(f"moving_label {path}: ")
        assert "\n" not in str(caught.value)

    def test_slope_that_misses_whole_numbers_by_rounding(self, tmp_path):
        image = nib.Nifti1Image(labels(0).astype(np.uint8), AFFINE)
        image.header.set_slope_inter(1.0000001, 0)
        nib.save(image, tmp_path / "l.nii.gz")
        assert np.array_equal(load_transforms()({"label": tmp_path / "l.nii.gz"})["label"][0], labels(0))

    def test_resampling_invents_no_label(self, tmp_path):
        values = labels(2, largest=10_000)
        item = load_transforms(pixdim=3.1)({"label": write(tmp_path / "l.nii.gz", values)})
        assert set(np.unique(item["label"])) <= {0, *np.unique(values)}

    def test_missing_structures_are_just_missing(self, tmp_path):
        item = load_transforms()({"label": write(tmp_path / "l.nii.gz", np.zeros(SHAPE, dtype=np.uint8))})
        assert item["label"].max() == 0

    @pytest.mark.parametrize(("value", "message"), [(2.5, "not whole numbers, the first is 2.5"), (-1, "must be in 0")])
    def test_bad_values(self, tmp_path, value, message):
        values = labels(0).astype(np.float32)
        values[3, 3, 3] = value
        with pytest.raises(DataError, match=message):
            load_transforms()({"label": write(tmp_path / "l.nii.gz", values)})


class TestBadFiles:
    def fails(self, path, match, key="image"):
        with pytest.raises(DataError, match=match) as caught:
            LoadVolumed(key)({key: path})
        assert str(caught.value).startswith(f"{key} {path}: ")
        assert "\n" not in str(caught.value)

    def test_missing(self, tmp_path):
        self.fails(tmp_path / "none.nii.gz", "does not exist", "moving")

    def test_empty(self, tmp_path):
        (tmp_path / "e.nii.gz").touch()
        self.fails(tmp_path / "e.nii.gz", "the file is empty", "fixed_label")

    def test_not_an_image(self, tmp_path):
        (tmp_path / "t.nii.gz").write_text("hello")
        self.fails(tmp_path / "t.nii.gz", "not an image file|it is not a gzip file")

    def test_truncated(self, tmp_path):
        content = write(tmp_path / "a.nii.gz", brain(0)).read_bytes()
        (tmp_path / "b.nii.gz").write_bytes(content[: len(content) // 2])
        self.fails(tmp_path / "b.nii.gz", "ended before")
        raw = gzip.decompress(content)
        (tmp_path / "c.nii").write_bytes(raw[: len(raw) // 2])
        self.fails(tmp_path / "c.nii", "Expected .* bytes")

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ((8, 9, 10, 2), r"expected one 3-D volume, got an array of shape \(8, 9, 10, 2\)"),
            ((8, 9, 10, 1, 3), "expected one 3-D volume"),
            ((8, 9), r"a single slice of shape \(8, 9\)"),
            ((8, 9, 1), r"a single slice of shape \(8, 9, 1\)"),
        ],
    )
    def test_not_one_volume(self, tmp_path, shape, message):
        self.fails(write(tmp_path / "v.nii.gz", np.random.default_rng(0).random(shape, np.float32)), message)

    @pytest.mark.parametrize("tail", [(1,), (1, 1)])
    def test_trailing_axes_of_length_one_are_dropped(self, tmp_path, tail):
        path = write(tmp_path / "v.nii.gz", brain(0).reshape(*SHAPE, *tail))
        assert LoadVolumed("image")({"image": path})["image"].shape == (1, *SHAPE)

    def test_constant_image(self, tmp_path):
        self.fails(write(tmp_path / "c.nii.gz", np.full(SHAPE, 3.0, np.float32)), r"the image is constant \(3\)")

    def test_singular_affine(self, tmp_path):
        raw = bytearray(gzip.decompress(write(tmp_path / "a.nii.gz", brain(0)).read_bytes()))
        raw[252:254] = b"\0\0"  # qform_code
        raw[296:308] = raw[280:292]  # srow_y = srow_x
        (tmp_path / "s.nii").write_bytes(raw)
        self.fails(tmp_path / "s.nii", "affine is singular")

    def test_affine_that_disagrees_with_the_voxel_sizes_is_taken_as_it_is(self, tmp_path):
        raw = bytearray(gzip.decompress(write(tmp_path / "a.nii.gz", brain(0)).read_bytes()))
        raw[80:84] = np.float32(1.0).tobytes()  # pixdim[1]; the affine says 2 mm
        (tmp_path / "p.nii").write_bytes(raw)
        item = LoadVolumed("image")({"image": tmp_path / "p.nii"})
        assert np.allclose(item["image"].affine, AFFINE)

    def test_no_spatial_codes_is_a_warning(self, tmp_path, caplog):
        image = nib.Nifti1Image(brain(0), None)
        nib.save(image, tmp_path / "n.nii.gz")
        LoadVolumed("image")({"image": tmp_path / "n.nii.gz"})
        assert "no orientation; axes left, anterior, superior" in caplog.text

    def test_nan_voxels_become_zero_with_a_warning(self, tmp_path, caplog):
        values = brain(0)
        values[0, 0, :2] = np.nan, np.inf
        item = LoadVolumed("image")({"image": write(tmp_path / "n.nii.gz", values)})
        assert "2 NaN or infinite voxels are set to 0" in caplog.text
        assert np.array_equal(item["image"][0], brain(0))
        self.fails(write(tmp_path / "a.nii.gz", np.full(SHAPE, np.nan, np.float32)), "all voxels are NaN")


class TestScale:
    def scale(self, values):
        return ScaleBraind("image")({"image": torch.as_tensor(values)[None]})["image"][0].numpy()

    def test_scaled_images_stay_untouched(self):
        assert np.array_equal(self.scale(brain(0)), brain(0))

    @pytest.mark.parametrize("factor", [0.001, 4095.0])
    def test_percentile_inside_the_brain_becomes_one(self, factor):
        values = brain(0, (20, 20, 20)) * np.float32(factor)
        values[4, 4, 4] *= 50  # a bright vessel must not darken the rest
        scaled = self.scale(values)
        assert scaled.max() == 1.0
        assert np.median(scaled[scaled > 0]) > 0.5
        assert np.array_equal(scaled == 0, values == 0)

    @pytest.mark.parametrize("shift", [-3.0, 0.0])
    def test_z_scores_whatever_their_background_is(self, shift):
        values = brain(0)
        inside = values > 0
        values[inside] = (values[inside] - 0.6) / 0.2
        values[~inside] = shift
        scaled = self.scale(values)
        assert scaled.min() == 0.0
        assert scaled.max() == 1.0
        assert (scaled[~inside] == 0).all()
        assert np.corrcoef(scaled[inside], brain(0)[inside])[0, 1] > 0.99

    def test_no_contrast(self):
        values = np.zeros(SHAPE, np.float32)
        values[3:5, 3:5, 3:5] = -2.0
        with pytest.raises(DataError, match="no contrast inside the brain"):
            self.scale(values)


def test_synthetic_items_are_painted():
    recipe = {"seed": 5, "shape": (20, 24, 28), "spacing": 8.0}
    item = load_transforms()({"name": "x", "synthetic": recipe})
    assert item["image"].shape == item["label"].shape == (1, 20, 24, 28)
    assert item["label"].dtype == torch.int32
    assert "synthetic" not in item


@pytest.mark.parametrize("name", ["x.mgz", "x.mgh", "x.hdr", "x.img", "X.MGZ"])
def test_other_formats_of_nibabel(tmp_path, name):
    """FreeSurfer's volumes, and NIfTI in two files."""
    kind = nib.MGHImage if "mg" in name.lower() else nib.Nifti1Pair
    written = tmp_path / name.lower()
    nib.save(kind(brain(0).astype(np.float32), AFFINE), written)
    if name != name.lower():
        written = written.rename(tmp_path / name)
    volume = LoadVolumed(("image",))({"image": str(written)})["image"]
    np.testing.assert_array_equal(volume[0], brain(0).astype(np.float32))
    np.testing.assert_allclose(volume.affine, AFFINE, atol=1e-6)
