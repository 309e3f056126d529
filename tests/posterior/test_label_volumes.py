import csv

import numpy as np
import pytest
import torch

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.data.loading import LoadVolumed
from scripts.files.nifti import write_volume
from scripts.posterior.label_volumes import LabelAccumulator, label_values, structure_names, write_volumes
from scripts.registration.space import PairSpace

GRID = Grid((6, 4, 4), np.diag([2.0, 1.0, 1.0, 1.0]))
SPACE = PairSpace(GRID, GRID, GRID)


def shift(voxels):
    """A displacement of whole voxels along the first axis, in mm."""
    out = torch.zeros(3, *GRID.shape)
    out[0] = 2.0 * voxels
    return out


def slab(first, last, value=9000):
    labels = torch.zeros(GRID.shape, dtype=torch.int32)
    labels[first:last] = value
    return labels


def test_probabilities_volumes_and_dice_by_hand(tmp_path):
    """A slab of slices 2 and 3, moved to 1 and 2 in one of four samples: slice 2 is certain, 1 and 3 are not."""
    accumulator = LabelAccumulator(slab(2, 4), SPACE, {9000: "slab, <big>"}, fixed_label=slab(2, 5))
    accumulator.add(shift(0), 3)
    accumulator.add(shift(1), 1)
    result = accumulator.result()
    assert result.label[:, 0, 0].tolist() == [0, 0, 9000, 9000, 0, 0]
    np.testing.assert_allclose(result.probability[:, 0, 0], [1, 0.75, 1, 0.75, 1, 1])
    h = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    np.testing.assert_allclose(result.entropy[:, 0, 0], [0, h, 0, h, 0, 0], atol=1e-6)
    (row,) = result.volumes
    # two slices of 16 voxels of 2 mm³; three in the fixed map
    assert (row.mean, row.lower, row.upper, row.fixed) == pytest.approx((64, 64, 64, 96))
    assert row.dice == pytest.approx(2 * 2 / (2 + 3))
    assert accumulator.dice(slab(2, 5)) == 1
    write_volumes(result.volumes, tmp_path / "v.csv")
    (line,) = csv.DictReader((tmp_path / "v.csv").open())
    assert line["name"] == "slab, <big>"
    assert line["label"] == "9000"
    assert float(line["fixed_volume_mm3"]) == 96


@pytest.mark.parametrize("value", [70_000, 9_182_740, 2**24 - 1])
def test_labels_of_three_bytes_are_carried_over(value, tmp_path):
    accumulator = LabelAccumulator(slab(2, 4, value), SPACE, fixed_label=slab(1, 3, value))
    accumulator.add(shift(1), 1)
    result = accumulator.result()
    assert result.label[:, 0, 0].tolist() == [0, value, value, 0, 0, 0]
    (row,) = result.volumes
    assert (row.label, row.name, row.dice) == (value, f"label {value}", 1.0)
    write_volume(tmp_path / "l.nii.gz", result.label, GRID)
    item = LoadVolumed("moving_label")({"moving_label": tmp_path / "l.nii.gz"})
    assert np.array_equal(item["moving_label"][0], result.label)


def test_a_structure_that_the_fixed_map_lacks_has_no_dice():
    accumulator = LabelAccumulator(slab(2, 4), SPACE, fixed_label=slab(2, 4, value=1))
    accumulator.add(shift(0), 1)
    (row,) = accumulator.result().volumes
    assert row.fixed == 0
    assert row.dice is None
    assert np.isnan(accumulator.dice(slab(2, 4)))


def test_names_come_from_the_user_then_seg35_then_the_number():
    names = structure_names(list(range(1, 31)), {2: "gray"})
    assert (names[1], names[2], names[13]) == ("Left-Cerebral-White-Matter", "gray", "Brain-Stem")
    assert structure_names([*range(1, 31), 1001])[1] == "label 1"


@pytest.mark.parametrize("values", [[1], [1, 2, 3], [10, 11, 12, 13, 17, 18, 26]])
def test_masks_tissues_and_parts_of_freesurfers_maps_are_not_taken_for_seg35(values):
    assert structure_names(values) == {value: f"label {value}" for value in values}


def test_maps_without_labels_or_with_too_many_are_refused():
    with pytest.raises(DataError, match="empty"):
        label_values(torch.zeros(3, 3, 3))
    with pytest.raises(DataError, match="intensity image"):
        label_values(torch.arange(20 * 20 * 20).reshape(20, 20, 20))
