"""From a pair's files to the work grid: against what can be known of synthetic brains, and against SimpleITK."""

from __future__ import annotations

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from scipy.ndimage import center_of_mass

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.data.pair_input import MARGIN, pair_input_transforms
from scripts.data.resolution import antialiased
from tests.alignment.brains import array, brain, displaced, disturbance, reoriented, volume, whole_head

WORK = 6.0


def save(folder, **volumes) -> dict[str, str]:
    """Volumes as files; keys to paths."""
    files = {}
    for key, image in volumes.items():
        files[key] = str(folder / f"{key}.nii.gz")
        nib.save(nib.Nifti1Image(array(image), np.asarray(image.affine)), files[key])
    return files


def prepare(files, **options):
    options = {"pixdim": WORK, "stride": 8, "alignment": "none", **options}
    return pair_input_transforms(**options)(files)


def boxed(image, low, high):
    """A mask: 1 between two corners, in voxels."""
    values = np.zeros(array(image).shape, np.float32)
    values[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = 1
    return volume(values, np.asarray(image.affine))


def test_the_work_grid_has_the_models_axes_spacing_and_a_size_that_fits_the_network(tmp_path):
    item = prepare(save(tmp_path, fixed=reoriented(brain(1), "PSR"), moving=brain(2)))
    grid = Grid.of(item["fixed"])
    assert "".join(nib.aff2axcodes(grid.affine)) == "LIA"
    np.testing.assert_allclose(grid.spacing, WORK)
    assert all(size % 8 == 0 for size in grid.shape)
    assert Grid.of(item["moving"]).same_as(grid)
    for role in ("fixed", "moving"):
        assert item[role].dtype == torch.float32
        assert 0 <= float(item[role].min()) < float(item[role].max()) <= 1


def test_the_whole_brain_is_on_the_work_grid_with_a_margin(tmp_path):
    item = prepare(save(tmp_path, fixed=brain(1), moving=brain(2)))
    inside = array(item["fixed"]) > 0.05
    for axis in range(3):
        used = np.flatnonzero(inside.any(axis=tuple(a for a in range(3) if a != axis)))
        assert used[0] >= MARGIN - 1
        assert used[-1] <= inside.shape[axis] - MARGIN
    volume_mm3 = [(array(image) > 0.05).sum() * Grid.of(image).voxel_volume for image in (item["fixed"], brain(1))]
    assert volume_mm3[0] == pytest.approx(volume_mm3[1], rel=0.1)


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SAR", "IPL"])
def test_anatomy_stays_in_its_place_whatever_the_orientation(codes, tmp_path):
    item = prepare(save(tmp_path, fixed=reoriented(brain(1), codes), moving=reoriented(brain(2), codes)))
    for role, original in (("fixed", brain(1)), ("moving", brain(2))):
        centers = []
        for image in (item[role], original):
            indices = np.array(center_of_mass(array(image)))[None]
            centers.append(Grid.of(image).to_world(indices)[0])
        assert np.linalg.norm(centers[0] - centers[1]) < 0.3


def test_the_moving_image_is_resampled_as_simpleitk_does(tmp_path):
    """On a work grid as fine as the images, so that no smoothing comes in between."""
    files = save(tmp_path, fixed=brain(1), moving=displaced(brain(2), disturbance((3, -5, 2), (0, 4, 8))))
    item = prepare(files, pixdim=4.0)
    nib.save(nib.Nifti1Image(array(item["fixed"]), np.asarray(item["fixed"].affine)), tmp_path / "work.nii.gz")
    moving, work = (sitk.ReadImage(str(path), sitk.sitkFloat32) for path in (files["moving"], tmp_path / "work.nii.gz"))
    expected = sitk.GetArrayFromImage(sitk.Resample(moving, work)).transpose()
    assert np.abs(array(item["moving"]) - expected).mean() < 1e-4


def test_files_of_one_and_four_millimeters_give_the_same_brightness(tmp_path):
    """Smoothing before a coarser grid: a voxel is the mean of what it covers, not the one in its middle."""
    noise = np.random.default_rng(0).uniform(0.2, 1.0, (64, 64, 64)).astype(np.float32)
    image = volume(noise, np.diag([1.0, 1.0, 1.0, 1.0]))
    smooth = antialiased(image, 4.0)
    means = noise.reshape(16, 4, 16, 4, 16, 4).mean((1, 3, 5))
    # A Gaussian of the box's variance: the spread of the values falls about as much.
    assert float(array(smooth)[8:-8, 8:-8, 8:-8].std()) == pytest.approx(float(means.std()), rel=0.5)
    assert torch.equal(antialiased(image, 1.0).as_tensor(), image.as_tensor())


def test_labels_stay_on_their_own_grids_as_whole_numbers(tmp_path):
    label = volume((array(brain(2)) > 0.5) * 10_000, np.asarray(brain(2).affine))
    item = prepare(save(tmp_path, fixed=brain(1), moving=brain(2), moving_label=label))
    assert item["moving_label"].dtype == torch.int32
    assert item["moving_label"].shape == label.shape
    assert item["moving_label"].unique().tolist() == [0, 10_000]
    assert "fixed_label" not in item


def test_outside_of_its_mask_an_image_is_zero_and_holes_only_leave_the_likelihood(tmp_path):
    mask = boxed(brain(1), (8, 10, 12), (34, 40, 48))
    array(mask)[20:24, 20:24, 20:24] = 0
    item = prepare(save(tmp_path, fixed=brain(1), moving=brain(2), fixed_mask=mask))
    seen, counted = array(item["fixed"]), array(item["fixed_mask"])
    assert set(np.unique(counted)) == {0.0, 1.0}
    assert (seen > 0).sum() < 0.8 * (array(prepare(save(tmp_path, fixed=brain(1), moving=brain(2)))["fixed"]) > 0).sum()
    hole = Grid.of(item["fixed"]).to_indices(Grid.of(brain(1)).to_world(np.array([[21.5, 21.5, 21.5]])))[0].round()
    index = tuple(int(i) for i in hole)
    assert counted[index] == 0
    assert seen[index] > 0


def test_a_mask_of_ones_has_no_effect_and_that_is_said(tmp_path):
    ones = volume(np.ones(array(brain(1)).shape, np.float32), np.asarray(brain(1).affine))
    item = prepare(save(tmp_path, fixed=brain(1), moving=brain(2), fixed_mask=ones))
    assert item["warnings"] == ["The fixed mask covers the whole image, so it has no effect."]
    head = whole_head(brain(1))
    item = prepare(save(tmp_path, fixed=head, moving=brain(2), fixed_mask=ones))
    assert len(item["warnings"]) == 2
    assert "does not look skull-stripped" in item["warnings"][1]


@pytest.mark.parametrize("role", ["fixed", "moving"])
def test_a_whole_head_is_remarked_and_goes_on_unless_a_mask_strips_it(role, tmp_path, caplog):
    pair = {"fixed": brain(1), "moving": brain(2)}
    head = whole_head(pair[role])
    item = prepare(save(tmp_path, **{**pair, role: head}))
    assert len(item["warnings"]) == 1
    assert item["warnings"][0].startswith(f"The {role} image does not look skull-stripped")
    assert item["warnings"][0] in caplog.messages
    mask = volume(array(pair[role]) > 0, np.asarray(head.affine))
    assert prepare(save(tmp_path, **{**pair, role: head, f"{role}_mask": mask}))["warnings"] == []


def test_what_cannot_be_registered_is_refused_in_words(tmp_path):
    empty = volume(np.zeros(array(brain(2)).shape, np.float32), np.asarray(brain(2).affine))
    with pytest.raises(DataError, match="moving_mask: no voxel is above 0"):
        prepare(save(tmp_path, fixed=brain(1), moving=brain(2), moving_mask=empty))
    shifted = displaced(boxed(brain(2), (5, 5, 5), (40, 40, 40)), disturbance((9, 0, 0)))
    with pytest.raises(DataError, match="moving_mask: its grid"):
        prepare(save(tmp_path, fixed=brain(1), moving=brain(2), moving_mask=shifted))
    with pytest.raises(DataError, match="do not overlap in space"):
        prepare(save(tmp_path, fixed=brain(1), moving=displaced(brain(2), disturbance((900, 0, 0)))))
    # Volumes that overlap at a corner, where there is no brain.
    with pytest.raises(DataError, match="does not reach the fixed one"):
        prepare(save(tmp_path, fixed=brain(1), moving=displaced(brain(2), disturbance((165, 200, 200)))))


def test_settings_that_make_no_sense_are_refused_before_a_file_is_read():
    with pytest.raises(DataError, match="auto, none, rigid, affine, got 'elastic'"):
        pair_input_transforms(alignment="elastic")
    with pytest.raises(DataError, match="larger than 0 mm"):
        pair_input_transforms(pixdim=0.0)


def test_alignment_moves_the_moving_brain_onto_the_fixed_one(tmp_path):
    moved = displaced(brain(1), disturbance((25, -15, 10), (0, 0, 10)))
    item = prepare(save(tmp_path, fixed=brain(1), moving=moved), alignment="rigid")
    assert item["alignment"].method == "rigid"
    assert np.abs(array(item["moving"]) - array(item["fixed"])).mean() < 0.03
    assert Grid.of(item["moving_file"]).same_as(Grid.of(moved))
