"""What other temperatures would have made of the same proposals: weighed once, scored at all temperatures together.

Drawing and weighing proposals takes nearly all of the time, and neither depends on T or σ_α. So the log-weights of a
pair are computed once; whatever any of the settings would resample is redrawn once, and its label map is kept only
where it counts, in the ribbons. With the evaluation's seed, a setting gets exactly the evaluation's samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scripts.evaluation.calibration import binary_entropy, reliability_curve, sparsification_curves, voxel_error
from scripts.evaluation.ribbon import label_ribbons
from scripts.inference.model import Weighting
from scripts.inference.proposals import Draws, Weighted
from scripts.posterior.label_maps import check_labels, encode_labels

SCORES = ("ause_label", "ece", "label_entropy")
_VOXELS = 2**14
"""Voxels of a ribbon that are counted at a time: 400 samples of them take 25 MB."""


class Choice(NamedTuple):
    """What T weightings resample from the N proposals of one pair."""

    indices: list[int]  # U proposals that at least one weighting takes, ascending
    counts: Tensor  # how often each weighting takes each, [T, U], float32
    ess: Tensor  # effective sample size, [T], float64


def choose(weighted: Weighted, weightings: Sequence[Weighting], num_samples: int) -> Choice:
    """Resample proposals under several weightings with the same random numbers."""
    drawn = [Draws.of(weighted, num_samples, *weighting) for weighting in weightings]
    table = torch.stack([torch.bincount(draws.resampled, minlength=len(draws.weights)) for draws in drawn])  # [T, N]
    taken = table.any(0).nonzero()[:, 0]
    sizes = torch.tensor([draws.ess for draws in drawn], dtype=torch.float64)
    return Choice(taken.tolist(), table[:, taken].float(), sizes)


class RibbonSamples:
    """Label maps of samples, kept as one byte a voxel in the ribbons of the structures; the truth is [X, Y, Z]."""

    def __init__(self, truth: Tensor, labels: Sequence[int], radius: int = 3) -> None:
        self.labels = check_labels(labels)
        codes = encode_labels(truth, self.labels)
        ribbons = label_ribbons(truth, self.labels, radius)
        self._where = torch.zeros(truth.shape, dtype=torch.bool, device=truth.device)
        for ribbon in ribbons:
            self._where[ribbon.box] |= ribbon.mask
        place = torch.zeros(truth.shape, dtype=torch.int64, device=truth.device)
        place[self._where] = torch.arange(int(self._where.sum()), device=truth.device)
        self._places = [ribbon.select(place) for ribbon in ribbons]  # S times [N_s], into the M voxels of all ribbons
        self._inside = [ribbon.select(codes) == code for code, ribbon in enumerate(ribbons, start=1)]
        self._codes: list[Tensor] = []

    def add(self, label_map: Tensor) -> None:
        """Keep one sample's label map, shape [X, Y, Z]."""
        self._codes.append(encode_labels(label_map, self.labels)[self._where])

    def score(self, counts: Tensor) -> Tensor:
        """Score weighted sets of the samples.

        Args:
            counts: weight of each of the U samples in each of T sets, shape [T, U], float32.

        Returns:
            ``SCORES`` of every set and structure, float64, shape [T, len(SCORES), S]; NaN where a structure is absent.
        """
        codes = torch.stack(self._codes)  # [U, M]
        columns = []
        for code, (places, inside) in enumerate(zip(self._places, self._inside, strict=True), start=1):
            # Whole numbers up to K in float32 are exact, so that k of K samples have exactly the probability k / K.
            votes = [counts @ (codes[:, part] == code).float() for part in places.split(_VOXELS)]  # [T, n] each
            total = counts.double().sum(1, keepdim=True)
            probabilities = torch.cat(votes, dim=1).double() / total if votes else total.new_empty(len(counts), 0)
            columns.append(torch.stack([self._scores(probability, inside) for probability in probabilities]))
        return torch.stack(columns, dim=-1)

    @staticmethod
    def _scores(probability: Tensor, inside: Tensor) -> Tensor:
        """``SCORES`` of one structure, from p̂ and the truth in its ribbon, [N] each."""
        entropy = binary_entropy(probability)
        ause = sparsification_curves(entropy, voxel_error(probability, inside)).area
        return torch.stack([ause, reliability_curve(probability, inside).error, entropy.mean()])
