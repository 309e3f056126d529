"""Label values from files: storage, range, and what to say when they are no labels."""

import pytest
import torch
from monai.data import MetaTensor

from scripts.posterior.boxes import EMPTY, box_shape, grow, intersection, label_boxes, relative, union, whole
from scripts.posterior.label_maps import MAX_LABEL, as_integers, check_labels, encode_labels

VALUES = [[0, 17, 10_000], [17, 3, 0]]


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.float32, torch.float64])
def test_labels_up_to_10000_in_any_storage(dtype):
    # labels = [17, 10000] become the codes 1 and 2, all else 0.
    codes = encode_labels(torch.tensor(VALUES, dtype=dtype), [17, 10_000])
    assert codes.dtype == torch.uint8
    assert codes.tolist() == [[0, 1, 2], [1, 0, 0]]


def test_values_beyond_the_table_are_background():
    values = torch.tensor([-5, -1, 0, 1, 2, 3, 2**31 + 1, -(2**40), 2**32 + 1])
    assert encode_labels(values, [1, 2]).tolist() == [0, 0, 0, 1, 2, 0, 0, 0, 0]
    # A byte holds 0 … 255: the largest must not wrap around, nor the largest id overrun the table.
    assert encode_labels(torch.tensor([255, 0, 254], dtype=torch.uint8), [255]).tolist() == [1, 0, 0]
    assert encode_labels(torch.tensor([127, -128], dtype=torch.int8), [127]).tolist() == [1, 0]
    assert encode_labels(torch.tensor([MAX_LABEL, 0]), [0, MAX_LABEL]).tolist() == [2, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32])
def test_labels_of_three_bytes(dtype):
    values = torch.tensor([70_000, 16_777_215, 70_001, 4464, 0, 70_000], dtype=dtype)  # 4464 = 70,000 in two bytes
    assert encode_labels(values, [70_000, 16_777_215]).tolist() == [1, 2, 0, 0, 0, 1]
    assert encode_labels(values, [16_777_215, *range(300), 70_000]).tolist() == [302, 1, 0, 0, 2, 302]


def test_more_structures_than_a_byte_can_number():
    values = torch.arange(400)
    assert encode_labels(values, range(400)).tolist() == list(range(1, 401))


def test_boolean_and_metatensor_maps():
    assert encode_labels(torch.tensor([True, False]), [1]).tolist() == [1, 0]
    codes = encode_labels(MetaTensor(torch.tensor([4.0, 0.0])), [4])
    assert type(codes) is torch.Tensor
    assert codes.tolist() == [1, 0]


@pytest.mark.parametrize("bad", [2.5, float("nan"), float("inf"), -1e12])
def test_interpolated_labels_are_refused_with_their_number(bad):
    with pytest.raises(ValueError, match=r"expected whole numbers in the label map, got 2 voxels.*nearest-neighbor"):
        as_integers(torch.tensor([1.0, bad, bad, 3.0]))


def test_complex_values_are_refused():
    with pytest.raises(ValueError, match=r"expected integer label values, got torch\.complex64"):
        as_integers(torch.zeros(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([], "at least one label id"),
        ([1, 2, 1], r"distinct label ids, got \[1\]"),
        ([1.5], "whole numbers as label ids"),
        ([-1], "in 0 … 16777215"),
        ([2**24], "in 0 … 16777215"),
    ],
)
def test_unusable_label_lists_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels)


def test_boxes_are_tight_and_empty_for_absent_structures():
    codes = torch.zeros(4, 5, 6, dtype=torch.uint8)
    codes[1, 2, 3] = codes[2, 4, 0] = 1
    first, second = label_boxes(codes, 2)
    assert first == (slice(1, 3), slice(2, 5), slice(0, 4))
    assert second == EMPTY


def test_arithmetic_of_boxes():
    a, b = (slice(1, 3), slice(0, 2), slice(2, 4)), (slice(2, 5), slice(1, 2), slice(0, 3))
    assert union(a, b) == (slice(1, 5), slice(0, 2), slice(0, 4))
    assert intersection(a, b) == (slice(2, 3), slice(1, 2), slice(2, 3))
    assert relative(intersection(a, b), a) == (slice(1, 2), slice(1, 2), slice(0, 1))
    assert grow(a, 2, (4, 4, 5)) == (slice(0, 4), slice(0, 4), slice(0, 5))
    assert box_shape(whole((4, 5, 6))) == (4, 5, 6)


def test_an_empty_box_stays_empty():
    a = (slice(1, 3), slice(0, 2), slice(2, 4))
    apart = (slice(3, 5), slice(0, 2), slice(2, 4))
    assert intersection(a, apart) == EMPTY
    assert union(a, EMPTY) == union(EMPTY, a) == a
    assert grow(EMPTY, 3, (9, 9, 9)) == relative(EMPTY, a) == EMPTY
