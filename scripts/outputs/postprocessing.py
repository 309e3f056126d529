"""Postprocessing of a registration: from what the network says about a prepared pair to the posterior."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from monai.transforms import Transform

from scripts.core.pair_keys import FROM_VIEWER
from scripts.core.seg35 import read_names
from scripts.posterior.conclusions import conclude
from scripts.posterior.failure import judge, signs
from scripts.posterior.pair_images import PairImages
from scripts.posterior.sampler import Sampler
from scripts.posterior.settings import Clock


class Posteriord(Transform):
    """Sample the posterior of a prepared pair, and say what the samples say.

    | key | before | after |
    |---|---|---|
    | `pred` | the network's raw output of the pair, [C, x, y, z] or [1, C, x, y, z] | the same |
    | `posterior` | | :class:`~scripts.posterior.posterior.Posterior` |
    | `result` | | :class:`~scripts.posterior.result.RegistrationResult` |

    The seconds of each part go to the :class:`~scripts.posterior.settings.Clock` under `clock`, if there is one.

    Args:
        sampler: the model, and how it is used.
        label_names: `seg35`, `freesurfer`, or a JSON file from label values to names; None for seg35's names where
            most of its labels are there.
    """

    def __init__(self, sampler: Sampler, label_names: str | None = None) -> None:
        self.sampler, self.label_names = sampler, label_names

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Register one pair."""
        item = dict(data)
        pair = {str(key): value for key, value in item.items()}
        sampler, names, clock = self.sampler, read_names(self.label_names), item.get("clock", Clock())
        if FROM_VIEWER in item:  # a server has a log, and viewers show no modes
            sampler = sampler.with_settings(progress="log", num_modes=0)
        images = PairImages.of_item(pair, sampler.factor, sampler.device)
        raw = item["pred"].to(sampler.device)
        posterior = sampler.posterior(images, raw=raw if raw.ndim == 5 else raw[None], clock=clock)
        result = conclude(pair, images, posterior, sampler.settings, names, clock)
        result.diagnostics |= {"model": sampler.model.name, "device": str(sampler.device)}
        if (fitted := sampler.failure) is not None:
            with clock("failure"):
                result.diagnostics |= judge(signs(sampler.model, images, posterior), fitted)
        return {**item, "posterior": posterior, "result": result}
