"""Did it fail? The probability that a registration is wrong, from what is known without labels of the fixed image.

Each sign is one number that is far from what it is for good registrations when something is wrong. A logistic
regression that was fitted on failures made on purpose, see `experiments/uncertainty/failures.py`, makes a probability
of them; its numbers are kept with the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.inference.model import Model
from scripts.inference.refine import refine_mean
from scripts.posterior.folds import jacobian_determinant
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.steps import prepared
from scripts.registration.local_correlation import local_ncc
from scripts.registration.warp import warp

SIGNS = {
    "similarity": "the images hardly match",
    "unexplained": "large parts do not match",
    "correlation": "bright and dark do not correspond",
    "overlap": "the brains' outlines differ",
    "motion": "voxels had to move far",
    "strain": "volumes had to change much",
    "mirror": "the mirrored image fits as well",
    "labels": "the moving labels do not fit their own image",
}
"""The signs, and what each is called for people."""
BAD = dict(zip(SIGNS, (-1, 1, -1, -1, 1, 1, -1, -1), strict=True))
"""Whether more of a sign is worse, or less of it."""
FAILED = 0.5
"""Probability above which it is said what is wrong."""
DARK = 0.02
"""Intensity up to which nothing is there: what smoothing leaves around a brain."""
WINDOW = 5
MIRROR_STEPS = 12


@torch.no_grad()
def signs(model: Model, pair: PairImages, posterior: Posterior) -> dict[str, float]:
    """The numbers by name; NaN for one that there is not."""
    # Without the detail, so that files of all resolutions give the same numbers.
    space, shape = replace(posterior.space, detail=None), pair.fixed.shape[2:]
    field = space.on_work(posterior.mean[None])
    warped = warp(pair.moving, field)
    fixed_brain, moved_brain = pair.fixed[0, 0] > DARK, warped[0, 0] > DARK
    both = fixed_brain | moved_brain
    ncc = local_ncc(pair.fixed, warped, WINDOW)[0, 0][both]
    inside = jacobian_determinant(field)[0]
    brain = fixed_brain[tuple(slice(0, size) for size in inside.shape)]
    voxel = float(space.work.spacing.mean())
    values = {
        "similarity": float(ncc.mean()),
        "unexplained": float((ncc < 0.3).float().mean()),
        "correlation": _correlation(pair.fixed[0, 0][both], warped[0, 0][both]),
        "overlap": float(2 * (fixed_brain & moved_brain).sum() / (fixed_brain.sum() + moved_brain.sum()).clamp_min(1)),
        "motion": voxel * float(field[0].square().sum(0)[fixed_brain].mean().sqrt()),
        "strain": float(inside.clamp_min(0.05).log()[brain].std()),
        "mirror": _mirrored_gain(model, pair, shape),
        "labels": math.nan,
    }
    if pair.moving_label is not None and pair.on_files is not None:
        values["labels"] = _label_information(pair.on_files[1], torch.from_numpy(pair.moving_label))
    return values


def probability(values: Mapping[str, float], fitted: Mapping[str, Any]) -> float:
    """Of a failure: 1 / (1 + exp(−(b + Σ w z))), z how far a sign is from usual in its bad direction, w not negative.

    A sign that is missing is as usual.
    """
    total = float(fitted["bias"])
    for name, (mean, scale, weight) in fitted["signs"].items():
        value = values.get(name, math.nan)
        if math.isfinite(value):
            total += weight * float(np.clip(BAD[name] * (value - mean) / scale, 0, fitted["reach"]))
    return 1 / (1 + math.exp(-total))


def judge(values: Mapping[str, float], fitted: Mapping[str, Any]) -> dict[str, Any]:
    """What `diagnostics.json` says: the probability of a failure, the signs, and which of them is the worst."""
    known = {name: round(value, 4) for name, value in values.items() if math.isfinite(value)}
    return {
        "failure_probability": round(probability(values, fitted), 4),
        "failure_reason": strongest(values, fitted),
        "failure_signs": known,
    }


def strongest(values: Mapping[str, float], fitted: Mapping[str, Any]) -> str:
    """What speaks most for a failure, in words; nothing if no sign does."""
    known = {name: each for name, each in fitted["signs"].items() if math.isfinite(values.get(name, math.nan))}
    pull = {name: weight * BAD[name] * (values[name] - mean) / scale for name, (mean, scale, weight) in known.items()}
    worst = max(pull, key=lambda name: pull[name], default="")
    return SIGNS[worst] if worst and pull[worst] > 0 else ""


def _mirrored_gain(model: Model, pair: PairImages, shape: torch.Size) -> float:
    """How much better the moving image fits than its mirror image, in mean squared local correlation.

    Brains are nearly symmetric: one whose header has left and right exchanged registers well. But not as well as the
    right way round, when both are registered alike.
    """
    mirrored = pair.moving.flip(2)
    middle = _middle(pair.fixed) - _middle(mirrored)
    gains = []
    for moving in (pair.moving, mirrored.roll(round(middle), 2)):
        images = PairImages(pair.fixed, moving, pair.space, pair.mask)
        raw = model.network(torch.cat([moving, pair.fixed], dim=1))
        mean = model.layout.means(raw).mean(0, keepdim=True)
        refined = refine_mean(mean, model.target, prepared(model.target, images), MIRROR_STEPS).mean
        warped = warp(moving, model.target.transform(refined, shape))
        both = (pair.fixed[0, 0] > DARK) | (warped[0, 0] > DARK)
        gains.append(float(local_ncc(pair.fixed, warped, WINDOW)[0, 0][both].mean()))
    return gains[0] - gains[1]


def _middle(image: Tensor) -> float:
    """Mean index of the foreground along the axis from right to left."""
    along = (image[0, 0] > 0.05).float().sum((1, 2))
    return float((along * torch.arange(len(along), device=along.device)).sum() / along.sum().clamp_min(1))


def _correlation(one: Tensor, two: Tensor) -> float:
    pair = torch.stack([one, two]).double()
    value = float(torch.corrcoef(pair)[0, 1])
    return value if math.isfinite(value) else 0.0


def _label_information(image: Tensor, label: Tensor) -> float:
    """Share of the intensities' variance within the head that their labels explain, 0 … 1."""
    inside = (image > 0) | (label > 0)
    values, groups = image[inside].double(), label[inside].long()
    _, groups = groups.unique(return_inverse=True)
    count = torch.bincount(groups).clamp_min(1)
    means = torch.bincount(groups, values) / count
    total = values.var(correction=0)
    return float(1 - (values - means[groups]).square().mean() / total) if total > 0 else 0.0
