"""Pairs whose mean has been found, kept on disk: every spread is tried around the same means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from scripts.data.pair_input import pair_input_transforms
from scripts.evaluation.pair_report import LabeledPair
from scripts.inference.model import Model
from scripts.inference.model_file import load_model
from scripts.posterior.posterior import Posterior
from scripts.posterior.sampler import Sampler
from scripts.posterior.settings import Settings
from scripts.posterior.spread import NetworkSpread, Spread
from scripts.posterior.steps import Found, draw

WORK = Path("output/uncertainty")
IMAGE, LABEL = "aligned_norm.nii.gz", "aligned_seg35.nii.gz"


@dataclass(eq=False)
class Registered:
    """A pair of people with its mean: before any spread."""

    pair: LabeledPair
    model: Model
    raw: Tensor  # of the network, with the mean that was found
    detail: Tensor | None

    def posterior(self, spread: Spread, num_samples: int, seed: int = 0) -> Posterior:
        """Samples around the mean."""
        images, target = self.pair.images, self.model.target
        space = replace(images.space, factor=int(target.transform.factor), detail=self.detail)
        raw, layout = spread.around(self.raw, self.model.layout, target, space, images)
        raw = layout.rounded(raw)
        found = Found(raw, layout, target, space, layout.proposal(raw), spread)
        settings = Settings(num_proposals=1200, num_samples=num_samples, seed=seed, progress=False)
        return draw(found, images, settings, self.model.weighting())


def register(folder: Path, fixed: str, moving: str, weights: str = "models/model.pt") -> Registered:
    """Register two people as `run inference` does, or take what an earlier call has found."""
    paths: dict[str, str] = {}
    for role, name in (("fixed", fixed), ("moving", moving)):
        paths |= {role: str(folder / name / IMAGE), f"{role}_label": str(folder / name / LABEL)}
    model = load_model(weights)
    sampler = Sampler(model, {"refine_steps": 25, "detail_steps": 8, "progress": False}, spread=NetworkSpread())
    item = pair_input_transforms(model.voxel_mm, model.stride, "auto")(paths)
    item |= {"fixed_name": fixed, "moving_name": moving}
    pair = LabeledPair.of_item(item, sampler.factor)
    kept = WORK / "means" / f"{folder.name}_{Path(weights).stem}_{moving}_{fixed}.pt"
    if kept.exists():
        content = torch.load(kept, weights_only=True)
    else:
        found = sampler.find(pair.images)
        content = {"raw": found.raw, "detail": found.space.detail}
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(content, kept)
    return Registered(pair, model, content["raw"], content["detail"])
