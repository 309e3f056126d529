"""What many warped label maps say together: probabilities, most probable labels, entropy, volumes.

The maps come one at a time and are not kept. One image of summed weights is held for each structure, cropped to the box
in which that structure has occurred so far. Brain structures are compact, so that all boxes together are about twice
the volume: 15 MB for 35 structures at 80×96×112, whatever the number of samples, where a sum for every class at every
voxel would take 250 MB and 80 samples in one-hot form 2.5 GB. The class "none of them" is what is missing to the total.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from scripts.posterior.boxes import EMPTY, Box, box_shape, grow, intersection, label_boxes, relative, union, whole
from scripts.posterior.dice import dice_from_counts, label_counts, oracle_index, overlap_counts
from scripts.posterior.label_maps import check_labels, encode_labels

MARGIN = 4
"""Voxels around a structure's first box: enough that later samples seldom make it grow."""


class VolumeInterval(NamedTuple):
    """Volumes of the structures in mm³ under the posterior, each of shape [S]."""

    mean: Tensor
    lower: Tensor
    upper: Tensor


class LabelSummary(NamedTuple):
    """The posterior of the label map, voxel by voxel, each of shape [X, Y, Z]."""

    label: Tensor
    """Most probable label id, int32, 0 where "none of the structures" is most probable."""
    probability: Tensor
    """Its probability, float64."""
    entropy: Tensor
    """Entropy of the label over the S structures and "none of them", in nats, float64."""


class LabelSamples:
    """Accumulate warped label maps, weighted, and summarize them.

    Weights need no normalization. Sums are in float64, so that k of K equal weights have exactly the probability k / K.
    A sample may have a weight for each voxel, see :mod:`~scripts.posterior.local_weights`; then all have.

    Args:
        labels: the S label ids; any other value counts as "none of them".
        voxel_volume: volume of a voxel in mm³, |det| of the 3×3 part of the image's affine.
        truth: optional true label map, shape [X, Y, Z], to score each sample as it comes (:attr:`dice`).

    Example:
        >>> samples = LabelSamples(labels=[1])
        >>> for votes in ([0, 1], [1, 1]):
        ...     samples.add(torch.tensor(votes).view(1, 1, 2))
        >>> samples.probability(1).flatten().tolist()
        [0.5, 1.0]
    """

    def __init__(self, labels: Sequence[int], voxel_volume: float = 1.0, truth: Tensor | None = None) -> None:
        self.labels = check_labels(labels)
        if not voxel_volume > 0:
            raise ValueError(f"expected a positive voxel volume in mm³, got {voxel_volume}")
        self.voxel_volume = voxel_volume
        if truth is not None and truth.ndim != 3:
            raise ValueError(f"expected a true label map of shape [X, Y, Z], got {tuple(truth.shape)}")
        self._truth = None if truth is None else encode_labels(truth, self.labels)
        self._shape: torch.Size | None = None if truth is None else truth.shape
        self._boxes: list[Box] = [EMPTY] * len(self.labels)
        self._sums: list[Tensor] = []  # S summed weights, float64, each of its box's shape
        self._total_weight = 0.0
        self._local: Tensor | None = None  # summed weights of each voxel, float64, [X, Y, Z]
        self._weights: list[float] = []
        self._counts: list[Tensor] = []
        self._overlaps: list[Tensor] = []

    @classmethod
    def from_maps(cls, maps: Iterable[Tensor], labels: Sequence[int], truth: Tensor | None = None) -> LabelSamples:
        """Accumulate label maps of shape [X, Y, Z] with equal weights, as of an ensemble."""
        samples = cls(labels, truth=truth)
        for label_map in maps:
            samples.add(label_map)
        return samples

    def __len__(self) -> int:
        return len(self._weights)

    @property
    def total_weight(self) -> float:
        """Sum of the weights as they were given: of resampled fields, their number."""
        return self._total_weight

    @property
    def shape(self) -> torch.Size:
        """Shape [X, Y, Z] of the label maps."""
        return self._total()[1]

    def add(self, label_map: Tensor, weight: float = 1.0, local: Tensor | None = None) -> None:
        """Take one sample into account.

        Args:
            label_map: label values, shape [X, Y, Z].
            weight: its weight, not negative; equal weights are best given as 1, repeated samples as their number.
            local: a factor of the weight for each voxel, positive, shape [X, Y, Z]; None for 1.

        Raises:
            ValueError: when the shape differs from the earlier ones, the weight is negative or not finite, some samples
                have local weights and others have not, or see :func:`~scripts.posterior.label_maps.encode_labels`.
        """
        if label_map.ndim != 3 or (self._shape is not None and label_map.shape != self._shape):
            expected = "[X, Y, Z]" if self._shape is None else tuple(self._shape)
            raise ValueError(f"expected a label map of shape {expected}, got {tuple(label_map.shape)}")
        weight = float(weight)
        if not 0 <= weight < float("inf"):
            raise ValueError(f"expected a finite weight of 0 or more, got {weight}")
        if self._weights and (local is None) != (self._local is None):
            raise ValueError("expected local weights for all samples or for none")
        codes = encode_labels(label_map, self.labels)
        counts = label_counts(codes, len(self.labels))
        self._shape = label_map.shape
        if not self._sums:
            self._sums = [torch.zeros(0, 0, 0, dtype=torch.float64, device=codes.device)] * len(self.labels)
        hits = self._hits(codes, counts)  # may enlarge the boxes, and the sums with them
        for total, hit, box in zip(self._sums, hits, self._boxes, strict=True):
            total.add_(hit if local is None else hit * local[box], alpha=weight)
        if local is not None:
            self._local = torch.zeros(local.shape, dtype=torch.float64) if self._local is None else self._local
            self._local.add_(local, alpha=weight)
        self._weights.append(weight)
        # One by one in the order of the samples, as the voxels' sums: where all agree the two are equal to the bit, and
        # rounding, which is monotonic, never lifts a voxel's sum above the total.
        self._total_weight += weight
        self._counts.append(counts)
        if self._truth is not None:
            self._overlaps.append(overlap_counts(codes, self._truth.to(codes.device), len(self.labels)))

    def _hits(self, codes: Tensor, counts: Tensor) -> list[Tensor]:
        """Where each structure is within its box (S bool tensors), after enlarging the boxes that are too small."""
        hits = [codes[box] == code for code, box in enumerate(self._boxes, start=1)]
        # A box is large enough if all of the structure's voxels are found in it: counting is cheaper than looking for
        # the structures' bounding boxes in every sample.
        fits = (torch.stack([hit.count_nonzero() for hit in hits]) == counts).tolist()
        if all(fits):
            return hits
        for i, tight in enumerate(label_boxes(codes, len(self.labels))):
            if fits[i]:
                continue
            old = self._boxes[i]
            box = grow(union(tight, old), MARGIN, codes.shape)
            total = torch.zeros(box_shape(box), dtype=torch.float64, device=codes.device)
            total[relative(old, box)] = self._sums[i]
            self._boxes[i], self._sums[i], hits[i] = box, total, codes[box] == i + 1
        return hits

    def smooth(self, width: float) -> None:
        """Blur the probabilities, once all samples are there, by a Gaussian of this width in voxels."""
        _, shape = self._total()
        if not width:
            return
        reach = math.ceil(3 * width)
        for i, old in enumerate(self._boxes):
            box = grow(old, reach, shape)
            shares = torch.zeros(box_shape(box), dtype=torch.float64)
            shares[relative(old, box)] = (self._sums[i] / self._totals(old)).cpu()
            blurred = torch.from_numpy(gaussian_filter(shares.numpy(), width, mode="nearest", truncate=3.0))
            self._boxes[i], self._sums[i] = box, blurred.clamp_(0, 1).to(self._sums[i].device)
        self._local = torch.ones(shape, dtype=torch.float64, device=self._sums[0].device)

    def probability(self, label: int, box: Box | None = None) -> Tensor:
        """Posterior probability of one structure.

        Args:
            box: optional part of the volume, for example a ribbon's box.

        Returns:
            Probability in 0 … 1, float64, of the box's shape, by default [X, Y, Z].

        Raises:
            ValueError: when the label is not one of ``labels``, or nothing has weight yet.
        """
        if label not in self.labels:
            raise ValueError(f"expected one of the labels {list(self.labels)}, got {label}")
        _, shape = self._total()
        box = box or whole(shape)
        i = self.labels.index(label)
        result = torch.zeros(box_shape(box), dtype=torch.float64, device=self._counts[0].device)
        common = intersection(self._boxes[i], box)
        shares = self._sums[i][relative(common, self._boxes[i])] / self._totals(common)
        result[relative(common, box)] = shares
        return result

    def summary(self) -> LabelSummary:
        """Most probable label, its probability and the entropy of the label at every voxel.

        Among equally probable labels "none of them" wins, then the first in ``labels``.

        Raises:
            ValueError: when nothing has weight yet.
        """
        total, shape = self._total()
        device = self._counts[0].device
        totals = torch.full(shape, total, dtype=torch.float64, device=device) if self._local is None else self._local
        none = totals.clone()  # weight of "none of them"
        best = torch.zeros_like(none)
        entropy = torch.zeros_like(none)
        label = torch.zeros(shape, dtype=torch.int32, device=device)
        for id_, box, weight in zip(self.labels, self._boxes, self._sums, strict=True):
            none[box] -= weight
            entropy[box] += torch.special.entr(weight / totals[box])
            better = weight > best[box]
            best[box] = torch.where(better, weight, best[box])
            label[box] = torch.where(better, id_, label[box])
        none[none < 1e-12 * totals] = 0  # unequal weights leave rounding errors where the structures take all
        entropy += torch.special.entr(none / totals)
        label.masked_fill_(none >= best, 0)
        return LabelSummary(label, torch.maximum(none, best) / totals, entropy)

    @property
    def weights(self) -> Tensor:
        """Normalized weights of the samples, float64, shape [K]."""
        total, _ = self._total()
        return torch.tensor(self._weights, dtype=torch.float64, device=self._counts[0].device) / total

    @property
    def volumes(self) -> Tensor:
        """Volume of every structure in every sample in mm³, float64, shape [K, S]."""
        self._total()
        return torch.stack(self._counts).double() * self.voxel_volume

    @property
    def mean_volumes(self) -> Tensor:
        """Expected volume of every structure in mm³, the sum of its probabilities, float64, shape [S]."""
        self._total()
        sums = zip(self._sums, self._boxes, strict=True)
        return self.voxel_volume * torch.stack([(weight / self._totals(box)).sum() for weight, box in sums])

    @property
    def log_volume_std(self) -> Tensor:
        """Standard deviation over the samples of the logarithm of every structure's volume, float64, shape [S]."""
        if len(self) < 2:
            return torch.zeros(len(self.labels), dtype=torch.float64)
        weights = self.weights[:, None]
        logs = (self.volumes / self.voxel_volume).clamp_min(1).log()
        square = (weights * (logs - (weights * logs).sum(0)).square()).sum(0)
        return (square * len(self) / (len(self) - 1)).sqrt()

    def volume_interval(self, level: float = 0.95) -> VolumeInterval:
        """Posterior mean and central credible interval of every structure's volume, at a level in 0 … 1.

        With local weights no sample has a weight of its own: their volumes say how wide the interval is, the
        probabilities where it lies.
        """
        if not 0 < level < 1:
            raise ValueError(f"expected a credible level between 0 and 1, got {level}")
        volumes, weights = self.volumes, self.weights
        tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=volumes.device)
        mean = (weights[:, None] * volumes).sum(0)
        shift = torch.ones_like(mean) if self._local is None else self.mean_volumes / mean.clamp_min(1e-12)
        lower, upper = weighted_quantile(volumes * shift, weights, tails)
        return VolumeInterval(mean * shift, lower, upper)

    @property
    def dice(self) -> Tensor:
        """Dice of every sample and structure, float64, shape [K, S]; needs ``truth``."""
        self._total()
        if self._truth is None:
            raise ValueError("expected LabelSamples made with a truth to score the samples, got none")
        predicted = torch.stack(self._counts)
        true = label_counts(self._truth, len(self.labels)).to(predicted.device)
        return dice_from_counts(torch.stack(self._overlaps), predicted, true)

    @property
    def oracle(self) -> int:
        """Index of the sample with the highest mean Dice (decision 18); needs ``truth``."""
        return int(oracle_index(self.dice))

    def _totals(self, box: Box) -> Tensor | float:
        """Total weight of the voxels of a box."""
        return self._total_weight if self._local is None else self._local[box]

    def _total(self) -> tuple[float, torch.Size]:
        """Total weight and the volume's shape; ValueError before the first sample with a weight."""
        if self._shape is None or not self._total_weight > 0:
            raise ValueError(
                f"expected samples with a positive total weight, got {len(self)} with a total of {self._total_weight}"
            )
        return self._total_weight, self._shape


def weighted_quantile(values: Tensor, weights: Tensor, levels: Tensor) -> Tensor:
    """Quantiles of weighted samples: the smallest value whose cumulative weight reaches the level.

    The inverse of the weighted empirical distribution (NumPy's ``inverted_cdf``): always one of the values, no
    interpolation between samples that may belong to different modes.

    Args:
        values: K samples of S quantities, shape [K, S].
        weights: not negative, not all zero, shape [K].
        levels: Q levels in 0 … 1, shape [Q].

    Returns:
        Quantiles, shape [Q, S].
    """
    ordered, order = values.sort(dim=0)
    reached = (weights / weights.sum())[order].cumsum(0)  # [K, S]
    # A tolerance, so that 2 of 80 samples reach the level 0.025 in spite of rounding.
    place = torch.searchsorted(reached.T.contiguous(), (levels - 1e-12).expand(values.shape[1], -1).contiguous())
    return ordered.gather(0, place.T.clamp_(max=len(values) - 1))
