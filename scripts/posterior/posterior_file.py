"""A posterior on disk, `posterior.pt`: what is needed to draw every weighted sample again, to the bit.

The file holds the proposal's parameters, the seed and the log-densities, not the samples. L, R and detail are kept in
half precision. That loses nothing, because sampling rounds them before it uses them: the rounded proposal is the
proposal (:meth:`~scripts.networks.layout.Layout.rounded`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.core.checkpoint import read, save_atomically
from scripts.core.described import make
from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.inference.observations import Observations
from scripts.inference.proposals import Draws, Weighted
from scripts.networks.layout import Layout
from scripts.posterior.calibrated import Calibration
from scripts.posterior.posterior import Posterior
from scripts.posterior.spread import Spread
from scripts.registration.space import PairSpace
from scripts.registration.target import make_target

FORMAT = "structured-sir posterior"
VERSION = 6
"""1: without `target`, `files` and `observations`. Read, but cannot be conditioned. 2: without `detail`. 3: without
`steps`. 4: the layout was always a Gaussian's, the transform stood beside the target. 5: the network's spread alone."""
GRIDS = ("fixed", "moving", "work")


def save(posterior: Posterior, path: str | Path) -> None:
    """Write the file, atomically. Raises CheckpointError if it cannot be written."""
    draws, space, split = posterior.draws, posterior.space, posterior.layout.mean_channels
    weighted = draws.proposals
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "mean_of_proposal": posterior.raw[0, :split].cpu().clone(),  # a view would drag all of raw into the file
        "parameters": posterior.raw[0, split:].half().cpu(),
        "layout": posterior.layout.settings(),
        "target": posterior.target.settings(),
        "spread": posterior.spread.settings(),
        "calibration": posterior.calibration.plain(),
        "seed": weighted.seed,
        "log_likelihood": weighted.log_likelihood.cpu(),
        "log_prior": weighted.log_prior.cpu(),
        "log_proposal": weighted.log_proposal.cpu(),
        "log_evidence": None if weighted.log_evidence is None else weighted.log_evidence.cpu(),
        "weights": draws.weights.cpu(),
        "resampled": draws.resampled.cpu(),
        "ess": draws.ess,
        "khat": draws.khat,
        "temperature": draws.temperature,
        "scale": draws.scale,
        "mean_of_samples": posterior.mean.cpu().clone(),
        "names": list(posterior.names),
        "alignment": torch.from_numpy(np.ascontiguousarray(space.alignment)),
        "detail": None if space.detail is None else space.detail.half().cpu(),
        "files": dict(posterior.files),
        "observations": None if posterior.observations is None else dict(vars(posterior.observations)),
        "steps": dict(posterior.steps),
        "gains": dict(posterior.gains),
        "conditioning": dict(posterior.conditioning),
    }
    for name in GRIDS:
        grid: Grid = getattr(space, name)
        content[f"{name}_grid"] = {"shape": list(grid.shape), "affine": torch.from_numpy(grid.affine.copy())}
    save_atomically(content, path)


def load(path: str | Path, device: torch.device | str = "cpu") -> Posterior:
    """Read the file, running nothing in it. Raises DataError for one of another kind or a later version."""
    content = read(path)
    if content.get("format") != FORMAT:
        raise DataError(f"posterior {path}: not a posterior.pt of `run inference`")
    if content["version"] > VERSION:
        raise DataError(f"posterior {path}: version {content['version']}, but this bundle reads up to {VERSION}")
    weighted = Weighted(
        content["log_likelihood"], content["log_prior"], content["log_proposal"], content["seed"],
        content.get("log_evidence"),
    )  # fmt: skip
    names = ("weights", "resampled", "ess", "khat", "temperature", "scale")
    draws = Draws(weighted, *(content[name] for name in names))
    grids = {
        name: Grid(tuple(content[f"{name}_grid"]["shape"]), content[f"{name}_grid"]["affine"].numpy()) for name in GRIDS
    }
    # Up to version 4 the transform stood beside the target, and in version 1 there was no target.
    parts = {**content.get("target", {}), **({"transform": content["transform"]} if "transform" in content else {})}
    target = make_target(parts).to(device)
    detail = content.get("detail")
    detail = None if detail is None else detail.float().to(device)
    space = PairSpace(**grids, alignment=content["alignment"].numpy(), factor=target.transform.factor, detail=detail)
    moving_name, fixed_name = content["names"]
    return Posterior(
        raw=torch.cat([content["mean_of_proposal"], content["parameters"].float()])[None].to(device),
        layout=make({"kind": "gaussian", **content["layout"]}, Layout),  # type: ignore[type-abstract]
        target=target,
        space=space,
        draws=draws,
        mean=content["mean_of_samples"].to(device),
        names=(moving_name, fixed_name),
        files=content.get("files", {}),
        observations=Observations(**content["observations"]) if content.get("observations") else None,
        steps=content.get("steps", {}),
        gains=content.get("gains", {}),
        conditioning=content.get("conditioning", {}),
        calibration=Calibration.of(content.get("calibration", {})),
        spread=make(content.get("spread", {"kind": "network"}), Spread),  # type: ignore[type-abstract]
        of_earlier_version="target" not in content,
    )
