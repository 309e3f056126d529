"""NIfTI files as nibabel and SimpleITK find them."""

import errno
import gzip
import os
import resource
from contextlib import contextmanager

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from scripts.core.errors import DataError
from scripts.core.grid import LPS, Grid
from scripts.files.nifti import write_volume
from tests.files.spaces import FIXED, SHEARED, affine, orientations, rotation

SHAPE = (3, 4, 5)
GRID = Grid(SHAPE, affine(np.diag([1.0, 2.0, 3.0]), (-7, 8, 9)))
RAMP = np.arange(60, dtype=np.float32).reshape(SHAPE)


def header(qform, sform):
    out = nib.Nifti1Header()
    out["qform_code"], out["sform_code"] = qform, sform
    return out


def written(path, array=RAMP, grid=GRID, **options):
    write_volume(path, array, grid, **options)
    return nib.load(path)


def codes(image):
    return int(image.header["qform_code"]), int(image.header["sform_code"])


def assert_affine(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


class TestAffine:
    @pytest.mark.parametrize("linear", orientations())
    def test_both_forms_hold_every_orientation(self, linear, tmp_path):
        grid = Grid(SHAPE, affine(linear * [0.9, 1.1, 2.3], (-91.5, 126.25, -72)))
        image = written(tmp_path / "a.nii", grid=grid)
        assert_affine(image.affine, grid.affine)
        assert_affine(image.get_sform(), grid.affine)
        assert_affine(image.get_qform(), grid.affine)
        assert codes(image) == (2, 2)

    @pytest.mark.parametrize("grid", FIXED.values(), ids=FIXED)
    def test_simpleitk_finds_the_voxels_in_the_same_places(self, grid, tmp_path):
        write_volume(tmp_path / "a.nii.gz", np.zeros(grid.shape, np.float32), grid)
        image = sitk.ReadImage(str(tmp_path / "a.nii.gz"))
        last = tuple(size - 1 for size in grid.shape)
        point = LPS[:3, :3] @ np.array(image.TransformIndexToPhysicalPoint(last))
        np.testing.assert_allclose(point, grid.to_world(np.array([last]))[0], atol=1e-4)

    @pytest.mark.parametrize("given", [None, header(1, 1), header(1, 0)])
    def test_a_qform_cannot_hold_shear(self, given, tmp_path):
        image = written(tmp_path / "a.nii", np.zeros(SHEARED.shape, np.float32), SHEARED, header=given)
        assert codes(image) == (0, 1 if given is not None and given["sform_code"] else 2)
        assert image.get_qform(coded=True) == (None, 0)
        assert_affine(image.affine, SHEARED.affine)

    def test_a_qform_that_lost_its_digits_near_half_a_turn_is_left_out(self, tmp_path):
        grid = Grid(SHAPE, affine(rotation(0.02, 0.03, 179.99), (1, 2, 3)))
        lossy = nib.Nifti1Header()
        lossy.set_qform(grid.affine)
        assert np.abs(lossy.get_qform() - grid.affine).max() > 1e-4
        image = written(tmp_path / "a.nii", grid=grid)
        assert codes(image) == (0, 2)
        assert_affine(image.affine, grid.affine)
        # A fixed image that says so keeps its qform: tools that prefer it must find both in one place.
        assert codes(written(tmp_path / "b.nii", grid=grid, header=header(1, 1))) == (1, 1)

    @pytest.mark.parametrize("given", [(1, 1), (1, 4), (0, 2), (3, 0), (1, 0)])
    def test_the_fixed_images_codes_are_kept(self, given, tmp_path):
        image = written(tmp_path / "a.nii", header=header(*given))
        assert codes(image) == given
        assert_affine(image.affine, GRID.affine)

    @pytest.mark.parametrize("given", [None, header(0, 0), nib.MGHImage(RAMP, GRID.affine).header])
    def test_without_codes_the_affine_is_not_lost(self, given, tmp_path):
        image = written(tmp_path / "a.nii", header=given)
        assert codes(image) == (2, 2)
        assert_affine(image.affine, GRID.affine)


class TestValues:
    @pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "with space ä.nii.gz"])
    def test_floats_are_stored_as_they_are(self, name, tmp_path):
        image = written(tmp_path / "new" / name, RAMP.astype(np.float64))
        assert image.get_data_dtype() == np.float32
        np.testing.assert_array_equal(np.asarray(image.dataobj), RAMP)
        raw = (tmp_path / "new" / name).read_bytes()
        raw = gzip.decompress(raw) if name.endswith("gz") else raw
        assert np.frombuffer(raw[112:120], "<f4").tolist() == [1.0, 0.0]  # slope and intercept on disk
        assert image.header.get_xyzt_units()[0] == "mm"
        assert image.header.get_zooms() == (1, 2, 3)

    @pytest.mark.parametrize(
        ("low", "high", "expected"),
        [(0, 255, "u1"), (0, 256, "i2"), (-1, 4, "i2"), (0, 32_768, "i4"), (0, 10_000, "i2"), (-(2**31), 0, "i4")],
    )
    def test_labels_take_the_smallest_type_that_holds_them(self, low, high, expected, tmp_path):
        labels = np.zeros(SHAPE, np.int64)
        labels[0, 0, 0], labels[2, 3, 4] = low, high
        image = written(tmp_path / "a.nii.gz", labels)
        assert image.get_data_dtype() == np.dtype(expected)
        np.testing.assert_array_equal(np.asarray(image.dataobj), labels)
        np.testing.assert_array_equal(sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / "a.nii.gz")), labels.T)

    def test_masks_become_bytes(self, tmp_path):
        image = written(tmp_path / "a.nii", RAMP > 7)
        assert image.get_data_dtype() == np.uint8
        np.testing.assert_array_equal(np.asarray(image.dataobj), RAMP > 7)

    def test_labels_beyond_32_bits_are_refused(self, tmp_path):
        with pytest.raises(DataError, match=r"labels must fit into 32 bits, got 0\.\.2147483648"):
            write_volume(tmp_path / "a.nii", np.array([0, 2**31] * 30).reshape(SHAPE), GRID)
        assert list(tmp_path.iterdir()) == []

    def test_channels_are_named_in_the_header(self, tmp_path):
        image = written(tmp_path / "a.nii.gz", np.stack([RAMP, 2 * RAMP], -1), description="length mm, R")
        assert image.shape == (*SHAPE, 2)
        assert image.header["descrip"].item() == b"length mm, R"
        np.testing.assert_array_equal(np.asarray(image.dataobj)[..., 1], 2 * RAMP)
        long = written(tmp_path / "b.nii.gz", description="ä" * 100)
        assert long.header["descrip"].item() == b"?" * 79

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("channels", [(), (1,), (4,)])
    def test_readers_find_the_same_numbers(self, order, channels, tmp_path):
        noise = np.random.default_rng(0).normal(size=(*SHAPE, *channels)).astype(np.float32)
        given = np.array(noise, order=order)[::-1][::-1]
        found = np.asarray(written(tmp_path / "a.nii.gz", given).dataobj)
        np.testing.assert_array_equal(found, noise)
        read = sitk.GetArrayFromImage(sitk.ReadImage(tmp_path / "a.nii.gz"))
        np.testing.assert_array_equal(read, noise.T if channels != (1,) else noise[..., 0].T.reshape(read.shape))
        write_volume(tmp_path / "a.nii", given, GRID)
        assert gzip.decompress((tmp_path / "a.nii.gz").read_bytes()) == (tmp_path / "a.nii").read_bytes()

    def test_the_same_volume_gives_the_same_bytes(self, tmp_path):
        for name in ("a.nii.gz", "b.nii.gz"):
            write_volume(tmp_path / name, RAMP, GRID)
        assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


class TestErrors:
    @pytest.mark.parametrize("shape", [(3, 4), (3, 4, 6), (1, 3, 4, 5), (3, 4, 5, 1, 3)])
    def test_an_array_off_the_grid_is_refused(self, shape, tmp_path):
        with pytest.raises(ValueError, match=r"expected an array of shape \(3, 4, 5\)"):
            write_volume(tmp_path / "a.nii", np.zeros(shape), GRID)

    def test_other_formats_are_refused(self, tmp_path):
        with pytest.raises(DataError, match=r"a\.img: expected a name that ends in \.nii or \.nii\.gz"):
            write_volume(tmp_path / "a.img", RAMP, GRID)

    def test_a_file_in_the_place_of_the_folder(self, tmp_path):
        (tmp_path / "out").write_text("")
        with pytest.raises(DataError, match=r"a\.nii: could not be written \(.*out is a file, not a folder\)"):
            write_volume(tmp_path / "out" / "a.nii", RAMP, GRID)

    def test_a_folder_in_the_place_of_the_file(self, tmp_path):
        (tmp_path / "a.nii").mkdir()
        with pytest.raises(DataError, match="could not be written"):
            write_volume(tmp_path / "a.nii", RAMP, GRID)
        assert [path.name for path in tmp_path.iterdir()] == ["a.nii"]

    def test_a_folder_that_must_not_be_written(self, tmp_path, monkeypatch):
        def refuse(*_):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(nib, "save", refuse)  # file modes do not stop root
        with pytest.raises(DataError, match=r"could not be written \(Permission denied\); choose another"):
            write_volume(tmp_path / "a.nii", RAMP, GRID)

    @pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
    def test_a_full_disk_leaves_the_old_file(self, name, tmp_path):
        write_volume(tmp_path / name, RAMP, GRID)
        before = (tmp_path / name).read_bytes()
        noise = np.random.default_rng(0).normal(size=(40, 40, 40))
        with no_more_than(100_000), pytest.raises(DataError, match=r"could not be written \(File too large\)"):
            write_volume(tmp_path / name, noise, Grid(noise.shape, np.eye(4)))
        assert (tmp_path / name).read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == [name]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
    def test_what_is_interrupted_leaves_nothing(self, error, tmp_path, monkeypatch):
        write = nib.Nifti1Image.to_stream

        def interrupted(image, file):
            write(image, file)
            raise error

        monkeypatch.setattr(nib.Nifti1Image, "to_stream", interrupted)
        with pytest.raises(error):
            write_volume(tmp_path / "a.nii.gz", RAMP, GRID)
        assert list(tmp_path.iterdir()) == []


@contextmanager
def no_more_than(size):
    """A limit for files, met in the middle of writing as a full disk is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
