"""A registered pair, given what an expert knows: conditioned proposals, new weights, all files of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from scripts.data.errors import DataError
from scripts.data.loading import LoadVolumed
from scripts.data.pair_again import pair_again_transforms
from scripts.data.pair_input import FILE_KEYS
from scripts.evidence.landmarks import Landmarks
from scripts.evidence.outline import Outline
from scripts.gaussian import StructuredGaussian
from scripts.gaussian.stencil import CHANNELS
from scripts.inference.chunks import chunk_that_fits
from scripts.inference.conditioning import ConditionedGaussian
from scripts.inference.discrepancy import LENGTHS_MM, condition
from scripts.inference.observations import Observations
from scripts.inference.proposals import sample_posterior
from scripts.io.grid import Grid
from scripts.io.posterior_file import StoredPosterior
from scripts.io.target_settings import make_target
from scripts.registration.transform import DisplacementTransform
from scripts.summary.result import RegistrationResult
from scripts.workflows.conclusions import conclude, model_window
from scripts.workflows.progress import progress_of
from scripts.workflows.settings import Clock, Settings

SURPRISING = 1e-3
"""Evidence that the proposal holds for less likely than this is worth a word."""


@dataclass
class Knowledge:
    """What an expert knows about a pair.

    Attributes:
        landmarks: corresponding points; None for none.
        corrected_label: path of a label map of the fixed image; None for none.
        structures: labels of it that count; empty for those that differ from `labels.nii.gz` of the result, or, where
            there is none, for all.
        outline_std: of the corrected outlines, mm.
        discrepancy: allow for a local error of the proposal, see :mod:`~scripts.inference.discrepancy`.
    """

    landmarks: Landmarks | None = None
    corrected_label: str | None = None
    structures: Sequence[int] = field(default_factory=tuple)
    outline_std: float = 1.0
    discrepancy: bool = True


def prepare_again(stored: StoredPosterior, files: Mapping[str, str]) -> dict[str, Any]:
    """Load and prepare the files of a registration once more.

    Args:
        stored: its posterior.
        files: paths by role that replace those which the posterior remembers.

    Returns:
        The item as :func:`~scripts.data.pair_input.pair_input_transforms` made it.

    Raises:
        DataError: for a posterior that remembers nothing, or files that are not there or others.
    """
    if not stored.target:
        raise DataError("posterior: made by an earlier version, without what its weights need; register the pair again")
    known = {key: path for key, path in {**stored.files, **files}.items() if key in FILE_KEYS}
    for role in ("fixed", "moving"):
        if role not in known:
            raise DataError(f"posterior: it does not say where the {role} image is; name it with --{role}")
        if not Path(known[role]).expanduser().exists():
            raise DataError(f"{role} image {known[role]}: not there any more; name it with --{role}")
    # A label map that has gone away must not stop what does not need it, unless it was asked for. A mask that has gone
    # away must: without it the images would be prepared otherwise than for the registration.
    paths = {
        key: str(Path(path).expanduser())
        for key, path in known.items()
        if key in files or not key.endswith("label") or Path(path).exists()
    }
    space = stored.space
    return dict(pair_again_transforms(space.fixed, space.moving, space.work, space.alignment)(paths))


@torch.no_grad()
def condition_pair(
    item: Mapping[str, Any],
    stored: StoredPosterior,
    knowledge: Knowledge,
    settings: Settings,
    device: torch.device,
    label_names: Mapping[int, str] | None = None,
    clock: Clock | None = None,
    folder: Path | None = None,
) -> tuple[StoredPosterior, RegistrationResult]:
    """The posterior given the images and what the expert knows, and what it says.

    Args:
        item: the pair, see :func:`prepare_again`.
        stored: the registration's posterior.
        knowledge: what is known.
        settings: numbers of proposals and samples, seed; temperature and scale are the registration's.
        device: where to compute.
        label_names: of the moving label map's values.
        clock: gets the seconds of each part.
        folder: of the registration's result, to find out which labels were corrected.

    Raises:
        DataError: for a posterior that is conditioned already or of a velocity, and for evidence that is not usable.
    """
    clock = clock or Clock()
    if stored.observations is not None:
        raise DataError(
            "posterior: it is conditioned already; give the registration's own posterior.pt and all you know at once"
        )
    if not isinstance(stored.transform, DisplacementTransform):
        raise DataError(
            "posterior: its fields are velocities, and where a point goes is not linear in a velocity; "
            "conditioning needs a model of displacements"
        )
    proposal = stored.layout.gaussian(stored.raw)
    with clock("conditioning"):
        step = float(stored.space.work.spacing.mean()) * stored.space.factor
        lengths = [length / step for length in LENGTHS_MM] if knowledge.discrepancy else []
        parts, outline = _observations(item, stored, knowledge, proposal, lengths, folder)
        observations = Observations.join(parts)
        gaussian, discrepancy = condition(proposal, observations, lengths)
        raw = stored.raw.clone()
        raw[:, :CHANNELS] = gaussian.proposal.mean
    fixed, moving = (item[key].as_tensor()[None].to(device) for key in ("fixed", "moving"))
    mask = item["fixed_mask"].as_tensor()[None].to(device) if "fixed_mask" in item else None
    target = make_target(stored.target, stored.transform).to(device)
    chunk = settings.chunk or chunk_that_fits(fixed[0, 0].numel(), device)
    with clock("proposals"), progress_of("proposals", settings.num_proposals, settings.progress) as advance:
        posterior = sample_posterior(
            gaussian, target, target.prepare(moving, fixed, mask)[0], num_proposals=settings.num_proposals,
            num_samples=settings.num_samples, temperature=stored.temperature, scale=stored.scale, seed=settings.seed,
            chunk=chunk, progress=advance, evidence=None if outline is None else outline.log_correction,
        )  # fmt: skip
    given = StoredPosterior(
        raw, stored.layout, stored.transform, stored.space, posterior, stored.temperature, stored.scale, stored.mean,
        stored.names, stored.target, stored.files, observations,
    )  # fmt: skip
    result = conclude(item, given, (fixed, moving), settings, chunk, label_names, clock, model_window(target))
    before = ConditionedGaussian(proposal, observations)  # the one that can be surprised
    figures = _figures(knowledge, before, outline, stored, given)
    figures["discrepancy_mm"] = 0.0 if discrepancy is None else discrepancy.amplitude * step / stored.space.factor
    figures["discrepancy_length_mm"] = None if discrepancy is None else discrepancy.length * step
    result.diagnostics["conditioning"] = figures
    result.warnings += _remarks(figures)
    return given, result


def _observations(
    item: Mapping[str, Any],
    stored: StoredPosterior,
    knowledge: Knowledge,
    proposal: StructuredGaussian,
    lengths: Sequence[float],
    folder: Path | None,
) -> tuple[list[Observations], Outline | None]:
    """What is known, as observations of the field."""
    parts = [] if knowledge.landmarks is None else [knowledge.landmarks.observations(stored.space)]
    if knowledge.corrected_label is None:
        return parts, None
    if "moving_label" not in item:
        raise DataError("--corrected_label needs the moving image's own label map: name it with --moving_label")
    corrected = _label_map(knowledge.corrected_label, "corrected_label", stored.space.fixed)
    structures = list(knowledge.structures) or corrected_structures(corrected, folder, stored.space.fixed)
    moving_label = item["moving_label"].as_tensor()[0].numpy()
    if not knowledge.structures:  # what the moving map does not have was not propagated, and cannot be corrected
        structures = [value for value in structures if (moving_label == value).any()]
        if not structures:
            raise DataError("corrected_label: none of its structures is in the moving label map")
    outline = Outline(corrected, moving_label, structures, stored.space, knowledge.outline_std)
    return [*parts, outline.condition(proposal, parts, lengths)], outline


def corrected_structures(corrected: np.ndarray, folder: Path | None, grid: Grid) -> list[int]:
    """The labels of a corrected map that differ from those of the result in `folder`; all where there is no result.

    Raises:
        DataError: when the map is empty, or nothing was corrected.
    """
    values = [int(value) for value in np.unique(corrected) if value != 0]
    if not values:
        raise DataError("corrected_label: the map is empty, all values are 0")
    before = None if folder is None else folder / "labels.nii.gz"
    if before is None or not before.exists():
        return values
    propagated = _label_map(str(before), "labels", grid)
    changed = [value for value in values if ((corrected == value) != (propagated == value)).any()]
    if not changed:
        raise DataError(f"corrected_label: no structure differs from {before}; nothing was corrected")
    return changed


def _label_map(path: str, role: str, grid: Grid) -> np.ndarray:
    volume = LoadVolumed((role,))({role: str(Path(path).expanduser())})[role]
    found = Grid.of(volume)
    if not found.same_as(grid, 0.01 * float(grid.spacing.min())):
        raise DataError(
            f"{role} {path}: its grid (shape {found.shape}) is not that of the fixed image (shape {grid.shape})"
        )
    return volume.as_tensor()[0].round().to(torch.int32).numpy()


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
