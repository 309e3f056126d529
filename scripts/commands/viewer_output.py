"""Segmentation by registration for viewers: from what the network says about scan and atlas to labels of the scan."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Transform

from scripts.commands.pair_list import stem
from scripts.commands.registration_run import read_names
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.inference.objectives import SIRObjective
from scripts.posterior.result import RegistrationResult
from scripts.posterior.sampler import register_predicted
from scripts.posterior.settings import Settings
from scripts.report.findings import find
from scripts.report.verdict import verdict

OUTPUTS = ("labels", "uncertainty")
SAMPLING = ("ess", "khat", "largest_weight", "num_proposals", "num_samples", "seed")
FIT = ("alignment", "ncc_before", "ncc_after", "fold_percent", "std_mean_mm", "std_95_mm")
"""What a viewer's answer has of the diagnostics."""


class PosteriorLabelsd(Transform):
    """Draw and weigh the samples of a prepared pair, and put what they say under the keys that MONAI Label reads.

    | key | before | after |
    |---|---|---|
    | `pred` | `raw` and `scale` of one pair, see :class:`~scripts.inference.inferer.ProposalInferer` | [X, Y, Z] with the fixed file's affine, as MONAI Label writes it: the most probable labels, or the standard deviation in mm |
    | `segmentation` | | the most probable labels [1, X, Y, Z], whatever `pred` is |
    | `image` | what the network saw | the fixed file, so that a later step of the viewer finds its grid |
    | `result` | | figures for people, see :func:`figures_of` |
    | `result_dtype` | | of the file to be written |

    Args:
        objective: of the network's training.
        settings: options of :class:`~scripts.posterior.settings.Settings`.
        output: labels or uncertainty; of a list, as viewers show choices, the first.
        label_names: JSON file from label values to names.
        device: where to compute.

    Raises:
        DataError: for another output.
    """  # noqa: E501

    def __init__(
        self,
        objective: SIRObjective,
        settings: Mapping[str, Any] | None = None,
        output: str | Sequence[str] = "labels",
        label_names: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.objective, self.options = objective, dict(settings or {})
        self.output = output if isinstance(output, str) else str(next(iter(output), "labels"))
        self.label_names, self.device = label_names, torch.device(device)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Finish one pair."""
        if self.output not in OUTPUTS:
            raise DataError(f"output must be one of {', '.join(OUTPUTS)}, got {self.output!r}")
        item = dict(data)
        pair = {str(key): value for key, value in item.items()}
        predicted = {key: value[None].to(self.device) for key, value in item["pred"].items()}
        paths = {"moving_name": item.get("atlas_path", "atlas"), "fixed_name": item.get("image_path", "scan")}
        names = {key: stem(str(path)) for key, path in paths.items()}
        settings = Settings(**{**self.options, "progress": "log", "num_modes": 0})
        _, result = register_predicted(
            {**pair, **names}, predicted, self.objective.to(self.device), settings, self.device,
            read_names(self.label_names),
        )  # fmt: skip
        if result.labels is None:
            raise DataError("labels of the moving image are needed: there is nothing to carry over")
        labels = torch.from_numpy(result.labels.label.astype(np.int32))
        shown = labels if self.output == "labels" else torch.from_numpy(result.std)
        item["segmentation"] = labels[None]
        item["pred"] = MetaTensor(shown, affine=torch.as_tensor(result.grid.affine))
        item["result_dtype"] = label_type(result.labels.label) if self.output == "labels" else np.float32
        item["image"] = _as_reference(item["fixed_file"])
        item["result"] = {**figures_of(result), "output": self.output}
        return item


def figures_of(result: RegistrationResult) -> dict[str, Any]:
    """A result's figures as plain JSON: a judgement in one line, volumes with 95 % credible intervals, diagnostics."""
    volumes = result.labels.volumes if result.labels is not None else []
    return {
        "judgement": verdict(result.diagnostics, find(result), result.warnings, volumes).sentence,
        "volumes": [
            {
                "label": volume.label,
                "name": volume.name,
                "volume_mm3": round(volume.mean, 1),
                "lower_95_mm3": round(volume.lower, 1),
                "upper_95_mm3": round(volume.upper, 1),
            }
            for volume in volumes
        ],
        **{key: _plain(result.diagnostics.get(key)) for key in (*SAMPLING, *FIT)},
        "moving": result.moving_name,
        "fixed": result.fixed_name,
        "warnings": list(result.warnings),
    }


def label_type(labels: np.ndarray) -> type[np.generic]:
    """The smallest integer type that viewers read as a label map and that holds these labels."""
    return np.int16 if int(labels.max(initial=0)) <= np.iinfo(np.int16).max else np.int32


def _plain(value: Any) -> Any:
    """Numbers that JSON has; None for NaN and the infinite ones, which it has not."""
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def _as_reference(volume: MetaTensor) -> MetaTensor:
    """The fixed file with its grid under the names that MONAI Label's `Restored` looks for."""
    grid = Grid.of(volume)
    meta = {"spatial_shape": np.array(grid.shape), "original_affine": grid.affine}
    return MetaTensor(volume.as_tensor(), affine=torch.as_tensor(grid.affine), meta=meta)
