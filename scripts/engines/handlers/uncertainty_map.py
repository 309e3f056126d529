"""Maps of how far the samples of a displacement field differ, of any network that gives samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor

from scripts.core.grid import Grid
from scripts.core.seg35 import SCORED
from scripts.engines.handlers.pair_figures import PairFigures, field_samples, volume
from scripts.files.nifti import write_volume
from scripts.posterior.field_moments import FieldMoments
from scripts.posterior.label_maps import check_labels
from scripts.posterior.label_samples import LabelSamples
from scripts.registration.warp import warp_labels


class UncertaintyMap(PairFigures):
    """Writes `<fixed>__<moving>_std.nii.gz` for each pair, on the fixed image's grid.

    It is the standard deviation of the displacement in mm, all directions together: √(sum of the three variances),
    unbiased over the samples. Its mean in the brain (fixed > 0), averaged over pairs, is in `engine.state.metrics`.

    Args:
        output_dir: where the files go. Each process writes those of its own pairs.
        ddf: key of the samples, [B, K, 3, X, Y, Z] with K > 1, voxels (see
            :class:`~scripts.engines.handlers.registration_dice.RegistrationDice`).
        fixed: key of the fixed image, a `MetaTensor` [B, 1, X, Y, Z], whose affine says where voxels are.
        moving_label: key of the moving label map; with `label_maps`.
        label_maps: write `…_labels.nii.gz`, `…_probability.nii.gz` and `…_entropy.nii.gz` as well: the most probable
            labels, how probable they are, and the entropy of the label in nats.
        labels: values of the structures in them; None for the 31 of seg35 that the scans have.
    """

    def __init__(
        self,
        output_dir: str | Path,
        ddf: str = "ddf",
        fixed: str = "fixed",
        moving_label: str = "moving_label",
        label_maps: bool = False,
        labels: Sequence[int] | None = None,
        name: str = "std_mm",
        csv_path: str | Path | None = None,
    ) -> None:
        super().__init__(name, {"ddf": ddf, "fixed": fixed, "moving_label": moving_label}, csv_path)
        self.output_dir, self.label_maps = Path(output_dir), label_maps
        self.labels = check_labels(SCORED if labels is None else labels)

    @torch.no_grad()
    def figures(self, pair: Mapping[str, Any], names: Sequence[str]) -> dict[str, float]:
        """Write the maps of one pair; returns the mean standard deviation in the brain, in mm."""
        fields, fixed = field_samples(pair, self.keys), volume(pair, "fixed", self.keys)
        if len(fields) < 2:
            raise ValueError(
                f"expected several samples of the field under {self.keys['ddf']!r}, got one; "
                "scripts.engines.field_sampler.FieldSamples draws them from any network"
            )
        if not isinstance(pair["fixed"], MetaTensor):
            raise ValueError(f"expected a MetaTensor under {self.keys['fixed']!r}, whose affine says where voxels are")
        grid, file = Grid.of(pair["fixed"]), self.output_dir / "__".join(names)
        std = displacement_std(fields, torch.as_tensor(grid.affine[:3, :3]))
        write_volume(f"{file}_std.nii.gz", std.cpu().numpy(), grid, np.float32, description="std of displacement, mm")
        if self.label_maps:
            moving = volume(pair, "moving_label", self.keys).to(fields.device)
            samples = LabelSamples(self.labels)
            for field in fields:
                samples.add(warp_labels(moving[None], field[None])[0, 0])
            label, probability, entropy = (values.cpu().numpy() for values in samples.summary())
            write_volume(f"{file}_labels.nii.gz", label, grid)
            write_volume(f"{file}_probability.nii.gz", probability, grid)
            write_volume(f"{file}_entropy.nii.gz", entropy, grid, description="nats")
        return {self.name: float(std[fixed[0].to(std.device) > 0].mean())}


def displacement_std(fields: Tensor, affine: Tensor) -> Tensor:
    """Standard deviation of a displacement's length in mm, [X, Y, Z]: √(sum of the three unbiased variances).

    `fields` are K samples in voxels, [K, 3, X, Y, Z]; `affine` [3, 3] leads from voxels to mm.
    """
    moments = FieldMoments()
    for field in fields:
        moments.add(torch.einsum("ij,jxyz->ixyz", affine.to(field), field))
    return moments.variance.sum(0).sqrt()
