"""The posterior given the images and what an expert knows: landmarks, corrected outlines.

The proposal is conditioned exactly; then, if it was refined before, its mean is looked for once more with the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from scripts.core.errors import DataError
from scripts.core.progress import Progress
from scripts.evidence.knowledge import Knowledge, Known
from scripts.evidence.outline import Outline
from scripts.gaussian import StructuredGaussian
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.discrepancy import LENGTHS_MM
from scripts.inference.model import Weighting
from scripts.inference.refine import refine_mean
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.settings import Clock, Settings
from scripts.posterior.steps import Found, draw, prepared, with_detail
from scripts.registration.space import PairSpace
from scripts.registration.target import Target

SURPRISING = 1e-3
"""Evidence that the proposal holds for less likely than this is worth a word."""


class Field(NamedTuple):
    """One displacement: control points in work voxels, [3, x, y, z], and the space with its detail."""

    points: Tensor
    space: PairSpace


def condition_again(
    posterior: Posterior, pair: PairImages, knowledge: Knowledge, settings: Settings, clock: Clock | None = None
) -> Posterior:
    """A posterior given more: with its proposal, temperature and scale.

    Args:
        posterior: of the images alone.
        pair: the images, see :func:`~scripts.data.pair_again.prepare_again`.

    Raises:
        DataError: see :func:`check_conditionable`; for evidence that is not usable.
    """
    check_conditionable(posterior)
    found = Found(
        posterior.raw, posterior.layout, posterior.target, posterior.space, posterior.proposal, posterior.spread
    )
    weighting = Weighting(posterior.draws.temperature, posterior.draws.scale)
    conditioned = given(found, pair, knowledge, settings, weighting, clock, before=posterior.mean)
    conditioned.calibration = posterior.calibration
    return conditioned


def check_conditionable(posterior: Posterior | Found) -> None:
    """Refuse what cannot be conditioned by a DataError; to be called before any files are read again, too."""
    if isinstance(posterior, Posterior) and posterior.of_earlier_version:
        raise DataError("posterior: made by an earlier version, without what its weights need; register the pair again")
    if posterior.observations is not None:
        raise DataError(
            "posterior: it is conditioned already; give the registration's own posterior.pt and all you know at once"
        )
    if not posterior.target.transform.linear:
        raise DataError(
            "posterior: its fields are velocities, and where a point goes is not linear in a velocity; "
            "conditioning needs a model of displacements"
        )
    if not isinstance(posterior.proposal, StructuredGaussian):
        raise DataError("posterior: its proposal is an ensemble of fields; conditioning needs a Gaussian one")


@torch.no_grad()
def given(
    found: Found,
    pair: PairImages,
    knowledge: Knowledge,
    settings: Settings,
    weighting: Weighting,
    clock: Clock | None = None,
    before: Tensor | None = None,
) -> Posterior:
    """The posterior given the images and what the expert knows.

    Args:
        found: the proposal from the images.
        before: control points of the mean field without the evidence, [3, x, y, z]; None for the proposal's.

    Raises:
        DataError: see :func:`check_conditionable`; for evidence that is not usable.
    """
    check_conditionable(found)
    clock, proposal, space = clock or Clock(), found.proposal, found.space
    assert isinstance(proposal, StructuredGaussian)
    step = float(space.work.spacing.mean()) * space.factor
    with clock("conditioning"):
        lengths = [length / step for length in LENGTHS_MM] if knowledge.discrepancy else []
        known = knowledge.about(space, pair.moving_label)
        gaussian, plain, discrepancy = known.given_to(proposal, lengths)
        mean = gaussian.proposal.mean
    if settings.refine_steps:
        known, mean = _climb(pair, known, gaussian.mean, found.target, settings, clock)
        with clock("conditioning"):
            gaussian = plain.around(mean, known.around(mean))
    steps = {"refine_steps": settings.refine_steps, "detail_steps": settings.detail_steps}
    raw = found.layout.with_means(found.raw, mean)
    now = Found(raw, found.layout, found.target, known.space, gaussian, found.spread, gaussian.observations, steps)
    evidence = None if known.outline is None else known.outline.log_correction
    posterior = draw(now, pair, settings, weighting, evidence, clock)
    earlier = Field(found.target.transform.control_points(proposal.mean)[0] if before is None else before, space)
    figures = _figures(knowledge, plain, known.outline, earlier, Field(posterior.mean, posterior.space))
    figures["discrepancy_mm"] = 0.0 if discrepancy is None else discrepancy.amplitude * step / space.factor
    figures["discrepancy_length_mm"] = None if discrepancy is None else discrepancy.length * step
    figures["refine_steps"] = settings.refine_steps
    posterior.conditioning = figures
    return posterior


def _climb(
    pair: PairImages, known: Known, start: Tensor, target: Target, settings: Settings, clock: Clock
) -> tuple[Known, Tensor]:
    """Look for the mean once more, as the registration did, from where the evidence has put it.

    What the evidence does to the proposal's mean reaches farther than what is known, through the columns of R and the
    width of a discrepancy. The images have a say about all of that, so the mean climbs their posterior and the evidence
    together; then, where the files are fine enough, the detail.

    Args:
        start: the mean of the conditioned proposal, [1, 3, x, y, z].

    Returns:
        The evidence in the space of the new detail, and the new mean, [1, 3, x, y, z].
    """
    space = replace(known.space, detail=None)
    with clock("refinement"), Progress("refining", settings.refine_steps, settings.progress) as advance:
        mean = refine_mean(
            start, target, prepared(target, pair), settings.refine_steps, progress=advance,
            evidence=known.in_space(space).log_likelihood,
        ).mean  # fmt: skip
    if settings.detail_steps and pair.fine:
        on_work = known.in_space(replace(space, factor=1))
        with clock("detail"):
            space, _ = with_detail(space, target, pair, mean[0], settings, on_work.log_likelihood)
    return known.in_space(space), mean


def _figures(
    knowledge: Knowledge,
    gaussian: ConditionedGaussian,
    outline: Outline | None,
    before: Field,
    after: Field,
) -> dict[str, Any]:
    """What `diagnostics.json` says about the evidence."""
    figures: dict[str, Any] = {
        "observations": len(gaussian.observations),
        "log_evidence": gaussian.log_evidence(),
        "surprise": gaussian.surprise(),
        "surprise_p_value": float(chi2.sf(gaussian.surprise(), len(gaussian.observations))),
    }
    if knowledge.landmarks is not None:
        marks = knowledge.landmarks
        mm = [marks.distances(field.points.cpu().numpy(), field.space) for field in (before, after)]
        figures |= {
            "landmarks": len(marks),
            "landmark_std_mm": [round(float(value), 4) for value in marks.std],
            "landmark_error_before_mm": [round(float(value), 3) for value in mm[0]],
            "landmark_error_after_mm": [round(float(value), 3) for value in mm[1]],
        }
    if outline is not None:
        fields = torch.stack([before.points, after.points])
        mean_before, mean_after = np.abs(outline.distances(fields)).mean(1)
        figures |= {
            "structures": outline.structures,
            "outline_points": len(outline.points),
            "outline_error_before_mm": float(mean_before),
            "outline_error_after_mm": float(mean_after),
        }
    return figures


def remarks(figures: Mapping[str, Any]) -> list[str]:
    """Sentences for people: what the evidence says about the model, or the model about the evidence."""
    if figures["surprise_p_value"] >= SURPRISING:
        return []
    return [
        "What was given contradicts what the model held for possible "
        f"(χ² {figures['surprise']:.0f} for {figures['observations']} numbers): either it is wrong, or the model was "
        f"too sure of itself here. A local error of {figures['discrepancy_mm']:.1f} mm of the model was allowed for."
    ]
