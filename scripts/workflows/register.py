"""Registering one prepared pair: network, refinement, proposals, weights, and what the samples say."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from scripts.alignment.checks import brain_mask
from scripts.data.errors import DataError
from scripts.evaluation.folds import fold_percentage
from scripts.inference.chunks import chunk_that_fits
from scripts.inference.inferer import ProposalInferer
from scripts.inference.objectives import SIRObjective
from scripts.inference.proposals import sample_posterior, spread_of
from scripts.inference.refine import Parts, refine
from scripts.io.grid import Grid
from scripts.io.posterior_file import StoredPosterior, rounded
from scripts.registration.similarity import local_ncc
from scripts.registration.warp import warp
from scripts.summary.fields import FieldAccumulator, FieldSummary
from scripts.summary.labels import LabelAccumulator
from scripts.summary.modes import are_distinct, find_modes
from scripts.summary.result import Mode, RegistrationResult
from scripts.summary.space import PairSpace
from scripts.workflows.progress import progress_of


@dataclass
class Settings:
    """How a pair is registered.

    Attributes:
        num_proposals: drawn and weighted (decision 13).
        num_samples: resampled of them.
        temperature: T of the weights (decision 10).
        seed: of the proposals and everything else that is random.
        refine_steps: gradient steps on this pair before drawing; 0 for none.
        refine_parts: `mean`, or `all` for L and R as well.
        num_modes: groups of samples to show; 0 for none.
        chunk: proposals in memory at a time; None for what fits.
        progress: True for progress bars, `log` for lines in the log, False for silence.
    """

    num_proposals: int = 1200
    num_samples: int = 80
    temperature: float = 3.0
    seed: int = 0
    refine_steps: int = 0
    refine_parts: Parts = "mean"
    num_modes: int = 2
    chunk: int | None = None
    progress: bool | Literal["log"] = True

    def __post_init__(self) -> None:
        if self.num_proposals < 2 or not self.num_samples >= 1:
            raise DataError(
                f"--num_proposals must be at least 2 and --num_samples at least 1, "
                f"got {self.num_proposals} and {self.num_samples}"
            )
        if self.refine_steps < 0 or self.refine_parts not in ("mean", "all"):
            raise DataError(
                f"--refine_steps must not be negative and --refine_parts must be mean or all, "
                f"got {self.refine_steps} and {self.refine_parts!r}"
            )


@dataclass
class Clock:
    """Seconds of each part of the work."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Add what happens inside to a part."""
        start = time.perf_counter()
        yield
        self.seconds[part] = round(self.seconds.get(part, 0.0) + time.perf_counter() - start, 3)


@torch.no_grad()
def register_pair(
    item: Mapping[str, Any],
    network: nn.Module,
    objective: SIRObjective,
    settings: Settings,
    device: torch.device,
    label_names: Mapping[int, str] | None = None,
    clock: Clock | None = None,
) -> tuple[StoredPosterior, RegistrationResult]:
    """Register a pair that :func:`~scripts.data.pair_input.pair_input_transforms` has prepared.

    Args:
        item: the prepared pair, with `fixed_name` and `moving_name`.
        network: from [1, 2, X, Y, Z] to raw parameters, trained.
        objective: of its training; gives the posterior and the layout, and is what refinement climbs.
        settings: how.
        device: where to compute.
        label_names: of the moving label map's values.
        clock: gets the seconds of each part.

    Returns:
        The posterior, and what it says on the fixed file's grid.
    """
    clock = clock or Clock()
    with clock("network"):
        predicted = ProposalInferer()(item["image"][None].to(device), network)
    return register_predicted(item, predicted, objective, settings, device, label_names, clock)


@torch.no_grad()
def register_predicted(
    item: Mapping[str, Any],
    predicted: Mapping[str, Tensor],
    objective: SIRObjective,
    settings: Settings,
    device: torch.device,
    label_names: Mapping[int, str] | None = None,
    clock: Clock | None = None,
) -> tuple[StoredPosterior, RegistrationResult]:
    """The same from what the network says: `raw` and `scale` of :class:`~scripts.inference.inferer.ProposalInferer`."""
    clock = clock or Clock()
    target, layout = objective.target, objective.layout
    if layout.deterministic:
        raise DataError("these weights predict a field without uncertainty; use a variant with a covariance")
    fixed, moving = (item[key].as_tensor()[None].to(device) for key in ("fixed", "moving"))
    mask = item["fixed_mask"].as_tensor()[None].to(device) if "fixed_mask" in item else None
    space = PairSpace(
        Grid.of(item["fixed_file"]),
        Grid.of(item["moving_file"]),
        Grid.of(item["fixed"]),
        item["alignment"].matrix,
        int(target.transform.factor),  # type: ignore[arg-type]
    )
    space.check()
    raw = predicted["raw"]
    gain = None
    if settings.refine_steps:
        with clock("refinement"), progress_of("refining", settings.refine_steps, settings.progress) as advance:
            refined = refine(
                raw, objective, moving, fixed, settings.refine_steps, parts=settings.refine_parts, mask=mask,
                seed=settings.seed, progress=advance,
            )  # fmt: skip
        raw, gain = refined.raw, refined.after - refined.before
    raw = rounded(raw)
    gaussian = layout.gaussian(raw)
    pair = target.prepare(moving, fixed, mask)[0]
    chunk = settings.chunk or chunk_that_fits(fixed[0, 0].numel(), device)
    trained = float(predicted["scale"][0, 0])
    scale = trained if trained > 0 else None
    with clock("proposals"), progress_of("proposals", settings.num_proposals, settings.progress) as advance:
        posterior = sample_posterior(
            gaussian, target, pair, num_proposals=settings.num_proposals, num_samples=settings.num_samples,
            temperature=settings.temperature, scale=scale, seed=settings.seed, chunk=chunk, progress=advance,
        )  # fmt: skip
    scale = scale if scale is not None else spread_of(posterior.proposals.log_weights)
    names = (str(item["moving_name"]), str(item["fixed_name"]))
    stored = StoredPosterior(
        raw, layout, target.transform, space, posterior, settings.temperature, scale, raw[0, :3], names
    )
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
    ddf = target.displacement(fields.mean[None], space.work.shape)
    result.diagnostics = _diagnostics(item, stored, settings, fields, fixed, moving, warp(moving, ddf), gain)
    result.diagnostics |= mode_figures
    result.diagnostics["fold_percent_mean"] = float(fold_percentage(ddf)[0])
    if labels is not None and labels.fixed_label is not None:
        before = space.warp_labels(labels.moving_label, torch.zeros(3, *space.fixed.shape))
        after = space.warp_labels(labels.moving_label, torch.from_numpy(result.displacement))
        result.diagnostics |= {"dice_before": labels.dice(before), "dice_mean_field": labels.dice(after)}
        assert result.labels is not None
        result.diagnostics["dice_after"] = labels.dice(torch.from_numpy(result.labels.label))
    return stored, result


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
        brain=brain_mask(item["fixed_file"])[0].numpy(),
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
    item: Mapping[str, Any],
    stored: StoredPosterior,
    settings: Settings,
    fields: FieldSummary,
    fixed: Tensor,
    moving: Tensor,
    warped: Tensor,
    gain: float | None,
) -> dict[str, Any]:
    """What `diagnostics.json` says about the sampling and the fit."""
    posterior, brain = stored.posterior, fixed[0, 0] > 0
    window = 5
    before, after = (local_ncc(fixed, image, window)[0, 0][brain].mean() for image in (moving, warped))
    out: dict[str, Any] = {
        "moving": stored.names[0],
        "fixed": stored.names[1],
        "alignment": item["alignment"].description,
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
        "ncc_before": float(before),
        "ncc_after": float(after),
        "fold_percent": fields.fold_percent,
        "std_mean_mm": float(fields.std[brain].mean()),
        "std_95_mm": float(fields.std[brain].float().quantile(0.95)) if brain.sum() < 2**24 else float("nan"),
        "work_shape": list(stored.space.work.shape),
        "work_spacing_mm": [round(float(v), 4) for v in stored.space.work.spacing],
    }
    if gain is not None:
        out |= {"refine_steps": settings.refine_steps, "refine_gain_log_posterior": gain}
    return out
