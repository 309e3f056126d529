"""From two images to the posterior: network, refinement, detail, spread, evidence, proposals, weights; in this order.

Inference, evaluation, calibration, validation during training, conditioning and viewers all get their posterior here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scripts.evidence.knowledge import Knowledge
from scripts.gaussian.stencil import CHANNELS
from scripts.inference.model import Model
from scripts.posterior.calibrated import Calibration
from scripts.posterior.conditioning import given
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.settings import Clock, Settings
from scripts.posterior.spread import NetworkSpread, Spread, named_spread
from scripts.posterior.steps import Found, draw, find
from scripts.registration.parts import Likelihood, Prior


class Sampler:
    """A model, and how it is used on each pair.

    Args:
        settings: of :class:`~scripts.posterior.settings.Settings`, or its values by name.
        likelihood: in place of the one that the model was trained with; None for that.
        prior: likewise.
        spread: how fields spread around the mean, or its kind, with the numbers that the model was calibrated with;
            None for the network's own. Several fields of an ensemble are spread enough.

    Raises:
        DataError: for settings that are none, or a model whose posterior cannot be stored.

    Example:
        >>> sampler = Sampler(load_model("models/model.pt"), {"refine_steps": 25})  # doctest: +SKIP
        >>> posterior = sampler.posterior(PairImages.of_item(item, factor=2))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Model,
        settings: Settings | Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        spread: Spread | str | None = None,
    ) -> None:
        self.settings = settings if isinstance(settings, Settings) else Settings(**(settings or {}))
        self.device = torch.device(device) if device is not None else next(model.network.parameters()).device
        self.model = model.with_target(likelihood=likelihood, prior=prior).to(self.device)
        several = self.model.layout.mean_channels != CHANNELS
        self.spread = NetworkSpread() if several else named_spread(spread, self.model.calibration.get("spread"))
        known = Calibration.of(self.model.calibration)
        self.calibration, self.failure = known.for_spread(self.spread.kind), known.failure
        self.model.target.settings()  # refused now, not after everything is drawn

    @property
    def factor(self) -> int:
        """Work voxels along the edge of a field voxel."""
        return int(self.model.target.transform.factor)

    def with_settings(self, **changes: Any) -> Sampler:
        """The same model, used in another way."""
        return Sampler(self.model, replace(self.settings, **changes), self.device, spread=self.spread)

    def find(self, pair: PairImages, *, raw: Tensor | None = None, clock: Clock | None = None) -> Found:
        """The proposal of a pair, see :func:`~scripts.posterior.steps.find`."""
        return find(self.model, pair, self.settings, self.spread, raw, clock)

    def posterior(
        self,
        pair: PairImages,
        evidence: Knowledge | None = None,
        *,
        raw: Tensor | None = None,
        clock: Clock | None = None,
    ) -> Posterior:
        """The posterior of a pair; `raw` is the network's output for it, [1, C, x, y, z], if that is known already."""
        found, weighting = self.find(pair, raw=raw, clock=clock), self.model.weighting(self.settings.temperature)
        if evidence is None:
            posterior = draw(found, pair, self.settings, weighting, clock=clock)
        else:
            posterior = given(found, pair, evidence, self.settings, weighting, clock)
        posterior.calibration = self.calibration
        return posterior
