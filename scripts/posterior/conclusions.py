"""What the weighted samples of one pair say: moments, labels, modes and diagnostics on the fixed file's grid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.core.progress import Progress
from scripts.inference.chunks import chunk_that_fits
from scripts.posterior.conditioning import remarks
from scripts.posterior.field_summary import FieldAccumulator, FieldSummary
from scripts.posterior.folds import fold_percentage
from scripts.posterior.label_volumes import LabelAccumulator
from scripts.posterior.modes import are_distinct, find_modes
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.result import Mode, RegistrationResult
from scripts.posterior.settings import Clock, Settings
from scripts.registration.local_correlation import local_ncc
from scripts.registration.target import Target
from scripts.registration.warp import warp


@torch.no_grad()
def conclude(
    item: Mapping[str, Any],
    pair: PairImages,
    posterior: Posterior,
    settings: Settings,
    label_names: Mapping[int, str] | None = None,
    clock: Clock | None = None,
) -> RegistrationResult:
    """Draw the resampled fields again and summarize them.

    Args:
        item: the prepared pair, see :mod:`~scripts.data.pair_input`.
        pair: the same as the sampler took it.
        posterior: what it made of it.
        label_names: of the moving label map's values.
    """
    clock, space, fixed = clock or Clock(), posterior.space, pair.fixed
    chunk = settings.chunk or chunk_that_fits(fixed[0, 0].numel(), fixed.device)
    labels = None
    if "moving_label" in item:
        own = item["fixed_label"].as_tensor()[0] if "fixed_label" in item else None
        moving, errors = item["moving_label"].as_tensor()[0], posterior.calibration.volumes
        labels = LabelAccumulator(moving, space, label_names, own, None, errors, posterior.spread.blur)
    with clock("summary"):
        fields, samples = _summarize(posterior, labels, chunk, settings)
        result = _result(item, posterior, fields, labels)
    with clock("modes"):
        result.modes, mode_figures = _modes(posterior, samples, item, settings)
    # The mean of control points: what a sampled velocity means has been worked out already.
    ddf = space.on_work(posterior.mean[None])
    before_after = _mean_ncc(fixed, (pair.moving, warp(pair.moving, ddf)), figure_window(posterior.target))
    result.diagnostics = _diagnostics(item, posterior, fields, fixed[0, 0] > 0) | before_after | mode_figures
    # Detail can fold between the work grid's voxels.
    seen = ddf if space.detail is None else space.in_fixed_voxels(torch.from_numpy(result.displacement)[None])
    result.diagnostics["fold_percent_mean"] = float(fold_percentage(seen)[0])
    if labels is not None and labels.fixed_label is not None:
        before = space.warp_labels(labels.moving_label, torch.zeros(3, *space.fixed.shape))
        after = space.warp_labels(labels.moving_label, torch.from_numpy(result.displacement))
        result.diagnostics |= {"dice_before": labels.dice(before), "dice_mean_field": labels.dice(after)}
        assert result.labels is not None
        result.diagnostics["dice_after"] = labels.dice(torch.from_numpy(result.labels.label))
    if posterior.conditioning:
        result.diagnostics["conditioning"] = dict(posterior.conditioning)
        result.warnings += remarks(posterior.conditioning)
    return result


def _summarize(
    posterior: Posterior, labels: LabelAccumulator | None, chunk: int, settings: Settings
) -> tuple[FieldSummary, dict[int, tuple[int, Tensor]]]:
    """Moments on the work grid, and the samples: index of the proposal to (how often, control points)."""
    accumulator = FieldAccumulator(posterior.space)
    samples: dict[int, tuple[int, Tensor]] = {}
    total = int(posterior.draws.resampled.unique().numel())
    with Progress("summary", total, settings.progress) as advance:
        for index, count, points in posterior.samples(chunk):
            samples[index] = (count, points)
            accumulator.add(points, count)
            if labels is not None:
                displacement, weights = posterior.space.displacement(points[None])[0].cpu(), posterior.local_weights
                labels.add(displacement, count, None if weights is None else weights(displacement))
            advance(len(samples))
    return accumulator.summary(), samples


def _result(
    item: Mapping[str, Any], posterior: Posterior, fields: FieldSummary, labels: LabelAccumulator | None
) -> RegistrationResult:
    """The summary on the fixed file's grid."""
    space = posterior.space
    displacement = space.displacement(posterior.mean[None])[0].cpu()
    moving_file = item["moving_file"].as_tensor()[0]
    volumes = torch.stack([fields.std, fields.log_jacobian, fields.fold_probability, *fields.std_axes])[None]
    std, log_jacobian, folds, *axes = space.to_fixed(volumes)[0].cpu().numpy()
    return RegistrationResult(
        moving_name=posterior.names[0],
        fixed_name=posterior.names[1],
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
    posterior: Posterior,
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
        displacement = posterior.space.displacement(samples[index][1][None])[0].cpu()
        warped = posterior.space.warp(moving_file, displacement)
        modes.append(Mode(found.weight, index, displacement.numpy(), warped.numpy()))
    return modes, {"modes_distinct": are_distinct(groups), "modes_p_value": groups[0].p_value}


def _diagnostics(item: Mapping[str, Any], posterior: Posterior, fields: FieldSummary, brain: Tensor) -> dict[str, Any]:
    """What `diagnostics.json` says about the sampling and the fields."""
    draws, steps, selects = posterior.draws, dict[str, float](), posterior.spread.selects
    for name, gain in posterior.gains.items():
        steps |= {name: posterior.steps[name], f"{name.removesuffix('_steps')}_gain_log_posterior": gain}
    return {
        "moving": posterior.names[0],
        "fixed": posterior.names[1],
        "alignment": item["alignment"].description,
        "alignment_log_volume": float(np.log(abs(np.linalg.det(posterior.space.alignment[:3, :3])))),
        "num_proposals": len(draws.weights),
        "num_samples": len(draws.resampled),
        "unique_samples": int(draws.resampled.unique().numel()),
        "seed": draws.proposals.seed,
        "spread": posterior.spread.kind,
        "calibrated": posterior.calibration.volumes is not None,
        "temperature": draws.temperature,
        "scale": draws.scale,
        "ess": draws.ess,
        "ess_share": draws.ess / len(draws.weights),
        "largest_weight": float(draws.weights.max()),
        "khat": draws.khat if selects else None,  # equal weights have no tail
        "fold_percent": fields.fold_percent,
        "std_mean_mm": float(fields.std[brain].mean()),
        "std_95_mm": float(np.quantile(fields.std[brain].float().cpu().numpy(), 0.95)),
        "work_shape": list(posterior.space.work.shape),
        "work_spacing_mm": [round(float(v), 4) for v in posterior.space.work.spacing],
        **steps,
    }


def figure_window(target: Target) -> int:
    """Edge of the window of the squared correlation that people are shown: the likelihood's; 5 where it has none."""
    return target.likelihood.window if target.likelihood.window > 1 else 5


def _mean_ncc(fixed: Tensor, images: tuple[Tensor, Tensor], window: int) -> dict[str, Any]:
    """Mean squared local correlation in the fixed brain, before and after."""
    brain = fixed[0, 0] > 0
    before, after = (float(local_ncc(fixed, image, window)[0, 0][brain].mean()) for image in images)
    return {"ncc_before": before, "ncc_after": after, "ncc_window": window}
