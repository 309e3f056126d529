"""A registered pair, given what an expert knows: conditioned proposals, new weights, all files of a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from scripts.core.errors import DataError
from scripts.core.pair_keys import fine_key
from scripts.core.progress import progress_of
from scripts.evidence.knowledge import Knowledge
from scripts.evidence.known import Known
from scripts.evidence.outline import Outline
from scripts.gaussian.stencil import CHANNELS
from scripts.inference.chunks import chunk_that_fits
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.discrepancy import LENGTHS_MM, around, condition
from scripts.inference.objectives import MeanObjective
from scripts.inference.proposals import sample_posterior
from scripts.inference.refine import refine
from scripts.networks.layout import ProposalLayout
from scripts.posterior.conclusions import conclude, model_window
from scripts.posterior.result import RegistrationResult
from scripts.posterior.sampler import detail_of
from scripts.posterior.settings import Clock, Settings
from scripts.posterior.stored import StoredPosterior
from scripts.posterior.target_settings import make_target
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform

SURPRISING = 1e-3
"""Evidence that the proposal holds for less likely than this is worth a word."""


@torch.no_grad()
def condition_pair(
    item: Mapping[str, Any],
    stored: StoredPosterior,
    knowledge: Knowledge,
    settings: Settings,
    device: torch.device,
    label_names: Mapping[int, str] | None = None,
    clock: Clock | None = None,
) -> tuple[StoredPosterior, RegistrationResult]:
    """The posterior given the images and what the expert knows, and what it says.

    Args:
        item: the pair, see :func:`~scripts.data.pair_again.prepare_again`.
        stored: the registration's posterior.
        knowledge: what is known.
        settings: numbers of proposals and samples, seed, steps of refinement and detail; temperature and scale are the
            registration's.
        device: where to compute.
        label_names: of the moving label map's values.
        clock: gets the seconds of each part.

    Raises:
        DataError: for a posterior that is conditioned already or of a velocity, and for evidence that is not usable.
    """
    clock = clock or Clock()
    check_conditionable(stored)
    fixed, moving = (item[key].as_tensor()[None].to(device) for key in ("fixed", "moving"))
    mask = item["fixed_mask"].as_tensor()[None].to(device) if "fixed_mask" in item else None
    target = make_target(stored.target, stored.transform).to(device)
    proposal, step = stored.layout.gaussian(stored.raw), float(stored.space.work.spacing.mean()) * stored.space.factor
    with clock("conditioning"):
        lengths = [length / step for length in LENGTHS_MM] if knowledge.discrepancy else []
        labels = item["moving_label"].as_tensor()[0].numpy() if "moving_label" in item else None
        known = knowledge.about(stored.space, labels)
        observations = known.given_to(proposal, lengths)
        before = ConditionedGaussian(proposal, observations)  # the one that can be surprised
        gaussian, discrepancy = condition(proposal, observations, lengths)
        mean = gaussian.proposal.mean
    if settings.refine_steps:
        known, mean = _climb(item, known, gaussian.mean, target, (moving, fixed, mask), settings, device, clock)
        with clock("conditioning"):
            observations = known.around(mean)
            gaussian = ConditionedGaussian(around(proposal, mean), observations)
    raw = stored.raw.clone()
    raw[:, :CHANNELS] = mean
    chunk = settings.chunk or chunk_that_fits(fixed[0, 0].numel(), device)
    with clock("proposals"), progress_of("proposals", settings.num_proposals, settings.progress) as advance:
        posterior = sample_posterior(
            gaussian, target, target.prepare(moving, fixed, mask)[0], num_proposals=settings.num_proposals,
            num_samples=settings.num_samples, temperature=stored.temperature, scale=stored.scale, seed=settings.seed,
            chunk=chunk, progress=advance, evidence=None if known.outline is None else known.outline.log_correction,
        )  # fmt: skip
    given = StoredPosterior(
        raw, stored.layout, stored.transform, known.space, posterior, stored.temperature, stored.scale, stored.mean,
        stored.names, stored.target, stored.files, observations,
        {"refine_steps": settings.refine_steps, "detail_steps": settings.detail_steps},
    )  # fmt: skip
    result = conclude(item, given, (fixed, moving), settings, chunk, label_names, clock, model_window(target))
    figures = _figures(knowledge, before, known.outline, stored, given)
    figures["discrepancy_mm"] = 0.0 if discrepancy is None else discrepancy.amplitude * step / stored.space.factor
    figures["discrepancy_length_mm"] = None if discrepancy is None else discrepancy.length * step
    figures["refine_steps"] = settings.refine_steps
    result.diagnostics["conditioning"] = figures
    result.warnings += _remarks(figures)
    return given, result


def check_conditionable(stored: StoredPosterior) -> None:
    """Refuse a posterior that cannot be conditioned; to be called before its files are read again, too.

    Raises:
        DataError: with the reason.
    """
    if not stored.target:
        raise DataError("posterior: made by an earlier version, without what its weights need; register the pair again")
    if stored.observations is not None:
        raise DataError(
            "posterior: it is conditioned already; give the registration's own posterior.pt and all you know at once"
        )
    if not isinstance(stored.transform, DisplacementTransform):
        raise DataError(
            "posterior: its fields are velocities, and where a point goes is not linear in a velocity; "
            "conditioning needs a model of displacements"
        )


def _climb(
    item: Mapping[str, Any],
    known: Known,
    start: Tensor,
    target: Target,
    images: tuple[Tensor, Tensor, Tensor | None],
    settings: Settings,
    device: torch.device,
    clock: Clock,
) -> tuple[Known, Tensor]:
    """Look for the mean once more, as the registration did, from where the evidence has put it.

    What the evidence does to the proposal's mean reaches farther than what is known, through the columns of R and the
    width of a discrepancy. The images have a say about all of that, so the mean climbs their posterior and the evidence
    together; then, where the files are fine enough, the detail.

    Args:
        item: the pair.
        known: the evidence.
        start: the mean of the conditioned proposal, [1, 3, x, y, z].
        target: the posterior of the images.
        images: moving, fixed and the mask, [1, 1, X, Y, Z].
        settings: `refine_steps` and `detail_steps`.
        device: where to compute.
        clock: gets the seconds.

    Returns:
        The evidence in the space of the new detail, and the new mean, [1, 3, x, y, z].
    """
    moving, fixed, mask = images
    space = replace(known.space, detail=None)
    objective = MeanObjective(target, ProposalLayout(rank=0, deterministic=True))
    with clock("refinement"), progress_of("refining", settings.refine_steps, settings.progress) as advance:
        mean = refine(
            start, objective, moving, fixed, settings.refine_steps, mask=mask, progress=advance,
            evidence=known.in_space(space).log_likelihood,
        ).raw  # fmt: skip
    if settings.detail_steps and fine_key("fixed") in item:
        on_work = known.in_space(replace(space, factor=1))
        with clock("detail"):
            detail = detail_of(item, mean[0], space.factor, settings, device, on_work.log_likelihood)
        space = replace(space, detail=detail.control_points.half().float())  # as posterior.pt keeps it
    return known.in_space(space), mean


def _figures(
    knowledge: Knowledge,
    gaussian: ConditionedGaussian,
    outline: Outline | None,
    before: StoredPosterior,
    after: StoredPosterior,
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
        mm = [marks.distances(posterior.mean.cpu().numpy(), posterior.space) for posterior in (before, after)]
        figures |= {
            "landmarks": len(marks),
            "landmark_std_mm": [round(float(value), 4) for value in marks.std],
            "landmark_error_before_mm": [round(float(value), 3) for value in mm[0]],
            "landmark_error_after_mm": [round(float(value), 3) for value in mm[1]],
        }
    if outline is not None:
        fields = torch.stack([before.mean, after.mean])
        mean_before, mean_after = np.abs(outline.distances(fields)).mean(1)
        figures |= {
            "structures": outline.structures,
            "outline_points": len(outline.points),
            "outline_error_before_mm": float(mean_before),
            "outline_error_after_mm": float(mean_after),
        }
    return figures


def _remarks(figures: Mapping[str, Any]) -> list[str]:
    """Sentences for people: what the evidence says about the model, or the model about the evidence."""
    if figures["surprise_p_value"] >= SURPRISING:
        return []
    return [
        "What was given contradicts what the model held for possible "
        f"(χ² {figures['surprise']:.0f} for {figures['observations']} numbers): either it is wrong, or the model was "
        f"too sure of itself here. A local error of {figures['discrepancy_mm']:.1f} mm of the model was allowed for."
    ]
