"""Metrics for MONAI and Ignite: one score a structure and pair, collected over pairs and processes.

Attach them as any other MONAI metric; details of every pair are then in ``engine.state.metric_details``:

    IgniteMetricHandler(metric_fn=ECE(labels), output_transform=lambda output: (samples, truth)).attach(engine, "ece")

The prediction is one of three, whatever sampler or ensemble it comes from:

- label maps of K equally weighted samples, [B, K, X, Y, Z], or a list of [K, X, Y, Z];
- probabilities of the S structures with ``probabilities=True``, [B, S, X, Y, Z], or a list of [S, X, Y, Z];
- a list of :class:`~scripts.posterior.label_samples.LabelSamples`, one a pair: weighted samples, or so many that they
  should not be kept.

The truth is a label map, [B, 1, X, Y, Z] or a list of [1, X, Y, Z].
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from monai.metrics import CumulativeIterationMetric
from torch import Tensor

from scripts.evaluation.calibration import binary_entropy, reliability_curve, sparsification_curves, voxel_error
from scripts.evaluation.ribbon import label_ribbons
from scripts.posterior.label_maps import check_labels, encode_labels
from scripts.posterior.label_samples import LabelSamples

REDUCTIONS = ("mean", "mean_batch", "none")


class RibbonMetric(CumulativeIterationMetric):
    """Base of the metrics of a structure's probability in the ribbon around its true boundary; NaN if it has none.

    Args:
        labels: ids of the S structures.
        reduction: "none" keeps the [P, S] scores of P pairs; "mean_batch" averages over pairs, [S]; "mean" averages
            that over S, as the paper's tables do. NaN is left out; what has no value at all stays NaN (where MONAI's
            own reduction would report 0, an excellent ECE).
        radius: of the ribbon in voxels (decision 15).
        probabilities: whether tensors are probabilities of the S structures rather than label maps of K samples.

    Raises:
        ValueError: for another reduction.
    """

    def __init__(
        self, labels: Sequence[int], reduction: str = "mean", radius: int = 3, probabilities: bool = False
    ) -> None:
        super().__init__()
        self.labels = check_labels(labels)
        self.reduction = _check_reduction(reduction)
        self.radius, self.probabilities = radius, probabilities

    @abstractmethod
    def score_ribbon(self, probability: Tensor, truth: Tensor) -> Tensor:
        """Score one structure from p̂ (float) and the truth (bool) of its ribbon's N ≥ 0 voxels, [N]; shape []."""

    def aggregate(self, reduction: str | None = None) -> Tensor:
        """Reduce the scores of all pairs since the last ``reset``. Raises ValueError when no pair has been scored."""
        scores = self.get_buffer()  # [P, S]
        if scores is None:
            raise ValueError(f"expected at least one pair before {type(self).__name__}.aggregate(), got none")
        reduction = _check_reduction(reduction or self.reduction)
        if reduction == "none":
            return scores
        over_pairs = scores.nanmean(dim=0)  # [S]
        return over_pairs if reduction == "mean_batch" else over_pairs.nanmean()

    @torch.no_grad()
    def _compute_list(self, y_pred: Any, y: Any = None, **kwargs: Any) -> Tensor:
        """Score a list of pairs, shapes without the batch axis; the base class would only take tensors."""
        if y is None or len(y_pred) != len(y):
            raise ValueError(
                f"expected a true label map for each of {len(y_pred)} predictions, got {0 if y is None else len(y)}"
            )
        rows = []
        for prediction, truth in zip(y_pred, y, strict=True):
            if truth.ndim != 4 or truth.shape[0] != 1:
                raise ValueError(f"expected a true label map of shape [1, X, Y, Z], got {tuple(truth.shape)}")
            if isinstance(prediction, LabelSamples) and prediction.labels != self.labels:
                raise ValueError(f"expected samples of labels {self.labels}, got {prediction.labels}")
            misshapen = isinstance(prediction, Tensor) and prediction.ndim != 4
            if misshapen or prediction.shape[-3:] != truth.shape[1:]:
                raise ValueError(
                    f"expected a prediction of shape [C, X, Y, Z] with [X, Y, Z] = {tuple(truth.shape[1:])}, "
                    f"got {tuple(prediction.shape)}"
                )
            # A MetaTensor would carry its affine through every operation.
            plain = prediction.as_subclass(Tensor) if isinstance(prediction, Tensor) else prediction
            rows.append(self._score(plain, truth[0]))
        return torch.stack(rows)

    def _compute_tensor(self, y_pred: Tensor, y: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Score a batch, [B, C, X, Y, Z] and [B, 1, X, Y, Z]."""
        return self._compute_list(list(y_pred), None if y is None else list(y))

    def _score(self, prediction: Tensor | LabelSamples, truth: Tensor) -> Tensor:
        """Score one pair, float64, [S]: maps or probabilities [C, X, Y, Z], or samples; the truth is [X, Y, Z]."""
        if isinstance(prediction, Tensor) and not self.probabilities:
            prediction = LabelSamples.from_maps(prediction, self.labels)
        if isinstance(prediction, Tensor) and len(prediction) != len(self.labels):
            raise ValueError(f"expected probabilities of {len(self.labels)} structures, got {len(prediction)}")
        codes = encode_labels(truth, self.labels)
        scores = []
        for i, ribbon in enumerate(label_ribbons(truth, self.labels, self.radius)):
            if isinstance(prediction, LabelSamples):
                probability = prediction.probability(self.labels[i], ribbon.box)[ribbon.mask]  # [N]
            else:
                probability = ribbon.select(prediction[i])
            scores.append(self.score_ribbon(probability, ribbon.select(codes) == i + 1))
        return torch.stack(scores)


class ECE(RibbonMetric):
    """Expected calibration error of every structure (decision 15), lower is better."""

    def __init__(self, labels: Sequence[int], bins: int = 10, **kwargs: Any) -> None:
        super().__init__(labels, **kwargs)
        self.bins = bins

    def score_ribbon(self, probability: Tensor, truth: Tensor) -> Tensor:
        """Expected calibration error of one structure."""
        return reliability_curve(probability, truth, self.bins).error


class AUSE(RibbonMetric):
    """Area under the sparsification error of every structure, by label entropy (decision 16), lower is better."""

    def score_ribbon(self, probability: Tensor, truth: Tensor) -> Tensor:
        """Area under the sparsification error of one structure."""
        return sparsification_curves(binary_entropy(probability), voxel_error(probability, truth)).area


def _check_reduction(reduction: str) -> str:
    if reduction not in REDUCTIONS:
        raise ValueError(f"expected a reduction of {', '.join(REDUCTIONS)}, got {reduction}")
    return reduction
