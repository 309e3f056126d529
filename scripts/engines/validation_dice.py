"""Validation's key metric: MONAI's mean Dice over the structures that count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monai.handlers import MeanDice
from monai.utils.enums import CommonKeys as Keys
from torch import Tensor

from scripts.core.seg35 import SCORED
from scripts.posterior.label_maps import encode_labels


def mean_dice(labels: Sequence[int] | None = None, pred: str = Keys.PRED) -> MeanDice:
    """Mean Dice of label maps under `pred` and `label` in an evaluator's output, both [B, 1, X, Y, Z].

    Args:
        labels: values of the structures that count; None for the 31 of seg35 that the scans have. A structure that is
            missing in the fixed image is left out of a pair's mean.
        pred: key of the label map to be scored; `moving_label` tells how the pair was before registration.
    """
    chosen = list(SCORED if labels is None else labels)

    def transform(output: dict[str, Any]) -> tuple[Tensor, Tensor]:
        scored, truth = (encode_labels(output[key], chosen).long() for key in (pred, Keys.LABEL))
        return scored, truth

    return MeanDice(include_background=False, num_classes=len(chosen) + 1, output_transform=transform)
