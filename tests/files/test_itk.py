"""Transforms as SimpleITK applies them, against direct evaluation with SciPy."""

import h5py
import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813

from experiments.baselines.displacement import read_displacement
from scripts.core.errors import DataError
from scripts.core.grid import LPS, Grid
from scripts.files.inverse import invert
from scripts.files.itk import (
    total_displacement,
    write_composite,
    write_displacement,
    write_inverse_transform,
    write_transform,
)
from tests.files.spaces import (
    ALIGNMENT,
    FIXED,
    SHEARED,
    affine,
    apply,
    at_points,
    centered,
    from_sitk,
    mapped,
    moving_grid,
    orientations,
    points_of,
    sampled,
    smooth,
    to_sitk,
)

ROUNDING = 0.5 / 4096 * 1.001  # mm


def displacement_transform(path):
    return sitk.DisplacementFieldTransform(sitk.ReadImage(str(path), sitk.sitkVectorFloat64))


def resampled(moving, moving_space, fixed, transform):
    """What SimpleITK makes of a moving image; NaN outside of it."""
    reference = to_sitk(np.zeros(fixed.shape, np.float32), fixed)
    image = to_sitk(moving.astype(np.float64), moving_space)
    return from_sitk(sitk.Resample(image, reference, transform, sitk.sitkLinear, np.nan))


def agree(found, expected, tolerance=2e-4):
    """Equal wherever both are inside, which is nearly everywhere."""
    expected = expected.reshape(found.shape)
    both = np.isfinite(found) & np.isfinite(expected)
    assert both.mean() > 0.95
    np.testing.assert_allclose(found[both], expected[both], atol=tolerance)


class TestResampling:
    """`sitk.Resample(moving, fixed, transform)` equals the moving image at A (x + d(x))."""

    @pytest.fixture(params=FIXED, ids=str)
    def case(self, request):
        fixed = FIXED[request.param]
        moving_space = moving_grid(fixed)
        field = smooth((3, *fixed.shape), largest=3.0)
        moving = smooth(moving_space.shape, sigma=3.0, seed=1)
        return fixed, field, moving_space, moving

    @pytest.mark.parametrize("alignment", [None, ALIGNMENT], ids=["unaligned", "aligned"])
    def test_by_the_composite(self, case, alignment, tmp_path):
        fixed, field, space, moving = case
        write_transform(tmp_path / "t.h5", field, fixed, alignment)
        transform = sitk.ReadTransform(tmp_path / "t.h5")
        assert sitk.CompositeTransform(transform).GetNumberOfTransforms() == 2
        expected = sampled(moving, space, mapped(field, fixed, np.eye(4) if alignment is None else alignment))
        agree(resampled(moving, space, fixed, transform), expected)

    @pytest.mark.parametrize("alignment", [None, ALIGNMENT], ids=["unaligned", "aligned"])
    def test_by_the_displacement_field(self, case, alignment, tmp_path):
        fixed, field, space, moving = case
        write_displacement(tmp_path / "d.nii.gz", field, fixed, alignment)
        expected = sampled(moving, space, mapped(field, fixed, np.eye(4) if alignment is None else alignment))
        agree(resampled(moving, space, fixed, displacement_transform(tmp_path / "d.nii.gz")), expected)

    def test_by_the_inverse_composite(self, case, tmp_path):
        fixed, field, space, _ = case
        image = smooth(fixed.shape, sigma=2.0, seed=2)
        write_inverse_transform(tmp_path / "t.h5", field, fixed, ALIGNMENT)
        # φ⁻¹(y) = z + e(z), z = A⁻¹ y; the points y are those of voxels that come to lie well inside of the field
        y = points_of(space)
        z = apply(np.linalg.inv(ALIGNMENT), y)
        places = fixed.to_indices(z)
        well_inside = ((places > 0) & (places < np.array(fixed.shape) - 1)).all(1)
        expected = sampled(image, fixed, z + at_points(field, fixed, z))
        found = resampled(image, fixed, space, sitk.ReadTransform(tmp_path / "t.h5")).ravel()
        both = well_inside & np.isfinite(found) & np.isfinite(expected)
        assert both.sum() > 500
        np.testing.assert_allclose(found[both], expected[both], atol=2e-4)

    @pytest.mark.parametrize("linear", orientations()[::5])
    def test_in_many_orientations(self, linear, tmp_path):
        fixed = centered((9, 10, 11), linear * [1.0, 1.2, 0.9], center=(5, -6, 7))
        space, field = moving_grid(fixed), smooth((3, 9, 10, 11), largest=2.0)
        moving = smooth(space.shape, sigma=3.0, seed=1)
        write_transform(tmp_path / "t.h5", field, fixed, ALIGNMENT)
        write_displacement(tmp_path / "d.nii", field, fixed, ALIGNMENT)
        expected = sampled(moving, space, mapped(field, fixed, ALIGNMENT))
        agree(resampled(moving, space, fixed, sitk.ReadTransform(tmp_path / "t.h5")), expected)
        agree(resampled(moving, space, fixed, displacement_transform(tmp_path / "d.nii")), expected)

    def test_of_a_sheared_grid_by_the_composite(self, tmp_path):
        space, field = moving_grid(SHEARED), smooth((3, *SHEARED.shape), largest=2.0)
        moving = smooth(space.shape, sigma=3.0, seed=1)
        write_transform(tmp_path / "t.h5", field, SHEARED, ALIGNMENT)
        expected = sampled(moving, space, mapped(field, SHEARED, ALIGNMENT))
        agree(resampled(moving, space, SHEARED, sitk.ReadTransform(tmp_path / "t.h5")), expected)


def test_forward_and_inverse_composites_undo_each_other(tmp_path):
    grid = centered((24, 22, 20), FIXED["oblique"].affine[:3, :3])
    field = smooth((3, *grid.shape), largest=2.0, sigma=3.0)
    write_transform(tmp_path / "t.h5", field, grid, ALIGNMENT)
    write_inverse_transform(tmp_path / "i.h5", invert(field, grid).field, grid, ALIGNMENT)
    forward, backward = (sitk.ReadTransform(tmp_path / name) for name in ("t.h5", "i.h5"))
    inside = grid.to_world(np.random.default_rng(0).uniform(4, 15, (200, 3))) @ LPS[:3, :3]
    errors = [np.linalg.norm(np.subtract(backward.TransformPoint(forward.TransformPoint(x)), x)) for x in inside]
    assert np.mean(errors) < 0.02
    errors = [np.linalg.norm(np.subtract(forward.TransformPoint(backward.TransformPoint(x)), x)) for x in inside]
    assert np.mean(errors) < 0.02


class TestComposite:
    GRID = FIXED["left-handed"]
    FIELD = smooth((3, *FIXED["left-handed"].shape), largest=3.0)

    def test_equals_what_simpleitk_writes_itself(self, tmp_path):
        write_transform(tmp_path / "t.h5", self.FIELD, self.GRID, ALIGNMENT)
        ours = sitk.CompositeTransform(sitk.ReadTransform(tmp_path / "t.h5"))
        matrix = LPS @ ALIGNMENT @ LPS
        alignment = sitk.AffineTransform(matrix[:3, :3].ravel().tolist(), matrix[:3, 3].tolist())
        vectors = np.moveaxis(self.FIELD, 0, -1).astype(np.float64) * [-1, -1, 1]
        theirs = sitk.CompositeTransform([alignment, sitk.DisplacementFieldTransform(to_sitk(vectors, self.GRID))])
        sitk.WriteTransform(theirs, tmp_path / "s.h5")
        with h5py.File(tmp_path / "t.h5") as a, h5py.File(tmp_path / "s.h5") as b:
            for part in "012":
                one, other = a["TransformGroup"][part], b["TransformGroup"][part]
                assert list(one["TransformType"]) == list(other["TransformType"])
                if part != "0":
                    fixed, same = one["TransformFixedParameters"], other["TransformFixedParameters"]
                    np.testing.assert_allclose(fixed, same, rtol=1e-12, atol=1e-12)
                    np.testing.assert_allclose(one["TransformParameters"], other["TransformParameters"], atol=ROUNDING)
                    # the names that ITK 4 looks for are links to the same numbers
                    for name in ("FixedParameters", "Parameters"):
                        assert one["Tranform" + name] == one["Transform" + name]
        assert [ours.GetNthTransform(n).GetName() for n in (0, 1)] == ["AffineTransform", "DisplacementFieldTransform"]

    def test_large_fields_are_compressed_and_single_precision(self, tmp_path):
        grid = Grid((32, 32, 32), np.eye(4))
        field = smooth((3, 32, 32, 32), largest=5.0, sigma=3.0)
        write_transform(tmp_path / "t.h5", field, grid)
        assert (tmp_path / "t.h5").stat().st_size < 0.75 * field.nbytes
        transform = sitk.ReadTransform(tmp_path / "t.h5")
        found = np.array(transform.TransformPoint((-7.0, -8.0, 9.0))) * [-1, -1, 1]  # of the voxel (7, 8, 9)
        np.testing.assert_allclose(found, np.array([7, 8, 9]) + field[:, 7, 8, 9], atol=ROUNDING + 1e-6)

    def test_compressed_numbers_are_found_as_they_were_written(self, tmp_path):
        grid = Grid((33, 32, 31), np.eye(4))  # the last chunk is not full
        field = np.random.default_rng(0).normal(scale=20.0, size=(3, *grid.shape)).astype(np.float32)
        write_transform(tmp_path / "t.h5", field, grid)
        expected = np.rint(np.transpose(field, (3, 2, 1, 0)) * [-4096, -4096, 4096]) / 4096
        with h5py.File(tmp_path / "t.h5") as file:
            stored = file["TransformGroup/2/TransformParameters"]
            assert (stored.dtype, stored.compression, stored.shuffle) == (np.float32, "gzip", True)
            np.testing.assert_array_equal(stored, expected.ravel())
        transform = sitk.CompositeTransform(sitk.ReadTransform(tmp_path / "t.h5")).GetNthTransform(1)
        read = sitk.DisplacementFieldTransform(transform).GetDisplacementField()
        np.testing.assert_array_equal(sitk.GetArrayFromImage(read), expected)

    def test_double_precision_is_compressed_as_well(self, tmp_path):
        values = np.random.default_rng(0).normal(size=70_000)
        write_composite(tmp_path / "t.h5", [("BSplineTransform_double_3_3", np.zeros(18), values)])
        with h5py.File(tmp_path / "t.h5") as file:
            np.testing.assert_array_equal(file["TransformGroup/1/TransformParameters"], values)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
    def test_what_is_interrupted_leaves_nothing(self, error, tmp_path, monkeypatch):
        def interrupted(_):
            raise error

        monkeypatch.setattr("scripts.files.itk.deflated", interrupted)
        with pytest.raises(error):
            write_transform(tmp_path / "t.h5", np.zeros((3, 32, 32, 32)), Grid((32, 32, 32), np.eye(4)))
        assert list(tmp_path.iterdir()) == []

    def test_the_same_transform_gives_the_same_bytes(self, tmp_path):
        for name in ("a.h5", "b.h5"):
            write_transform(tmp_path / name, self.FIELD, self.GRID, ALIGNMENT)
        assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()

    def test_zero_field_and_no_alignment_is_the_identity_exactly(self, tmp_path):
        write_transform(tmp_path / "t.h5", np.zeros_like(self.FIELD), self.GRID)
        point = tuple(LPS[:3, :3] @ self.GRID.to_world(np.array([[3.3, 4.4, 5.5]]))[0])
        assert sitk.ReadTransform(tmp_path / "t.h5").TransformPoint(point) == point

    def test_what_cannot_be_written_leaves_nothing(self, tmp_path):
        (tmp_path / "out").write_text("")
        with pytest.raises(DataError, match=r"t\.h5: could not be written \(.*out is a file, not a folder"):
            write_transform(tmp_path / "out" / "t.h5", self.FIELD, self.GRID)
        with pytest.raises(DataError, match=r"t\.tfm: expected a name that ends in \.h5"):
            write_transform(tmp_path / "t.tfm", self.FIELD, self.GRID)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]


class TestDisplacement:
    @pytest.mark.parametrize("grid", [*FIXED.values(), SHEARED], ids=[*FIXED, "sheared"])
    def test_is_read_as_it_was_written(self, grid, tmp_path):
        field = smooth((3, *grid.shape), largest=12.0)
        write_displacement(tmp_path / "d.nii.gz", field, grid)
        found, space = read_displacement(tmp_path / "d.nii.gz")
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, field, atol=ROUNDING)
        assert space.same_as(grid, 1e-5)

    def test_follows_the_convention_of_itk(self, tmp_path):
        grid = FIXED["anisotropic"]
        field = np.zeros((3, *grid.shape), np.float32)
        field[:, 1, 2, 3] = 1.0, 2.0, 3.0
        write_displacement(tmp_path / "d.nii.gz", field, grid)
        image = nib.load(tmp_path / "d.nii.gz")
        assert image.shape == (*grid.shape, 1, 3)
        assert image.get_data_dtype() == np.float32
        assert int(image.header["intent_code"]) == 1007
        assert image.header.get_intent()[0] == "vector"
        assert image.header.get_xyzt_units()[0] == "mm"
        assert (int(image.header["qform_code"]), int(image.header["sform_code"])) == (2, 2)
        np.testing.assert_allclose(image.affine, grid.affine, rtol=1e-6)
        assert np.asarray(image.dataobj)[1, 2, 3, 0].tolist() == [-1, -2, 3]  # LPS
        found = sitk.ReadImage(tmp_path / "d.nii.gz")
        assert found.GetNumberOfComponentsPerPixel() == 3
        assert found.GetPixel(1, 2, 3) == (-1, -2, 3)

    def test_total_displacement_by_hand(self):
        grid = Grid((3, 4, 5), affine(np.diag([2.0, 1.0, 1.0]), (10, 0, 0)))
        field = np.full((3, 3, 4, 5), 1.0, np.float32)
        total = total_displacement(field, grid, affine(np.diag([2.0, 1.0, 1.0]), (0, 0, 7)))
        # x = 10 + 2i goes to 2 (x + 1): moved by x + 2 = 12 + 2i; y is moved by 1, z by 1 + 7
        np.testing.assert_allclose(total[0], np.broadcast_to(12 + 2 * np.arange(3)[:, None, None], (3, 4, 5)))
        assert (total[1] == 1).all()
        assert (total[2] == 8).all()

    @pytest.mark.parametrize("grid", FIXED.values(), ids=FIXED)
    def test_total_displacement_is_the_whole_map(self, grid):
        field = smooth((3, *grid.shape), largest=4.0)
        total = total_displacement(field, grid, ALIGNMENT)
        assert total.dtype == np.float32
        expected = mapped(field, grid, ALIGNMENT) - points_of(grid)
        np.testing.assert_allclose(total.reshape(3, -1).T, expected, atol=1e-5)
        np.testing.assert_array_equal(total_displacement(field, grid), field)

    def test_other_files_are_refused_with_what_is_expected(self, tmp_path):
        def save(name, data, intent):
            image = nib.Nifti1Image(data.astype(np.float32), np.eye(4))
            image.header.set_intent(intent)
            nib.save(image, tmp_path / name)

        save("4d.nii.gz", np.zeros((4, 5, 6, 3)), 1007)
        save("intent.nii.gz", np.zeros((4, 5, 6, 1, 3)), 0)
        save("nan.nii.gz", np.full((4, 5, 6, 1, 3), np.nan), 1007)
        (tmp_path / "text.nii").write_text("no image")
        save("cut.nii", np.zeros((4, 5, 6, 1, 3)), 1007)
        (tmp_path / "cut.nii").write_bytes((tmp_path / "cut.nii").read_bytes()[:600])
        nib.save(nib.MGHImage(np.zeros((4, 5, 6), np.float32), np.eye(4)), tmp_path / "a.mgz")
        for name, message in {
            "4d.nii.gz": r"expected a displacement field of shape \(X, Y, Z, 1, 3\), got \(4, 5, 6, 3\)",
            "intent.nii.gz": r"expected vectors \(intent code 1007\), got intent code 0",
            "nan.nii.gz": "expected finite displacements, got 360 numbers",
            "text.nii": "cannot be read as a displacement field",
            "cut.nii": "cannot be read as a displacement field",
            "a.mgz": "NIfTI format",
            "missing.nii": "the file does not exist",
        }.items():
            with pytest.raises(DataError, match=f"{name}: .*{message}") as caught:
                read_displacement(tmp_path / name)
            assert "\n" not in str(caught.value)


def test_arguments_that_do_not_fit_are_refused(tmp_path):
    grid, field = Grid((4, 5, 6), np.eye(4)), np.zeros((3, 4, 5, 6), np.float32)
    with pytest.raises(ValueError, match=r"expected a field of shape \(3, 4, 5, 6\), got \(4, 5, 6, 3\)"):
        write_displacement(tmp_path / "d.nii", np.moveaxis(field, 0, -1), grid)
    with pytest.raises(ValueError, match="has an inverse"):
        write_transform(tmp_path / "t.h5", field, grid, np.diag([1.0, 1, 0, 1]))
    for wrong in (np.eye(3), np.full((4, 4), np.nan), np.ones((4, 4))):
        with pytest.raises(ValueError, match="expected an affine"):
            write_inverse_transform(tmp_path / "t.h5", field, grid, wrong)
    assert list(tmp_path.iterdir()) == []
