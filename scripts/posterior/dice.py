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
    """Dice in 0 … 1 of the S structures `labels` in two label maps [X, Y, Z], float64, [S].

    A structure that is absent from both maps gets NaN; one that is absent from only one of them gets 0.

    Raises:
        ValueError: when the shapes differ, or see :func:`~scripts.posterior.label_maps.encode_labels`.
    """
    if truth.ndim != 3 or prediction.shape != truth.shape:
        raise ValueError(
            f"expected two label maps of one shape [X, Y, Z], got {tuple(prediction.shape)} and {tuple(truth.shape)}"
        )
    count = len(labels)
    predicted, true = encode_labels(prediction, labels), encode_labels(truth, labels)
    both = overlap_counts(predicted, true, count)
    return dice_from_counts(both, label_counts(predicted, count), label_counts(true, count))


def oracle_index(dice: Tensor) -> Tensor:
    """The sample that an oracle would choose, the one with the highest mean Dice (decision 18); the first among equals.

    `dice` [K, S] is that of K samples; NaN for absent structures is left out of the mean.

    Raises:
        ValueError: when there is no sample, or a sample in which no structure has a Dice.
    """
    if dice.ndim != 2 or 0 in dice.shape:
        raise ValueError(f"expected Dice of shape [K, S] with K, S > 0, got {tuple(dice.shape)}")
    mean = dice.nanmean(dim=1)  # [K]
    if bool(mean.isnan().any()):
        raise ValueError("expected at least one structure with a Dice in every sample, got only NaN in some")
    return mean.argmax()
