"""Registering one prepared pair: network, refinement, proposals, weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.core.pair_keys import fine_key
from scripts.core.progress import progress_of
from scripts.inference.chunks import chunk_that_fits
from scripts.inference.detail import Detail, find_detail
from scripts.inference.inferer import ProposalInferer
from scripts.inference.objectives import SIRObjective
from scripts.inference.proposals import sample_posterior, spread_of
from scripts.inference.refine import refine
from scripts.posterior.conclusions import conclude, model_window
from scripts.posterior.result import RegistrationResult
from scripts.posterior.settings import TEMPERATURE, Clock, Settings
from scripts.posterior.stored import StoredPosterior, rounded
from scripts.posterior.target_settings import target_settings
from scripts.registration.space import PairSpace


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
        objective: of its training; gives the posterior and the layout, and is what refinement of all parts climbs.
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
    """The same from what the network says, see :class:`~scripts.inference.inferer.ProposalInferer`."""
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
    detail = None
    if settings.detail_steps and fine_key("fixed") in item:
        mean = target.transform.control_points(layout.mean(raw))[0]  # type: ignore[operator]
        with clock("detail"):
            detail = detail_of(item, mean, space.factor, settings, device)
        space = replace(space, detail=detail.control_points.half().float())  # as posterior.pt keeps it
    gaussian = layout.gaussian(raw)
    pair = target.prepare(moving, fixed, mask)[0]
    chunk = settings.chunk or chunk_that_fits(fixed[0, 0].numel(), device)
    trained, fitted = (float(predicted[key][0, 0]) for key in ("scale", "temperature"))
    scale = trained if trained > 0 else None
    temperature = settings.temperature
    if temperature is None:
        temperature = fitted if fitted > 0 else TEMPERATURE
    with clock("proposals"), progress_of("proposals", settings.num_proposals, settings.progress) as advance:
        posterior = sample_posterior(
            gaussian, target, pair, num_proposals=settings.num_proposals, num_samples=settings.num_samples,
            temperature=temperature, scale=scale, seed=settings.seed, chunk=chunk, progress=advance,
        )  # fmt: skip
    scale = scale if scale is not None else spread_of(posterior.proposals.log_weights)
    names = (str(item["moving_name"]), str(item["fixed_name"]))
    stored = StoredPosterior(
        raw, layout, target.transform, space, posterior, temperature, scale, raw[0, :3], names,
        target_settings(target), steps={"refine_steps": settings.refine_steps, "detail_steps": settings.detail_steps},
    )  # fmt: skip
    result = conclude(item, stored, (fixed, moving), settings, chunk, label_names, clock, model_window(target))
    if gain is not None:
        result.diagnostics |= {"refine_steps": settings.refine_steps, "refine_gain_log_posterior": gain}
    if detail is not None:
        result.diagnostics |= {"detail_steps": settings.detail_steps, "detail_gain_log_posterior": detail.gain}
    return stored, result


def detail_of(
    item: Mapping[str, Any],
    mean: Tensor,
    factor: int,
    settings: Settings,
    device: torch.device,
    evidence: Callable[[Tensor], Tensor] | None = None,
) -> Detail:
    """What the images of twice the resolution add to the mean's control points [3, x, y, z]; evidence as of
    :func:`~scripts.inference.detail.find_detail`.
    """
    keys = {role: fine_key(role) for role in ("fixed", "moving", "fixed_mask")}
    images = {role: item[key].as_tensor()[None].to(device) for role, key in keys.items() if key in item}
    with progress_of("detail", settings.detail_steps, settings.progress) as advance:
        return find_detail(
            mean, images["fixed"], images["moving"], settings.detail_steps, factor=factor,
            mask=images.get("fixed_mask"), progress=advance, evidence=evidence,
        )  # fmt: skip
