"""Is the uncertainty honest? Expected calibration error, sparsification error, label entropy, rank correlation.

All functions take the voxels of one structure's ribbon as flat tensors; ``ribbon`` selects them. Probabilities are best
given in float64: k samples of K then have exactly the probability k / K, which decides bins and ties.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.stats import rankdata
from torch import Tensor


class ReliabilityCurve(NamedTuple):
    """Claimed against observed frequency of a structure, in bins of claimed probability; each of shape [M]."""

    voxels: Tensor
    """Number of voxels in the bin, int64."""
    confidence: Tensor
    """Mean claimed probability, NaN in an empty bin."""
    accuracy: Tensor
    """Share of voxels that belong to the structure, NaN in an empty bin."""

    @property
    def error(self) -> Tensor:
        """ECE = Σ_m |B_m| / N · |conf(B_m) − acc(B_m)|, shape []; NaN without voxels (decision 15)."""
        gap = (self.confidence - self.accuracy).abs().nan_to_num()  # an empty bin has no gap and no weight
        return (self.voxels * gap).sum() / self.voxels.sum()


class SparsificationCurves(NamedTuple):
    """Mean error of the voxels that remain when the most doubtful are taken away, for i = 1 … N voxels; shape [N]."""

    observed: Tensor
    """Mean error when the most uncertain are removed first."""
    oracle: Tensor
    """Mean error when the most erroneous are removed first, the best that any uncertainty could do."""

    @property
    def area(self) -> Tensor:
        """AUSE = (1/N) Σ_i (c_obs(i) − c_ora(i)), shape []; NaN without voxels (decision 16)."""
        return (self.observed - self.oracle).mean()


def reliability_curve(probability: Tensor, truth: Tensor, bins: int = 10) -> ReliabilityCurve:
    """Compare claimed probabilities of a structure with how often it is really there (decision 15).

    Bin m holds (m − 1)/M < p̂ ≤ m/M. The first one also holds p̂ = 0, which the paper's intervals leave out although
    its N counts those voxels.

    `probability` is p̂ in 0 … 1, `truth` whether the voxel belongs to the structure, bool or 0/1; [N] both, or there is
    a ValueError.
    """
    _check_probability(probability, truth)
    if bins < 1:
        raise ValueError(f"expected at least one bin, got {bins}")
    # Edges by division in the probabilities' own dtype: k/K and m/M round alike where they are equal, so that a
    # probability on an edge always falls into the bin below it.
    edges = torch.arange(1, bins, device=probability.device, dtype=probability.dtype) / bins
    place = torch.bucketize(probability, edges)  # [N], right edge included
    voxels = torch.bincount(place, minlength=bins)
    claimed = torch.bincount(place, weights=probability.double(), minlength=bins)
    observed = torch.bincount(place, weights=truth.double(), minlength=bins)
    return ReliabilityCurve(voxels, claimed / voxels, observed / voxels)


def brier_score(probability: Tensor, truth: Tensor) -> Tensor:
    """Mean of (p − y)² over voxels, float64, []; NaN without any. Proper: it is least for honest probabilities."""
    return (probability.double() - truth.double()).square().mean()


def log_score(probability: Tensor, truth: Tensor, samples: float) -> Tensor:
    """Mean of −log of the probability that was given to what is there, nats, float64, shape [].

    K samples cannot say less than 1/K but 0, and one voxel of probability 0 would make the score infinite. So they are
    taken as (K p + ½) / (K + 1), the expectation of a frequency that was seen K p times in K under Jeffreys' prior.
    """
    honest = (samples * probability.double() + 0.5) / (samples + 1)
    return -torch.where(truth.bool(), honest, 1 - honest).log().mean()


def voxel_error(probability: Tensor, truth: Tensor) -> Tensor:
    """E(x) = |𝟙(p̂ > ½) − Y(x)|: 1.0 where the majority of samples is wrong; shapes [N], float64."""
    return ((probability > 0.5) != truth.bool()).double()


def sparsification_curves(uncertainty: Tensor, error: Tensor) -> SparsificationCurves:
    """Remove voxels one by one, the most uncertain first, and follow the mean error of the rest (decision 16).

    Voxels of equal uncertainty (there are many: 80 samples give at most 41 different label entropies) could leave in
    any order. The curve is the expectation over all their orders, so it does not depend on how voxels are numbered.

    `uncertainty` is any score that is higher where more error is expected. ValueError for other shapes than [N] and for
    values that are not finite.
    """
    if uncertainty.ndim != 1 or uncertainty.shape != error.shape:
        raise ValueError(
            f"expected uncertainty and error of one shape [N], got {tuple(uncertainty.shape)} and {tuple(error.shape)}"
        )
    for name, values in (("uncertainty", uncertainty), ("error", error)):
        broken = int((~values.isfinite()).sum())
        if broken:
            raise ValueError(f"expected finite {name}, got {broken} values of {len(values)} that are not")
    error = error.double()
    kept = torch.arange(1, len(error) + 1, device=error.device, dtype=error.dtype)  # i voxels remain
    # The i least uncertain remain. Of a group of tied voxels, j drawn at random have the expected error sum
    # j · (mean error of the group): the curve with every error replaced by the mean of its ties.
    ordered, order = uncertainty.sort()
    _, group, size = ordered.unique_consecutive(return_inverse=True, return_counts=True)
    tied_mean = torch.zeros(len(size), device=error.device, dtype=error.dtype).index_add_(0, group, error[order]) / size
    return SparsificationCurves(
        observed=tied_mean[group].cumsum(0) / kept,
        oracle=error.sort().values.cumsum(0) / kept,
    )


def binary_entropy(probability: Tensor) -> Tensor:
    """Label entropy of one structure, H(p̂) = −p̂ ln p̂ − (1 − p̂) ln(1 − p̂), in nats, float64, of any shape.

    H is symmetric, and k votes of K must tie exactly with K − k, or rounding would rank them in the sparsification
    curve. Hence the fold to min(p̂, 1 − p̂), rounded to what 1 − p̂ is good for: 12 decimals in float64, 6 in float32.
    Other dtypes, and what is not in 0 … 1, are a ValueError.
    """
    _check_probability(probability)
    decimals = 12 if probability.dtype == torch.float64 else 6
    p = probability.double()
    p = torch.minimum(p, 1 - p).round(decimals=decimals)
    return torch.special.entr(p) + torch.special.entr(1 - p)


def spearman_per_structure(entropy: Tensor, dice: Tensor) -> Tensor:
    """Does doubt announce error? Rank correlation of label entropy and Dice over pairs (decision 19).

    Negative is good: the pairs with more entropy have the lower Dice.

    Args:
        entropy: mean label entropy in the ribbon, shape [P, S] for P pairs and S structures.
        dice: of the same shape. A pair is left out for a structure that has NaN in either.

    Returns:
        Spearman's r of every structure, float64, shape [S]. NaN with fewer than 3 pairs, where r could only be ±1, or
        when one of the two is constant.
    """
    if entropy.ndim != 2 or entropy.shape != dice.shape:
        raise ValueError(
            f"expected entropy and Dice of one shape [P, S], got {tuple(entropy.shape)} and {tuple(dice.shape)}"
        )
    scores = []
    for x, y in zip(entropy.double().T, dice.double().T, strict=True):
        valid = ~(x.isnan() | y.isnan())
        x, y = (torch.from_numpy(rankdata(column[valid].cpu())) for column in (x, y))  # ties at their mean rank
        x, y = x - x.mean(), y - y.mean()
        # Pearson's correlation of the ranks; 0 / 0 = NaN for a constant.
        r = (x * y).sum() / (x.square().sum() * y.square().sum()).sqrt()
        scores.append(r if len(x) >= 3 else torch.full_like(r, torch.nan))
    return torch.stack(scores)


def _check_probability(probability: Tensor, truth: Tensor | None = None) -> None:
    """Raise ValueError for anything but float32 or float64 probabilities in 0 … 1, shaped as the truth, [N]."""
    if truth is not None and (probability.ndim != 1 or probability.shape != truth.shape):
        raise ValueError(
            f"expected probability and truth of one shape [N], got {tuple(probability.shape)} and {tuple(truth.shape)}"
        )
    if probability.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected float32 or float64 probabilities, got {probability.dtype}")
    outside = int((~((probability >= 0) & (probability <= 1))).sum())  # NaN is outside, too
    if outside:
        raise ValueError(f"expected probabilities in 0 … 1, got {outside} of {probability.numel()} outside")
