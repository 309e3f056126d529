"""Segmentation by registration for viewers: labels of a scan that an atlas was registered to."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import Transform

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.core.pair_keys import FROM_VIEWER
from scripts.outputs.folder import plain
from scripts.posterior.result import RegistrationResult
from scripts.report.findings import find
from scripts.report.verdict import verdict

OUTPUTS = ("labels", "uncertainty")
SAMPLING = ("ess", "khat", "largest_weight", "num_proposals", "num_samples", "seed")
FIT = (
    "alignment", "ncc_before", "ncc_after", "fold_percent", "std_mean_mm", "std_95_mm", "failure_probability",
    "failure_reason",
)  # fmt: skip
"""What a viewer's answer has of the diagnostics."""


class ViewerOutputd(Transform):
    """Put what the samples say under the keys that MONAI Label reads; items that no viewer has sent stay as they are.

    | key | before | after |
    |---|---|---|
    | `pred` | | [X, Y, Z] with the fixed file's affine, as MONAI Label writes it: the most probable labels, or the standard deviation in mm |
    | `segmentation` | | the most probable labels [1, X, Y, Z], whatever `pred` is |
    | `image` | what the network saw | the fixed file, so that a later step of the viewer finds its grid |
    | `result` | see :class:`~scripts.outputs.postprocessing.Posteriord` | figures for people, see :func:`figures_of` |
    | `result_dtype` | | of the file to be written |

    Args:
        output: labels or uncertainty; of a list, as viewers show choices, the first.

    Raises:
        DataError: for another output.
    """  # noqa: E501

    def __init__(self, output: str | Sequence[str] = "labels") -> None:
        self.output = output if isinstance(output, str) else str(next(iter(output), "labels"))

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Finish one pair."""
        if self.output not in OUTPUTS:
            raise DataError(f"output must be one of {', '.join(OUTPUTS)}, got {self.output!r}")
        item = dict(data)
        if FROM_VIEWER not in item:
            return item
        result: RegistrationResult = item["result"]
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
        **{key: plain(result.diagnostics.get(key)) for key in (*SAMPLING, *FIT)},
        "moving": result.moving_name,
        "fixed": result.fixed_name,
        "warnings": list(result.warnings),
    }


def label_type(labels: np.ndarray) -> type[np.generic]:
    """The smallest integer type that viewers read as a label map and that holds these labels."""
    return np.int16 if int(labels.max(initial=0)) <= np.iinfo(np.int16).max else np.int32


def _as_reference(volume: MetaTensor) -> MetaTensor:
    """The fixed file with its grid under the names that MONAI Label's `Restored` looks for."""
    grid = Grid.of(volume)
    meta = {"spatial_shape": np.array(grid.shape), "original_affine": grid.affine}
    return MetaTensor(volume.as_tensor(), affine=torch.as_tensor(grid.affine), meta=meta)
