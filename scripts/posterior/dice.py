"""Overlap of label maps: Dice of every structure, and the best sample of a posterior (decision 18)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from scripts.posterior.label_maps import encode_labels


def label_counts(codes: Tensor, count: int) -> Tensor:
    """Voxels of each of S structures, int64, [S]; `codes` as of :func:`~scripts.posterior.label_maps.encode_labels`."""
    return torch.bincount(codes.flatten(), minlength=count + 1)[1:]


def overlap_counts(prediction: Tensor, truth: Tensor, count: int) -> Tensor:
    """Count the voxels of every structure on which two code maps agree; arguments as in :func:`label_counts`."""
    # Where the maps disagree the product is code 0, which is not counted.
    return label_counts(prediction * (prediction == truth), count)


def dice_from_counts(both: Tensor, predicted: Tensor, true: Tensor) -> Tensor:
    """Dice = 2 |A ∩ B| / (|A| + |B|) from voxel counts, float64, shapes [..., S] that broadcast.

    0 / 0 is NaN, as it should be: the absence of a structure from both maps says nothing about their alignment.
    """
    return 2.0 * both.double() / (predicted + true).double()


def dice_per_structure(prediction: Tensor, truth: Tensor, labels: Sequence[int]) -> Tensor:
    """Dice of every structure for one predicted label map or for many samples of it.

    Args:
        prediction: label values, shape [X, Y, Z] or [..., X, Y, Z].
        truth: label values of the fixed image, shape [X, Y, Z].
        labels: the S label ids to score; other values are background.

    Returns:
        Dice in 0 … 1, float64, shape [..., S]. A structure that is absent from both maps gets NaN; one that is
        absent from only one of them gets 0.

    Raises:
        ValueError: when the shapes differ, there is no sample, or see
            :func:`~scripts.posterior.label_maps.encode_labels`.
    """
    if truth.ndim != 3 or prediction.shape[-3:] != truth.shape or prediction.numel() == 0:
        raise ValueError(
            "expected a prediction of shape [..., X, Y, Z] and a truth of shape [X, Y, Z], "
            f"got {tuple(prediction.shape)} and {tuple(truth.shape)}"
        )
    count = len(labels)
    true_codes = encode_labels(truth, labels)
    both, predicted = [], []
    # Two histograms a sample replace S comparisons or a one-hot volume of S channels. One sample at a time: the
    # codes of all of them at once would cost more memory than the loop costs time.
    for sample in prediction.reshape(-1, *truth.shape):
        codes = encode_labels(sample, labels)
        both.append(overlap_counts(codes, true_codes, count))
        predicted.append(label_counts(codes, count))
    dice = dice_from_counts(torch.stack(both), torch.stack(predicted), label_counts(true_codes, count))
    return dice.view(*prediction.shape[:-3], count)


def oracle_index(dice: Tensor) -> Tensor:
    """Find the sample that an oracle would choose: the one with the highest mean Dice (decision 18).

    Args:
        dice: Dice of K samples, shape [..., K, S]; NaN for absent structures is left out of the mean.

    Returns:
        Index of the best sample, int64, shape [...]; the first one among equals.

    Raises:
        ValueError: when there is no sample, or a sample in which no structure has a Dice.
    """
    if dice.ndim < 2 or 0 in dice.shape:
        raise ValueError(f"expected Dice of shape [..., K, S] with K, S > 0, got {tuple(dice.shape)}")
    mean = dice.nanmean(dim=-1)  # [..., K]
    if bool(mean.isnan().any()):
        raise ValueError("expected at least one structure with a Dice in every sample, got only NaN in some")
    return mean.argmax(dim=-1)
