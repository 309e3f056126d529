"""The posterior of one pair: its weighted samples, and how they lie in space. Complete when it exists.

The samples themselves are not kept: 80 at 2 mm would take 100 MB. They are drawn again, to the bit, from the proposal's
parameters and the seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scripts.inference.chunks import CHUNK
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.observations import Observations
from scripts.inference.proposals import Draws, redraw
from scripts.networks.layout import Layout, Proposal
from scripts.posterior.calibrated import Calibration
from scripts.posterior.label_samples import LabelSamples
from scripts.posterior.local_weights import LocalWeights
from scripts.posterior.spread import NetworkSpread, Spread
from scripts.registration.space import PairSpace
from scripts.registration.target import Target


@dataclass(eq=False)
class Posterior:
    """Made by :class:`~scripts.posterior.sampler.Sampler`, or read by :func:`~scripts.posterior.posterior_file.load`.

    Attributes:
        raw: parameters of the proposal, rounded as a file keeps them, [1, C, x, y, z], float32.
        layout: how `raw` is read.
        target: what the weights were made of.
        space: the grids, and the detail that all samples share.
        draws: log-densities, weights, and which proposals were resampled.
        mean: mean of the resampled fields' control points in work voxels, [3, x, y, z].
        names: of the moving and the fixed image.
        files: paths of the files that were registered, by their roles; empty for images from nowhere.
        observations: what the proposal was conditioned on; None for nothing.
        steps: `refine_steps` and `detail_steps` that led to the proposal's mean.
        gains: what these steps gained in the log-posterior, under the same names.
        conditioning: figures of the evidence and of what it did; empty without any.
        spread: how it was made, and how labels are weighed.
        images: the fixed and the moving file's volumes, [X, Y, Z] and [X', Y', Z'], which local weights need; None
            where they are not at hand.
        calibration: what was found out about such samples on people with labels.
        of_earlier_version: it was read from a file that does not say what its weights were made of.
    """

    raw: Tensor
    layout: Layout
    target: Target
    space: PairSpace
    draws: Draws
    mean: Tensor
    names: tuple[str, str] = ("moving", "fixed")
    files: Mapping[str, str] = field(default_factory=dict)
    observations: Observations | None = None
    steps: Mapping[str, int] = field(default_factory=dict)
    gains: Mapping[str, float] = field(default_factory=dict)
    conditioning: Mapping[str, Any] = field(default_factory=dict)
    spread: Spread = field(default_factory=NetworkSpread)
    images: tuple[Tensor, Tensor] | None = None
    calibration: Calibration = field(default_factory=Calibration)
    of_earlier_version: bool = False

    @cached_property
    def proposal(self) -> Proposal:
        """What the samples are drawn from, conditioned on the observations if there are any."""
        proposal = self.layout.proposal(self.raw)
        return proposal if self.observations is None else ConditionedGaussian(proposal, self.observations)  # type: ignore[arg-type]

    @torch.no_grad()
    def control_points(self, indices: list[int], chunk: int = CHUNK) -> Iterator[Tensor]:
        """Proposals again, each as control points in work voxels [3, x, y, z]."""
        for _, fields in redraw(self.proposal, indices, self.draws.proposals.seed, chunk):
            yield from self.target.transform.control_points(fields)

    def samples(self, chunk: int = CHUNK) -> Iterator[tuple[int, int, Tensor]]:
        """The resampled fields, each once: (index of the proposal, how often, control points [3, x, y, z])."""
        counts = self.draws.counts()
        for (index, count), points in zip(counts.items(), self.control_points(list(counts), chunk), strict=True):
            yield index, count, points

    def center(self) -> Tensor:
        """Control points of the proposal's own mean μ, [3, x, y, z]."""
        return self.target.transform.control_points(self.proposal.mean)[0]

    @cached_property
    def local_weights(self) -> LocalWeights | None:
        """Weights of each voxel and sample; None where all voxels have the sample's own."""
        if not self.spread.local or self.images is None:
            return None
        return LocalWeights(*self.images, self.space, self.space.displacement(self.mean[None])[0])

    def labels(self, moving_label: Tensor, values: list[int], chunk: int = CHUNK) -> LabelSamples:
        """What samples say about structures on the fixed file's grid; `moving_label` is [X', Y', Z']."""
        out = LabelSamples(values, voxel_volume=self.space.fixed.voxel_volume)
        for _, count, points in self.samples(chunk):
            displacement = self.space.displacement(points[None])[0].cpu()
            local = None if self.local_weights is None else self.local_weights(displacement)
            out.add(self.space.warp_labels(moving_label, displacement), count, local)
        out.smooth(self.spread.blur)
        return out


def mean_of(proposal: Proposal, target: Target, draws: Draws, chunk: int = CHUNK) -> Tensor:
    """Mean of the resampled fields' control points, [3, x, y, z]."""
    counts = draws.counts()
    shares = torch.tensor(list(counts.values()), dtype=torch.float64) / sum(counts.values())
    seed = draws.proposals.seed
    if target.transform.linear:
        return target.transform.control_points(proposal.average(list(counts), shares, seed))[0]
    total = torch.zeros_like(proposal.mean[0])
    for part, fields in redraw(proposal, list(counts), seed, chunk):
        weights = shares[part.start : part.stop].to(fields)
        total += torch.einsum("n,n...->...", weights, target.transform.control_points(fields))
    return total
