"""The steps from two images to a posterior, each once; :class:`~scripts.posterior.sampler.Sampler` has their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from scripts.core.progress import Progress
from scripts.inference.chunks import chunk_that_fits
from scripts.inference.detail import find_detail
from scripts.inference.model import Model, Weighting
from scripts.inference.observations import Observations
from scripts.inference.proposals import Evidence, sample_posterior
from scripts.inference.refine import refine_all, refine_mean
from scripts.networks.layout import Layout, Proposal
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior, mean_of
from scripts.posterior.settings import Clock, Settings
from scripts.posterior.spread import Spread
from scripts.registration.space import PairSpace
from scripts.registration.target import Pair, Target


@dataclass(eq=False)
class Found:
    """A proposal before anything is drawn from it: what `find` and conditioning make, and `draw` takes."""

    raw: Tensor  # [1, C, x, y, z], rounded
    layout: Layout
    target: Target
    space: PairSpace
    proposal: Proposal
    spread: Spread
    observations: Observations | None = None
    steps: dict[str, int] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)


@torch.no_grad()
def find(
    model: Model,
    pair: PairImages,
    settings: Settings,
    spread: Spread,
    raw: Tensor | None = None,
    clock: Clock | None = None,
) -> Found:
    """The proposal of a pair: network (or its output `raw`, [1, C, x, y, z]), refinement, detail, spread."""
    clock = clock or Clock()
    target, layout = model.target, model.layout
    if raw is None:
        with clock("network"):
            raw = model.network(torch.cat([pair.moving, pair.fixed], dim=1))
    gains: dict[str, float] = {}
    if settings.refine_steps:
        with clock("refinement"), Progress("refining", settings.refine_steps, settings.progress) as advance:
            raw, gains["refine_steps"] = _refined(model, pair, settings, raw, advance)
    space = replace(pair.space, factor=int(target.transform.factor))
    if settings.detail_steps and pair.fine:
        points = target.transform.control_points(layout.means(raw).mean(0, keepdim=True))[0]
        with clock("detail"):
            space, gains["detail_steps"] = with_detail(space, target, pair, points, settings)
    with clock("spread"):
        raw, layout = spread.around(raw, layout, target, space, pair)
        raw = layout.rounded(raw)
        proposal = layout.proposal(raw)
    steps = {"refine_steps": settings.refine_steps, "detail_steps": settings.detail_steps}
    return Found(raw, layout, target, space, proposal, spread, None, steps, gains)


def _refined(
    model: Model, pair: PairImages, settings: Settings, raw: Tensor, progress: Callable[[int], None]
) -> tuple[Tensor, float]:
    """The raw output after gradient steps on the pair, and what they gained in the log-posterior."""
    images = prepared(model.target, pair)
    if settings.refine_parts == "mean" or model.layout.out_channels == model.layout.mean_channels:
        better = refine_mean(model.layout.means(raw), model.target, images, settings.refine_steps, progress=progress)
        return model.layout.with_means(raw, better.mean), float((better.after - better.before).mean())
    every = refine_all(raw, model.objective, images, settings.refine_steps, seed=settings.seed, progress=progress)
    return every.raw, every.after - every.before


@torch.no_grad()
def draw(
    found: Found,
    pair: PairImages,
    settings: Settings,
    weighting: Weighting,
    evidence: Evidence | None = None,
    clock: Clock | None = None,
) -> Posterior:
    """Draw, weigh and resample: the posterior; `evidence` is what neither images nor proposal know."""
    clock, selects = clock or Clock(), found.spread.selects
    chunk = settings.chunk or chunk_that_fits(pair.fixed[0, 0].numel(), pair.fixed.device)
    # With evidence beside the images a choice is made in any case.
    count = settings.num_proposals if selects or evidence is not None else settings.num_samples
    if not selects:
        weighting = Weighting(0.0, 1.0)
    with clock("proposals"), Progress("proposals", count, settings.progress) as advance:
        draws = sample_posterior(
            found.proposal, found.target, prepared(found.target, pair), num_proposals=count,
            num_samples=settings.num_samples, temperature=weighting.temperature, scale=weighting.scale,
            seed=settings.seed, chunk=chunk, progress=advance, evidence=evidence,
        )  # fmt: skip
        # Where all samples count alike, their mean is the proposal's, without their noise.
        plain = not selects and evidence is None
        points = found.target.transform.control_points(found.proposal.mean)[0] if plain else None
        mean = mean_of(found.proposal, found.target, draws, chunk) if points is None else points
    posterior = Posterior(
        found.raw, found.layout, found.target, found.space, draws, mean, pair.names, pair.files, found.observations,
        found.steps, found.gains, spread=found.spread, images=pair.on_files,
    )  # fmt: skip
    posterior.proposal = found.proposal  # its factors are computed already
    return posterior


def prepared(target: Target, pair: PairImages) -> Pair:
    """What all fields of a pair share."""
    return target.prepare(pair.moving, pair.fixed, pair.mask)[0]


def with_detail(
    space: PairSpace,
    target: Target,
    pair: PairImages,
    points: Tensor,
    settings: Settings,
    evidence: Callable[[Tensor], Tensor] | None = None,
) -> tuple[PairSpace, float]:
    """The space with the detail that the pair's fine images add, and what that gained in the log-posterior.

    Args:
        points: control points of the mean field, [3, x, y, z].
        evidence: see :func:`~scripts.inference.detail.find_detail`.
    """
    with Progress("detail", settings.detail_steps, settings.progress) as advance:
        detail = find_detail(
            points, pair.fine["fixed"], pair.fine["moving"], settings.detail_steps, target=target,
            factor=space.factor, mask=pair.fine.get("fixed_mask"), progress=advance, evidence=evidence,
        )  # fmt: skip
    return replace(space, detail=detail.control_points.half().float()), detail.gain  # as posterior.pt keeps it
