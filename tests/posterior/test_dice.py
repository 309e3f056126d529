"""Dice of every structure against hand counts, MONAI and SimpleITK."""

import pytest
import SimpleITK as sitk  # noqa: N813
import torch
from monai.metrics import DiceMetric

from scripts.posterior.dice import dice_per_structure, oracle_index

LABELS = [2, 7, 10_000]


def random_maps(*shape, seed=0):
    """Label maps with the values 0 … 3 of which 0 is background, as the values of LABELS."""
    codes = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
    return torch.tensor([0, *LABELS])[codes]


def test_hand_counted_overlap():
    # Structure 1: 3 voxels predicted, 2 true, 2 shared: 2·2 / (3 + 2) = 0.8. Structure 5: 1 and 2, 0 shared: 0.
    prediction = torch.tensor([1, 1, 1, 5, 0, 0]).view(1, 2, 3)
    truth = torch.tensor([1, 1, 0, 0, 5, 5]).view(1, 2, 3)
    assert dice_per_structure(prediction, truth, [1, 5]).tolist() == [0.8, 0.0]


def test_identical_maps_have_dice_one():
    truth = random_maps(5, 6, 7)
    assert dice_per_structure(truth, truth, LABELS).tolist() == [1.0, 1.0, 1.0]


def test_absent_structures():
    truth = torch.tensor([1, 0, 2, 0]).view(1, 1, 4)
    prediction = torch.tensor([1, 3, 0, 0]).view(1, 1, 4)
    # 1 is in both; 2 only in the truth; 3 only in the prediction; 4 in neither.
    dice = dice_per_structure(prediction, truth, [1, 2, 3, 4])
    assert dice[:3].tolist() == [1.0, 0.0, 0.0]
    assert dice[3].isnan()


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.float32])
def test_agrees_with_monai(dtype):
    prediction, truth = random_maps(5, 6, 7), random_maps(5, 6, 7, seed=1)
    ids = torch.tensor(LABELS).view(1, -1, 1, 1, 1)
    reference = DiceMetric(include_background=True, ignore_empty=False)
    (expected,) = reference((prediction == ids).float(), (truth == ids).float())
    dice = dice_per_structure(prediction.to(dtype), truth.to(dtype), LABELS)
    torch.testing.assert_close(dice, expected.double(), rtol=1e-6, atol=0)


def test_agrees_with_simpleitk():
    prediction, truth = random_maps(5, 6, 7), random_maps(5, 6, 7, seed=1)
    overlap = sitk.LabelOverlapMeasuresImageFilter()
    overlap.Execute(*(sitk.GetImageFromArray(m.to(torch.int32).numpy()) for m in (truth, prediction)))
    expected = torch.tensor([overlap.GetDiceCoefficient(label) for label in LABELS], dtype=torch.float64)
    torch.testing.assert_close(dice_per_structure(prediction, truth, LABELS), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 7), (2, 4, 5, 6)])
def test_mismatched_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected two label maps of one shape \[X, Y, Z\], got"):
        dice_per_structure(torch.zeros(shape, dtype=torch.int16), torch.zeros(4, 5, 6, dtype=torch.int16), [1])


def test_oracle_is_the_highest_mean_over_present_structures():
    # Means without NaN: 0.5, 0.7, 0.6; sample 1 wins although sample 0 has the best single structure.
    nan = float("nan")
    dice = torch.tensor([[0.9, 0.1, nan], [0.7, 0.7, nan], [0.6, 0.6, 0.6]])
    assert oracle_index(dice) == 1


def test_oracle_of_a_single_sample_and_of_equals_is_the_first():
    assert oracle_index(torch.tensor([[0.2, 0.3]])) == 0
    assert oracle_index(torch.full((4, 2), 0.5)) == 0


def test_oracle_needs_a_score_in_every_sample():
    with pytest.raises(ValueError, match="got only NaN"):
        oracle_index(torch.tensor([[0.5, 0.5], [torch.nan, torch.nan]]))
    with pytest.raises(ValueError, match="K, S > 0"):
        oracle_index(torch.zeros(0, 3))
