"""The posterior of one pair on disk: what is needed to draw every weighted sample again, to the bit.

The file holds the proposal's parameters, the seed and the log-densities, not the samples: 80 samples at 2 mm would
take 100 MB, the parameters take 17. L, R and detail are kept in half precision. That loses nothing, because inference
rounds them before it uses them: the rounded Gaussian is the proposal (:func:`rounded`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from scripts.core.checkpoint import read, save_atomically
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.gaussian import StructuredGaussian
from scripts.gaussian.stencil import CHANNELS
from scripts.inference.chunks import CHUNK
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.observations import Observations
from scripts.inference.proposals import Posterior, Weighted, redraw
from scripts.networks.layout import ProposalLayout
from scripts.registration.space import PairSpace
from scripts.registration.transform import DisplacementTransform, VelocityTransform

FORMAT = "structured-sir posterior"
VERSION = 4
"""1: without `target`, `files` and `observations`. Read, but cannot be conditioned. 2: without `detail`. 3: without
`steps`."""


def rounded(raw: Tensor) -> Tensor:
    """The network's output [1, C, x, y, z] with all but the mean rounded to half precision.

    Raises:
        DataError: for numbers beyond half precision; a trained network makes none.
    """
    out = raw.clone()
    out[:, CHANNELS:] = raw[:, CHANNELS:].half()
    if not bool(torch.isfinite(out).all()):
        raise DataError("the network's output is not finite in half precision; are these the right weights?")
    return out


@dataclass
class StoredPosterior:
    """The weighted samples of one pair, and how they lie in space.

    Attributes:
        raw: parameters of the proposal, rounded, shape [1, C, x, y, z], float32.
        layout: what the channels of `raw` mean.
        transform: what a sampled field means.
        space: the grids.
        posterior: log-densities, weights, and which proposals were resampled.
        temperature: T of the weights.
        scale: σ_α of the weights.
        mean: mean of the resampled fields' control points in work voxels, shape [3, x, y, z].
        names: of the moving and the fixed image.
        target: what the weights were made of, see :func:`~scripts.posterior.target_settings.target_settings`.
        files: paths of the files that were registered, by their roles.
        observations: what the proposal was conditioned on; None for nothing.
        steps: `refine_steps` and `detail_steps` that led to the mean; empty if not known.
    """

    raw: Tensor
    layout: ProposalLayout
    transform: nn.Module
    space: PairSpace
    posterior: Posterior
    temperature: float
    scale: float
    mean: Tensor
    names: tuple[str, str]
    target: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    observations: Observations | None = None
    steps: dict[str, int] = field(default_factory=dict)

    def gaussian(self) -> StructuredGaussian:
        """The proposal, conditioned on the observations if there are any."""
        gaussian = self.layout.gaussian(self.raw)
        return gaussian if self.observations is None else ConditionedGaussian(gaussian, self.observations)

    @torch.no_grad()
    def samples(self, chunk: int = CHUNK) -> Iterator[tuple[int, int, Tensor]]:
        """The resampled fields, each once: (index of the proposal, how often, control points [3, x, y, z])."""
        indices, counts = self.posterior.resampled.unique(return_counts=True)
        for part, fields in redraw(self.gaussian(), indices.tolist(), self.posterior.proposals.seed, chunk):
            for i, points in zip(part, self.transform.control_points(fields), strict=True):  # type: ignore[operator]
                yield int(indices[i]), int(counts[i]), points


def save_posterior(stored: StoredPosterior, path: str | Path) -> None:
    """Write the file, atomically.

    Raises:
        CheckpointError: if it cannot be written.
    """
    layout, proposals, space = stored.layout, stored.posterior.proposals, stored.space
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "mean_of_proposal": stored.raw[0, :CHANNELS].cpu().clone(),  # a view would drag all of raw into the file
        "parameters": stored.raw[0, CHANNELS:].half().cpu(),
        "layout": {
            "cross_channel": layout.stencil.cross_channel,
            "rank": layout.rank,
            "initial_std": layout.stencil.initial_std,
            "dominance": layout.stencil.dominance,
        },
        "transform": _transform_settings(stored.transform),
        "seed": proposals.seed,
        "log_likelihood": proposals.log_likelihood.cpu(),
        "log_prior": proposals.log_prior.cpu(),
        "log_proposal": proposals.log_proposal.cpu(),
        "log_evidence": None if proposals.log_evidence is None else proposals.log_evidence.cpu(),
        "weights": stored.posterior.weights.cpu(),
        "resampled": stored.posterior.resampled.cpu(),
        "ess": stored.posterior.ess,
        "khat": stored.posterior.khat,
        "temperature": stored.temperature,
        "scale": stored.scale,
        "mean_of_samples": stored.mean.cpu().clone(),
        "names": list(stored.names),
        "alignment": torch.from_numpy(np.ascontiguousarray(space.alignment)),
        "detail": None if space.detail is None else space.detail.half().cpu(),
        "target": stored.target,
        "files": stored.files,
        "observations": None if stored.observations is None else dict(vars(stored.observations)),
        "steps": stored.steps,
    }
    for name in ("fixed", "moving", "work"):
        grid: Grid = getattr(space, name)
        content[f"{name}_grid"] = {"shape": list(grid.shape), "affine": torch.from_numpy(grid.affine.copy())}
    save_atomically(content, path)


def load_posterior(path: str | Path, device: torch.device | str = "cpu") -> StoredPosterior:
    """Read the file; nothing in it is run.

    Raises:
        DataError: when it is no such file, or one of a later version.
        CheckpointError: when it cannot be read.
    """
    content = read(path)
    if content.get("format") != FORMAT:
        raise DataError(f"posterior {path}: not a posterior.pt of `run inference`")
    if content["version"] > VERSION:
        raise DataError(f"posterior {path}: version {content['version']}, but this bundle reads up to {VERSION}")
    layout = ProposalLayout(**content["layout"])
    raw = torch.cat([content["mean_of_proposal"], content["parameters"].float()])[None].to(device)
    proposals = Weighted(
        content["log_likelihood"], content["log_prior"], content["log_proposal"], content["seed"],
        content.get("log_evidence"),
    )  # fmt: skip
    posterior = Posterior(proposals, content["weights"], content["resampled"], content["ess"], content["khat"])
    grids = {
        name: Grid(tuple(content[f"{name}_grid"]["shape"]), content[f"{name}_grid"]["affine"].numpy())
        for name in ("fixed", "moving", "work")
    }
    transform = _make_transform(content["transform"])
    detail = content.get("detail")
    detail = None if detail is None else detail.float().to(device)
    space = PairSpace(**grids, alignment=content["alignment"].numpy(), factor=transform.factor, detail=detail)
    moving_name, fixed_name = content["names"]
    return StoredPosterior(
        raw,
        layout,
        transform,
        space,
        posterior,
        content["temperature"],
        content["scale"],
        content["mean_of_samples"].to(device),
        (moving_name, fixed_name),
        content.get("target", {}),
        content.get("files", {}),
        Observations(**content["observations"]) if content.get("observations") else None,
        content.get("steps", {}),
    )


def _transform_settings(transform: nn.Module) -> dict[str, Any]:
    if isinstance(transform, VelocityTransform):
        return {"kind": "velocity", "factor": transform.factor, "steps": transform.steps}
    if isinstance(transform, DisplacementTransform):
        return {"kind": "displacement", "factor": transform.factor}
    raise DataError(f"a posterior with {type(transform).__name__} cannot be stored")


def _make_transform(settings: dict[str, Any]) -> DisplacementTransform | VelocityTransform:
    kinds = {"displacement": DisplacementTransform, "velocity": VelocityTransform}
    settings = dict(settings)
    return kinds[settings.pop("kind")](**settings)
