"""What the weighted samples of one pair say: moments, labels, modes and diagnostics on the fixed file's grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.core.progress import progress_of
from scripts.posterior.field_summary import FieldAccumulator, FieldSummary
from scripts.posterior.folds import fold_percentage
from scripts.posterior.label_volumes import LabelAccumulator
from scripts.posterior.modes import are_distinct, find_modes
from scripts.posterior.result import Mode, RegistrationResult
from scripts.posterior.settings import Clock, Settings
from scripts.posterior.stored import StoredPosterior
from scripts.registration.local_correlation import local_ncc
from scripts.registration.target import Target
from scripts.registration.warp import warp


@torch.no_grad()
def conclude(
    item: Mapping[str, Any],
    stored: StoredPosterior,
    images: tuple[Tensor, Tensor],
    settings: Settings,
    chunk: int,
    label_names: Mapping[int, str] | None = None,
    clock: Clock | None = None,
    window: int = 5,
) -> RegistrationResult:
    """Draw the resampled fields again and summarize them.

    Args:
        item: the prepared pair, see :mod:`~scripts.data.pair_input`.
        stored: the posterior; its mean becomes that of the resampled fields.
        images: fixed and moving on the work grid, [1, 1, X, Y, Z] each.
        settings: how many modes, progress bars and so on.
        chunk: samples in memory at a time.
        label_names: of the moving label map's values.
        clock: gets the seconds of each part.
        window: of the model's correlation.
    """
    clock = clock or Clock()
    (fixed, moving), space = images, stored.space
    labels = None
    if "moving_label" in item:
        own = item["fixed_label"].as_tensor()[0] if "fixed_label" in item else None
        labels = LabelAccumulator(item["moving_label"].as_tensor()[0], space, label_names, own)
    with clock("summary"):
        fields, samples = _summarize(stored, labels, chunk, settings)
        stored.mean = fields.mean
        result = _result(item, stored, fields, labels)
    with clock("modes"):
        result.modes, mode_figures = _modes(stored, samples, item, settings)
    # The mean of control points: what a sampled velocity means has been worked out already.
    ddf = space.on_work(fields.mean[None])
    before_after = _mean_ncc(fixed, (moving, warp(moving, ddf)), window)
    result.diagnostics = _diagnostics(item, stored, settings, fields, fixed[0, 0] > 0) | before_after | mode_figures
    # Detail can fold between the work grid's voxels.
    seen = ddf if space.detail is None else space.in_fixed_voxels(torch.from_numpy(result.displacement)[None])
    result.diagnostics["fold_percent_mean"] = float(fold_percentage(seen)[0])
    if labels is not None and labels.fixed_label is not None:
        before = space.warp_labels(labels.moving_label, torch.zeros(3, *space.fixed.shape))
        after = space.warp_labels(labels.moving_label, torch.from_numpy(result.displacement))
        result.diagnostics |= {"dice_before": labels.dice(before), "dice_mean_field": labels.dice(after)}
        assert result.labels is not None
        result.diagnostics["dice_after"] = labels.dice(torch.from_numpy(result.labels.label))
    return result


def _summarize(
    stored: StoredPosterior, labels: LabelAccumulator | None, chunk: int, settings: Settings
) -> tuple[FieldSummary, dict[int, tuple[int, Tensor]]]:
    """Moments on the work grid, and the samples: index of the proposal to (how often, control points)."""
    accumulator = FieldAccumulator(stored.space)
    samples: dict[int, tuple[int, Tensor]] = {}
    total = int(stored.posterior.resampled.unique().numel())
    with progress_of("summary", total, settings.progress) as advance:
        for index, count, points in stored.samples(chunk):
            samples[index] = (count, points)
            accumulator.add(points, count)
            if labels is not None:
                labels.add(stored.space.displacement(points[None])[0].cpu(), count)
            advance(len(samples))
    return accumulator.summary(), samples


def _result(
    item: Mapping[str, Any], stored: StoredPosterior, fields: FieldSummary, labels: LabelAccumulator | None
) -> RegistrationResult:
    """The summary on the fixed file's grid."""
    space = stored.space
    displacement = space.displacement(fields.mean[None])[0].cpu()
    moving_file = item["moving_file"].as_tensor()[0]
    volumes = torch.stack([fields.std, fields.log_jacobian, fields.fold_probability, *fields.std_axes])[None]
    std, log_jacobian, folds, *axes = space.to_fixed(volumes)[0].cpu().numpy()
    return RegistrationResult(
        moving_name=stored.names[0],
        fixed_name=stored.names[1],
        grid=space.fixed,
        alignment=space.alignment,
        fixed=item["fixed_file"].as_tensor()[0].numpy(),
        moving=space.warp(moving_file, torch.zeros_like(displacement)).numpy(),
        warped=space.warp(moving_file, displacement).numpy(),
        displacement=displacement.numpy(),
        std=std,
        std_axes=np.stack(axes),
        log_jacobian=log_jacobian,
        fold_probability=folds,
        brain=item["brain"][0].numpy(),
        labels=None if labels is None else labels.result(),
        warnings=list(item.get("warnings", [])),
    )


def _modes(
    stored: StoredPosterior,
    samples: dict[int, tuple[int, Tensor]],
    item: Mapping[str, Any],
    settings: Settings,
) -> tuple[list[Mode], dict[str, Any]]:
    """The paper's analysis of the samples: groups, and the sample nearest to the center of each."""
    if not settings.num_modes:
        return [], {}
    indices = list(samples)
    fields = torch.stack([samples[index][1].flatten() for index in indices])
    weights = torch.tensor([float(samples[index][0]) for index in indices])
    moving_file = item["moving_file"].as_tensor()[0]
    groups = find_modes(fields, weights, settings.num_modes, seed=settings.seed)
    modes = []
    for found in groups:
        index = indices[found.sample]
        displacement = stored.space.displacement(samples[index][1][None])[0].cpu()
        warped = stored.space.warp(moving_file, displacement)
        modes.append(Mode(found.weight, index, displacement.numpy(), warped.numpy()))
    return modes, {"modes_distinct": are_distinct(groups), "modes_p_value": groups[0].p_value}


def _diagnostics(
    item: Mapping[str, Any], stored: StoredPosterior, settings: Settings, fields: FieldSummary, brain: Tensor
) -> dict[str, Any]:
    """What `diagnostics.json` says about the sampling and the fields."""
    posterior = stored.posterior
    return {
        "moving": stored.names[0],
        "fixed": stored.names[1],
        "alignment": item["alignment"].description,
        "alignment_log_volume": float(np.log(abs(np.linalg.det(stored.space.alignment[:3, :3])))),
        "num_proposals": settings.num_proposals,
        "num_samples": settings.num_samples,
        "unique_samples": int(posterior.resampled.unique().numel()),
        "seed": settings.seed,
        "temperature": stored.temperature,
        "scale": stored.scale,
        "ess": posterior.ess,
        "ess_share": posterior.ess / settings.num_proposals,
        "largest_weight": float(posterior.weights.max()),
        "khat": posterior.khat,
        "fold_percent": fields.fold_percent,
        "std_mean_mm": float(fields.std[brain].mean()),
        "std_95_mm": float(np.quantile(fields.std[brain].float().cpu().numpy(), 0.95)),
        "work_shape": list(stored.space.work.shape),
        "work_spacing_mm": [round(float(v), 4) for v in stored.space.work.spacing],
    }


def model_window(target: Target) -> int:
    """Of the model's correlation; 5 for a likelihood that is none."""
    return int(getattr(target.likelihood, "window", 5))


def _mean_ncc(fixed: Tensor, images: tuple[Tensor, Tensor], window: int) -> dict[str, Any]:
    """Mean squared local correlation in the fixed brain, before and after."""
    brain = fixed[0, 0] > 0
    before, after = (float(local_ncc(fixed, image, window)[0, 0][brain].mean()) for image in images)
    return {"ncc_before": before, "ncc_after": after, "ncc_window": window}
