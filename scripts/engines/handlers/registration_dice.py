"""Dice of label maps that are warped by the fields of any registration network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scripts.core.seg35 import SCORED
from scripts.engines.handlers.pair_figures import PairFigures, field_samples, volume
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.label_maps import check_labels
from scripts.posterior.label_samples import LabelSamples
from scripts.registration.warp import warp_labels


class RegistrationDice(PairFigures):
    """Warps the moving label map by nearest voxel and compares it with the fixed one.

    In `engine.state.metrics`, each a mean over structures and then over pairs, where ∅ / ∅ is left out:

    - `dice`: by the field, or by the mean of a pair's samples;
    - `dice_unregistered`: without a field;
    - `dice_most_probable`, `dice_single`, if there are samples: of the labels that most of them vote for, and of single
      samples on average;
    - `dice_<label>` for each structure: as `dice`, a mean over pairs.

    Args:
        labels: values of the structures that count; None for the 31 of seg35 that the scans have.
        ddf: key of the field, [B, 3, X, Y, Z], or of its samples, [B, K, 3, X, Y, Z]: voxels, pull-back, component a
            along array axis a, as in `monai.networks.blocks.Warp`.
        fixed_label: key of the label map [B, 1, X, Y, Z] that is compared with.
        moving_label: key of the one that is warped.
        per_structure: whether structures are metrics and columns, too.
    """

    def __init__(
        self,
        labels: Sequence[int] | None = None,
        ddf: str = "ddf",
        fixed_label: str = "fixed_label",
        moving_label: str = "moving_label",
        name: str = "dice",
        per_structure: bool = True,
        csv_path: str | Path | None = None,
    ) -> None:
        super().__init__(name, {"ddf": ddf, "fixed_label": fixed_label, "moving_label": moving_label}, csv_path)
        self.labels = check_labels(SCORED if labels is None else labels)
        self.per_structure = per_structure

    @torch.no_grad()
    def figures(self, pair: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
        """Dice of one pair. Raises ValueError when something is missing, as all of the structures."""
        fields = field_samples(pair, self.keys)
        fixed, moving = (volume(pair, key, self.keys).to(fields.device) for key in ("fixed_label", "moving_label"))
        truth = fixed[0]
        by_mean = dice_per_structure(_warped(moving, fields.mean(0)), truth, self.labels)
        if bool(by_mean.isnan().all()):
            raise ValueError(
                f"none of the structures {list(self.labels)} is in the label maps of {' and '.join(names)}: "
                "give the handler their `labels`"
            )
        before = dice_per_structure(moving[0], truth, self.labels)
        figures = {self.name: _mean(by_mean), f"{self.name}_unregistered": _mean(before)}
        if pair["ddf"].ndim == 5:
            samples = LabelSamples(self.labels, truth=truth)
            for field in fields:
                samples.add(_warped(moving, field))
            vote = dice_per_structure(samples.summary().label, truth, self.labels)
            figures[f"{self.name}_most_probable"] = _mean(vote)
            figures[f"{self.name}_single"] = _mean(samples.dice.nanmean(dim=1))
        if self.per_structure:
            figures |= {f"{self.name}_{k}": d for k, d in zip(self.labels, by_mean.tolist(), strict=True)}
        return figures


def _warped(labels: Tensor, field: Tensor) -> Tensor:
    """[1, X, Y, Z] and [3, X, Y, Z] to [X, Y, Z]."""
    return warp_labels(labels[None], field[None])[0, 0]


def _mean(values: Tensor) -> float:
    return float(values.nanmean())
