"""Alignment: known maps are found again, however the images are stored, and SimpleITK agrees on what they mean."""

import re
from functools import cache

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from scipy import ndimage

from scripts.alignment import align as module
from scripts.alignment.align import Alignment, align, apply_alignment
from scripts.core.grid import LPS
from tests.alignment.brains import array, brain, brain_points, displaced, disturbance, mean_error, reoriented, volume

FAR = disturbance((70, -60, 40), (20, -10, 20))  # 100 mm, 30 degrees
STRETCHED = disturbance((-30, 20, 10), (-8, 12, 5), (1.15, 0.95, 1.1))


@cache
def rotated() -> Alignment:
    """A brain aligned to itself, after FAR."""
    return align(brain(), displaced(brain(), FAR), "rigid")


@cache
def stretched() -> Alignment:
    """A brain aligned to itself, after STRETCHED."""
    return align(brain(), displaced(brain(), STRETCHED), "affine")


@cache
def people() -> np.ndarray:
    """From one person to another, who is aligned already: an affine map that fits a little better."""
    return align(brain(0), brain(1), "affine").matrix


def similarities(result: Alignment) -> list[float]:
    """What the description says about the mutual information: before and after, or once if nothing was done."""
    return [float(number) for number in result.description.partition("mutual information ")[2].split(" -> ")]


class TestRecovery:
    def test_rigid_100_mm_and_30_degrees(self):
        result = rotated()
        assert result.method == "rigid"
        assert mean_error(result.matrix, FAR, brain()) < 0.1
        assert np.allclose(result.matrix[:3, :3] @ result.matrix[:3, :3].T, np.eye(3), atol=1e-9)
        distance, angle = re.match(
            r"Rigid alignment: the brains were ([\d.]+) mm and ([\d.]+) degrees apart; mutual", result.description
        ).groups()
        center = brain_points(brain()).mean(0)
        assert float(distance) == pytest.approx(np.linalg.norm(FAR[:3, :3] @ center + FAR[:3, 3] - center), abs=1)
        assert float(angle) == pytest.approx(30, abs=0.3)

    def test_affine_with_scales(self):
        result = stretched()
        assert result.method == "affine"
        assert mean_error(result.matrix, STRETCHED, brain()) < 0.5
        before, after = similarities(result)
        assert after > before
        assert "apart, the moving one 6 % longer; mutual information" in result.description  # 1.15 · 0.95 · 1.1 = 1.06³

    def test_another_person_of_another_size(self):
        far = disturbance((-40, 30, 85), (-15, 10, 20), (0.8, 0.8, 0.8))
        found = align(brain(0), displaced(brain(1), far), "affine").matrix
        # Two people do not match perfectly, but the best match is the same wherever one of them lies.
        assert mean_error(found, far @ people(), brain(0)) < 0.6

    def test_images_that_do_not_overlap(self):
        apart = disturbance((400, 0, -300), (0, 10, 0))
        result = align(brain(), displaced(brain(), apart), "rigid")
        assert mean_error(result.matrix, apart, brain()) < 0.1
        assert similarities(result)[0] == 0

    def test_a_brain_that_the_volume_cuts_is_not_stretched(self):
        part = volume(array(brain())[:, :34], np.asarray(brain().affine))  # 5 cm of the lower end are missing
        result = align(brain(), displaced(part, STRETCHED), "affine")
        assert mean_error(result.matrix, STRETCHED, brain()) < 1.0


class TestAuto:
    def test_leaves_an_aligned_pair_alone(self):
        result = align(brain(0), brain(1))
        assert result.method == "none"
        assert np.array_equal(result.matrix, np.eye(4))
        assert result.description.startswith("Not aligned, as the pair is already: an affine map would move the brain")

    def test_aligns_what_is_5_mm_apart(self):
        apart = disturbance((3, -3, 3), (2, -2, 1))
        result = align(brain(0), displaced(brain(1), apart))
        assert result.method == "affine"
        assert mean_error(result.matrix, apart @ people(), brain(0)) < 0.6


class TestStorage:
    def test_lps_copy_of_an_ras_image_gives_the_identity(self):
        result = align(reoriented(brain(), "RAS"), reoriented(brain(), "LPS"), "affine")
        assert mean_error(result.matrix, np.eye(4), brain()) < 0.1

    def test_orientation_does_not_matter(self):
        fixed, moving = reoriented(brain(), "ASL"), reoriented(displaced(brain(), FAR), "PIR")
        assert mean_error(align(fixed, moving, "rigid").matrix, rotated().matrix, brain()) < 0.1

    def test_same_input_same_matrix_whatever_the_threads(self):
        threads = sitk.ProcessObject.GetGlobalDefaultNumberOfThreads()
        sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads + 3)
        try:
            again = align(brain(), displaced(brain(), FAR), "rigid").matrix
        finally:
            sitk.ProcessObject.SetGlobalDefaultNumberOfThreads(threads)
        assert np.array_equal(again, rotated().matrix)


class TestFallback:
    def test_nothing_worse_than_the_headers_is_returned(self, monkeypatch):
        monkeypatch.setattr(module, "optimize", lambda *args, **options: disturbance((30, 0, 0), (0, 0, 40)))
        result = align(brain(0), brain(1), "affine")
        assert result.method == "none"
        assert np.array_equal(result.matrix, np.eye(4))
        assert len(similarities(result)) == 1
        assert "as no affine map fits better than what the headers say" in result.description

    def test_an_affine_map_that_no_brain_can_need_gives_way_to_the_rigid_one(self, monkeypatch):
        near = disturbance((30, 0, 0))
        wild = disturbance((30, 0, 0), (0, 0, 0), (3, 1, 1))
        monkeypatch.setattr(module, "optimize", lambda *args, **options: wild if args[3] else near)
        result = align(brain(0), displaced(brain(1), near), "affine")
        assert result.method == "rigid"
        assert np.array_equal(result.matrix, near)
        assert result.description.startswith("Rigid alignment (no affine map fits better): ")

    def test_none_only_measures(self):
        result = align(brain(0), displaced(brain(1), STRETCHED), "none")
        assert result.method == "none"
        assert np.array_equal(result.matrix, np.eye(4))
        (similarity,) = similarities(result)
        assert similarity > 0


class TestMasks:
    def test_only_what_is_inside_counts(self):
        # A bright ball beside the brain in both images, in different places.
        apart = disturbance((0, 8, 0))
        images, masks = [], []
        for corner in (4, 36):
            values = array(brain()).copy()
            values[corner : corner + 4, 2:8, 2:8] = 1.0
            images.append(volume(values, np.asarray(brain().affine)))
            masks.append(volume(array(brain()) > 0, np.asarray(brain().affine)))
        moving, mask = displaced(images[1], apart), displaced(masks[1], apart)
        result = align(images[0], moving, "rigid", masks[0], mask)
        assert mean_error(result.matrix, apart, brain()) < 0.1

    def test_tiny(self):
        mask = np.zeros(brain().shape[1:])
        mask[20:22, 25:27, 30:32] = 1
        result = align(brain(), brain(), "affine", volume(mask, np.asarray(brain().affine)))
        assert np.isfinite(result.matrix).all()
        assert similarities(result)[-1] >= similarities(result)[0]


class TestApply:
    def test_simpleitk_with_the_matrix_equals_resampling_with_the_changed_affine(self):
        fixed, moving = brain(0), displaced(brain(1), FAR)
        matrix = STRETCHED @ FAR
        # SimpleITK: arrays reversed, everything in LPS, from fixed to moving.
        transform = sitk.AffineTransform(3)
        lps = LPS @ matrix @ LPS
        transform.SetMatrix(lps[:3, :3].ravel().tolist())
        transform.SetTranslation(lps[:3, 3].tolist())
        expected = sitk.Resample(to_itk(moving), to_itk(fixed), transform, sitk.sitkLinear, 0.0)

        aligned = apply_alignment(moving, matrix)
        to_voxels = np.linalg.inv(np.asarray(aligned.affine)) @ np.asarray(fixed.affine)
        found = ndimage.affine_transform(
            array(moving), to_voxels[:3, :3], to_voxels[:3, 3], tuple(fixed.shape[1:]), order=1
        )
        assert found.max() > 0.5
        assert np.abs(found - sitk.GetArrayFromImage(expected).T).max() < 1e-4

    def test_voxels_and_meta_stay(self):
        moving = brain(0).clone()
        moving.meta["filename_or_obj"] = "scan.nii.gz"
        aligned = apply_alignment(moving, FAR)
        assert torch.equal(aligned.as_subclass(torch.Tensor), moving.as_subclass(torch.Tensor))
        assert aligned.meta["filename_or_obj"] == "scan.nii.gz"
        assert np.allclose(FAR @ np.asarray(aligned.affine), np.asarray(moving.affine))
        assert aligned.affine.dtype == torch.float64

    @pytest.mark.parametrize("matrix", [np.eye(3), np.zeros((4, 4)), np.full((4, 4), np.nan)])
    def test_no_map(self, matrix):
        with pytest.raises(ValueError, match="invertible matrix"):
            apply_alignment(brain(0), matrix)


def to_itk(image) -> sitk.Image:
    affine = LPS @ np.asarray(image.affine)
    spacing = np.linalg.norm(affine[:3, :3], axis=0)
    result = sitk.GetImageFromArray(np.ascontiguousarray(array(image).T))
    result.SetSpacing(spacing.tolist())
    result.SetDirection((affine[:3, :3] / spacing).ravel().tolist())
    result.SetOrigin(affine[:3, 3].tolist())
    return result
