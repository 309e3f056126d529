"""The scores of one pair as plain numbers, and what each is called in files and tables."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.evaluation.landmark_scores import LANDMARK_SCORES

DICE_SCORES = (
    "dice_mu",  # of the proposal's mean
    "dice_mean",  # of the mean of the resampled fields
    "dice_oracle",  # of the sample with the highest mean Dice (decision 18)
    "dice_labels",  # of the most probable labels
    "dice_sample",  # mean over single samples
)
RIBBON_SCORES = (
    "ece",  # expected calibration error (decision 15)
    "ause_label",  # sparsification error by label entropy (decision 16)
    "ause_displacement",  # the same by displacement variance
    "label_entropy",  # mean, nats
    "displacement_variance",  # mean over the ribbon and the three components, mm² (decision 17)
    "brier",  # mean of (p − y)²
    "log_score",  # mean of −log of the probability that was given to what is there, nats
)
LEVELS = (50, 80, 95)
"""Of intervals, in percent."""
VOLUME_SCORES = (
    "volume",  # expected, mm³
    "volume_true",  # of the fixed person's own label map
    "volume_z_square",  # ((true − expected) / standard deviation)², 1 on average if the deviation is right
    *(f"inside_{level}" for level in LEVELS),  # 1 where the interval holds the true volume, else 0
    *(f"width_{level}" for level in LEVELS),  # of the interval, relative to the true volume
)
STRUCTURE_SCORES = (*DICE_SCORES, *RIBBON_SCORES, *VOLUME_SCORES)
PAIR_SCORES = (
    "dice_before",  # of the moving labels as they are, mean over structures
    *DICE_SCORES,  # means over structures
    "fold_mu",  # percent of the image's voxels (decision 20)
    "fold_mean",
    "fold_oracle",
    "fold_samples",  # mean over some of the samples
    "brier_classes",  # of all structures and "none of them" together, in the union of the ribbons: mean of Σ (p − y)²
    "log_score_classes",  # mean of −log of the probability of the true label, nats
    *LANDMARK_SCORES,  # where the two scans have experts' points
    "displacement_variance",  # mm², mean over the brain and over the three components (decision 17)
    "displacement_variance_total",  # the same, sum over the components: three times as much
    "ncc_before",  # squared local correlation, mean over the brain
    "ncc_after",  # the same after warping by the mean field
    "ess",  # effective sample size of the proposals' weights
    "khat",  # Pareto k̂ of the weights
    "max_weight",  # the largest normalized weight
    "unique",  # different fields among the resampled ones
    "samples",  # resampled fields
    "seconds_network",  # and of refinement and detail, if any
    "seconds_proposals",  # drawing and weighting
    "seconds_evaluation",  # redrawing, warping and scoring
)
CURVES = (
    "reliability_voxels",  # voxels in each bin of probability, all structures' ribbons together
    "reliability_claimed",  # sum of their probabilities
    "reliability_true",  # how many belong to the structure
    "sparsification_label",  # mean error of the voxels that remain, at FRACTIONS, mean over structures
    "sparsification_displacement",
    "sparsification_oracle",
)
FRACTIONS = tuple((k + 0.5) / 50 for k in range(50))
"""Fractions of voxels that remain at which sparsification curves are kept; 50 midpoints, so a plain mean is an area."""


@dataclass(frozen=True)
class PairResult:
    """The scores of one pair, as plain numbers.

    Attributes:
        labels: the S label ids.
        structures: each of ``STRUCTURE_SCORES`` for the S structures; NaN where a structure is absent.
        pair: each of ``PAIR_SCORES``.
        curves: each of ``CURVES``, for the figures.
    """

    fixed: str
    moving: str
    labels: tuple[int, ...]
    structures: dict[str, list[float]]
    pair: dict[str, float]
    curves: dict[str, list[float]]
