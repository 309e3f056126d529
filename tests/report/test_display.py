"""Volumes as they are shown: RAS whatever the array's orientation, resampled without a shift, with the right colors."""

from __future__ import annotations

import base64
import gzip
import io
import itertools

import matplotlib.image
import nibabel as nib
import numpy as np
import pytest

from scripts.core.grid import Grid
from scripts.posterior.result import StructureVolume
from scripts.report.colors import label_colors, nice_ceiling, signed_scale, uncertainty_scale
from scripts.report.display import PLANES, Coarse, Frame, crop_box, intensity_window, to_unit
from scripts.report.tiles import Painter, boundary
from scripts.report.viewer import gray_volume, label_volume, niivue_script, niivue_version, overlay_volume

SHAPE = (5, 6, 7)
AFFINE = np.array([[2.0, 0, 0, -4], [0, 2.5, 0, -7], [0, 0, 3.0, -9], [0, 0, 0, 1]])
VOLUME = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)


def decode(volume: dict) -> nib.Nifti1Image:
    return nib.Nifti1Image.from_bytes(gzip.decompress(base64.b64decode(volume["data"])))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("flips", list(itertools.product((1, -1), repeat=3)))
def test_all_48_orientations_are_shown_alike(order, flips):
    orientation = np.array(list(zip(order, flips, strict=True)))
    turned = nib.apply_orientation(VOLUME, orientation)
    affine = AFFINE @ nib.orientations.inv_ornt_aff(orientation, SHAPE)
    frame = Frame(Grid(turned.shape, affine))
    np.testing.assert_array_equal(frame.show(turned), VOLUME)
    np.testing.assert_allclose(frame.grid.affine, AFFINE, atol=1e-12)
    assert frame.grid.shape == SHAPE
    assert frame.tilt == pytest.approx(0, abs=1e-5)


def test_an_oblique_grid_says_its_tilt():
    angle = np.radians(12)
    turn = np.eye(4)
    turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    assert Frame(Grid(SHAPE, turn @ AFFINE)).tilt == pytest.approx(12)


def test_slices_have_the_left_on_the_left_and_the_top_on_top():
    volume = np.zeros(SHAPE)
    volume[0, 5, 6] = 1  # left, anterior, superior
    axial, coronal, sagittal = (plane.cut(volume, (0, 5, 6), (slice(None),) * 3) for plane in PLANES)
    np.testing.assert_array_equal(np.argwhere(axial), [[0, 0]])
    np.testing.assert_array_equal(np.argwhere(coronal), [[0, 0]])
    np.testing.assert_array_equal(np.argwhere(sagittal), [[0, 5]])
    np.testing.assert_array_equal(PLANES[0].cut(volume, (0, 5, 6), np.s_[0:2, 3:6, 0:1]), axial[:3, :2])


def test_a_coarse_grid_keeps_places_and_edges():
    source = Grid((41, 30, 24), np.diag([1.0, 1.0, 2.0, 1.0]))
    coarse = Coarse.of(source)
    assert coarse.changed
    assert coarse.grid.shape == (21, 15, 24)
    np.testing.assert_allclose(coarse.grid.spacing, 2.0)
    world = source.to_world(np.indices(source.shape).reshape(3, -1).T).reshape(*source.shape, 3)
    ramp = world @ np.array([1.0, 2.0, -3.0])  # linear in space, so interpolation is exact inside
    expected = coarse.grid.to_world(np.indices(coarse.grid.shape).reshape(3, -1).T) @ np.array([1.0, 2.0, -3.0])
    inner = (slice(2, -2),) * 3
    np.testing.assert_allclose(coarse.mean(ramp)[inner], expected.reshape(coarse.grid.shape)[inner], atol=1e-3)
    labels = (world[..., 0] > 20).astype(np.int32) * 9000
    assert set(np.unique(coarse.nearest(labels))) == {0, 9000}


def test_a_grid_of_2_mm_is_left_alone():
    coarse = Coarse.of(Grid(SHAPE, np.diag([2.0, 1.8, 4.0, 1.0])))
    assert not coarse.changed
    np.testing.assert_array_equal(coarse.mean(VOLUME), VOLUME)


def test_windows_survive_empty_and_constant_input():
    everything = np.ones(SHAPE, bool)
    assert intensity_window(np.full(SHAPE, 3.0), everything) == (3.0, 4.0)
    assert intensity_window(np.full(SHAPE, np.nan), everything) == (0.0, 1.0)
    unit = to_unit(np.array([-1.0, 5.0, np.nan, 20.0]), (0.0, 10.0))
    np.testing.assert_allclose(unit, [0, 0.5, 0, 1])


def test_a_box_has_a_margin_in_mm_within_the_volume():
    mask = np.zeros(SHAPE, bool)
    mask[2, 3, 4] = True
    assert crop_box(mask, np.array([1.0, 2.0, 4.0]), margin=2.0) == (slice(0, 5), slice(2, 5), slice(3, 6))
    assert crop_box(mask, np.ones(3)) == tuple(slice(0, size) for size in SHAPE)


def test_scales_end_at_round_numbers_and_show_zero_as_nothing():
    assert [nice_ceiling(value) for value in (2.3, 0.011, 1.0, 9.1, 0.0, np.nan)] == [3.0, 0.015, 1.0, 10.0, 1.0, 1.0]
    difference = signed_scale(0.5)
    assert difference.paint(np.array([0.0]))[0, 3] < 0.05
    np.testing.assert_allclose(difference.paint(np.array([-0.5, 0.5]))[:, 3], 1.0)
    low, high = difference.paint(np.array([-0.4, 0.4]))
    assert low[2] > low[0]  # blue below
    assert high[0] > high[2]  # orange above
    uncertainty = uncertainty_scale(1.7)
    assert uncertainty.high == 2.0
    assert uncertainty.paint(np.array([2.0]))[0, 3] > uncertainty.paint(np.array([0.0]))[0, 3]
    assert difference.gradient().count("#") == 17


def test_boundaries_are_drawn_once_and_inside():
    label = np.zeros((5, 6), int)
    label[1:4, 1:3], label[1:4, 3:5] = 7, 9
    expected = np.zeros((5, 6), bool)
    expected[1:4, 1:3] = True  # every pixel of 7 touches the background or 9 ...
    expected[1:4, 4] = True  # ... of 9 only the outer ones
    expected[[1, 3], 3] = True
    np.testing.assert_array_equal(boundary(label), expected)


def test_a_tile_is_drawn_to_scale_and_marks_its_voxel():
    painter = Painter(np.array([2.0, 2.5, 3.0]), (slice(0, 5), slice(1, 6), slice(0, 7)), (2, 3, 4), mark=True)
    axial, _, sagittal = painter.image("test", VOLUME / VOLUME.max())
    assert (axial.width, axial.height) == (20, 25)  # 10 mm by 12.5 mm, two pixels each
    assert (sagittal.width, sagittal.height) == (25, 42)
    assert axial.edges == "LRPA"
    assert axial.mark == pytest.approx((50.0, 50.0))
    pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(axial.source.split(",")[1])), format="png")
    assert pixels.shape[:2] == (25, 20)


def test_overlays_in_the_view_read_as_their_values():
    grid = Grid(SHAPE, AFFINE)
    values = np.linspace(0, 4, VOLUME.size, dtype=np.float32).reshape(SHAPE)
    mask = np.ones(SHAPE, bool)
    mask[0] = False
    volume = overlay_volume("Uncertainty", values, grid, uncertainty_scale(2.9), "mm", mask)
    image = decode(volume)
    np.testing.assert_allclose(image.affine, AFFINE)
    shown = image.get_fdata()
    np.testing.assert_allclose(shown[mask], values[mask], atol=4 / 254)
    assert (shown[~mask] < 0).all()  # below the scale: nothing is drawn
    assert (volume["low"], volume["high"]) == (0.0, 3.0)
    signed = overlay_volume("Difference", values - 1, grid, signed_scale(0.6), "", mask)
    shown = decode(signed).get_fdata()
    np.testing.assert_allclose(shown[mask], values[mask] - 1, atol=3 / 127)
    np.testing.assert_array_equal(shown[~mask], 0)
    assert len(signed["colors"]["R"]) == len(signed["negative"]["R"]) == 256
    np.testing.assert_allclose(decode(gray_volume("Fixed", values / 4, grid)).get_fdata(), values / 4, atol=1 / 255)


@pytest.mark.parametrize("count", [3, 300])
def test_labels_in_the_view_keep_their_names_whatever_their_numbers(count):
    numbers = np.linspace(1, 10_000, count).astype(int)
    label = np.zeros((7, 7, 7), np.int32)
    label.ravel()[:count] = numbers
    volumes = [StructureVolume(int(number), f"Left-Part-{number}", 1.0, 1.0, 1.0) for number in numbers[1:]]
    volume = label_volume("Labels", label, Grid(label.shape, np.eye(4)), volumes)
    codes = decode(volume).get_fdata().astype(int)
    names = np.array(volume["labels"]["labels"])[codes].ravel()
    assert names[0] == "label 1"  # no name is known
    assert names[1] == f"left part {numbers[1]}"
    assert names[-1] == "no label"
    assert volume["labels"]["A"][0] == 0


def test_known_structures_have_their_usual_colors():
    colors = label_colors([StructureVolume(77, "Left-Hippocampus", 1, 1, 1), StructureVolume(5, "anything", 1, 1, 1)])
    assert colors[77] == (220, 216, 20)
    assert colors[5] != colors[77]


def test_the_viewer_is_found_in_the_installed_package():
    script = niivue_script()
    assert script is not None
    assert niivue_version(script).count(".") == 2
