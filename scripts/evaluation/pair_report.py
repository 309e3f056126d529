"""Everything the paper's tables say about one pair: accuracy, folds, calibration, and how well the sampling went.

Samples are judged in the fixed file's space, as a person gets them from `run inference`: alignment, detail and the
rounding of the proposal included.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from scripts.core.errors import DataError
from scripts.evaluation.calibration import (
    binary_entropy,
    brier_score,
    log_score,
    reliability_curve,
    sparsification_curves,
    voxel_error,
)
from scripts.evaluation.landmark_scores import LANDMARK_SCORES, LandmarkFolder, Marks, score_landmarks
from scripts.evaluation.pair_result import CURVES, FRACTIONS, LEVELS, RIBBON_SCORES, VOLUME_SCORES, PairResult
from scripts.evaluation.results import structure_name
from scripts.evaluation.ribbon import label_ribbons
from scripts.gaussian.noise import fold
from scripts.posterior.calibrated import VolumeErrors
from scripts.posterior.conclusions import figure_window
from scripts.posterior.dice import dice_per_structure, label_counts
from scripts.posterior.field_moments import FieldMoments
from scripts.posterior.folds import fold_percentage
from scripts.posterior.label_maps import check_labels, encode_labels
from scripts.posterior.label_samples import LabelSamples
from scripts.posterior.pair_images import PairImages
from scripts.posterior.posterior import Posterior
from scripts.posterior.sampler import Sampler
from scripts.posterior.settings import Clock
from scripts.registration.local_correlation import local_ncc
from scripts.registration.warp import warp

FOLDS_OF = 8
"""So many samples are looked at for folds."""


class LabeledPair(NamedTuple):
    """One pair to evaluate."""

    images: PairImages
    fixed_label: Tensor  # label values on the fixed file's grid, [X, Y, Z]
    moving_label: Tensor  # on the moving file's grid, [X', Y', Z']

    @property
    def names(self) -> tuple[str, str]:
        """Of the fixed and the moving scan."""
        moving, fixed = self.images.names
        return fixed, moving

    @classmethod
    def of_item(cls, item: Mapping[str, Any], factor: int = 2, device: torch.device | str = "cpu") -> Self:
        """Take an item of a dataset: two scans on one grid, or two files that were prepared as for inference.

        Args:
            factor: image voxels along the edge of a field voxel.

        Raises:
            DataError: when a label map is missing.
        """
        names = (str(item.get("moving_name", "moving")), str(item.get("fixed_name", "fixed")))
        missing = [key for key in ("fixed", "moving", "fixed_label", "moving_label") if key not in item]
        if missing:
            raise DataError(f"evaluation needs images and label maps, but {names[::-1]} has no {', '.join(missing)}")
        if "alignment" in item:
            images = PairImages.of_item(item, factor, device)
        else:
            moving, fixed = (item[key][None].to(device) for key in ("moving", "fixed"))
            images = PairImages.on_one_grid(moving, fixed, factor, names)
        fixed_label, moving_label = (item[f"{key}_label"][0].as_subclass(Tensor) for key in ("fixed", "moving"))
        return cls(images, fixed_label.to(device), moving_label.to(device))


def pair_seed(names: tuple[str, str], seed: int = 0) -> int:
    """A seed of the pair's own, made of its scans' names: its result depends on no other pair."""
    return fold(seed, 1 + zlib.crc32("\n".join(names).encode()))


def evaluate_pair(
    sampler: Sampler,
    pair: LabeledPair,
    labels: Sequence[int],
    radius: int = 3,
    landmarks: LandmarkFolder | None = None,
) -> PairResult:
    """Sample the posterior of one pair and score it; see :func:`score`."""
    clock = Clock()
    posterior = sampler.posterior(pair.images, clock=clock)
    with clock("evaluation"):
        result = score(posterior, pair, labels, radius, None if landmarks is None else landmarks.marks(*pair.names))
    before = sum(clock.seconds.get(part, 0.0) for part in ("network", "refinement", "detail"))
    seconds = {"network": before, **{part: clock.seconds[part] for part in ("proposals", "evaluation")}}
    return replace(result, pair={**result.pair, **{f"seconds_{part}": value for part, value in seconds.items()}})


@torch.no_grad()
def score(
    posterior: Posterior, pair: LabeledPair, labels: Sequence[int], radius: int = 3, marks: Marks | None = None
) -> PairResult:
    """Score the posterior of one pair by its label maps; without the seconds that it took."""
    labels, space, truth = check_labels(labels), posterior.space, pair.fixed_label
    samples, moments, fold_oracle = LabelSamples(labels, space.fixed.voxel_volume, truth), FieldMoments(), math.nan
    folds: list[float] = []
    for _, count, points in posterior.samples():
        displacement = space.displacement(points[None])  # [1, 3, X, Y, Z] in mm, the only one in memory
        local = None if posterior.local_weights is None else posterior.local_weights(displacement[0])
        samples.add(space.warp_labels(pair.moving_label, displacement[0]), count, local)
        if samples.oracle == len(samples) - 1:  # the best so far
            fold_oracle = float(fold_percentage(space.in_fixed_voxels(displacement)))
        if len(folds) < FOLDS_OF:
            folds.append(float(fold_percentage(space.in_fixed_voxels(displacement))))
        moments.add(displacement, count)

    samples.smooth(posterior.spread.blur)

    def dice_and_folds(displacement: Tensor) -> tuple[Tensor, float]:
        dice = dice_per_structure(space.warp_labels(pair.moving_label, displacement[0]), truth, labels)
        return dice, float(fold_percentage(space.in_fixed_voxels(displacement)))

    dice_before, _ = dice_and_folds(torch.zeros(1, 3, *truth.shape, device=truth.device))
    dice_mu, fold_mu = dice_and_folds(space.displacement(posterior.center()[None]))
    dice_mean, fold_mean = dice_and_folds(space.displacement(posterior.mean[None]))
    dice = {
        "dice_mu": dice_mu, "dice_mean": dice_mean, "dice_oracle": samples.dice[samples.oracle],
        "dice_labels": dice_per_structure(samples.summary().label, truth, labels),
        "dice_sample": (samples.weights[:, None] * samples.dice).sum(0),
    }  # fmt: skip

    total_variance = moments.variance[0].sum(0)  # [X, Y, Z], mm²
    ribbons, curves = score_ribbons(samples, total_variance / 3, truth, radius)
    variance = float(total_variance[truth > 0].double().mean())
    draws = posterior.draws
    scores = {
        "dice_before": float(dice_before.nanmean()),
        **{name: float(values.nanmean()) for name, values in dice.items()},
        "fold_mu": fold_mu,
        "fold_mean": fold_mean,
        "fold_oracle": fold_oracle,
        "fold_samples": sum(folds) / len(folds),
        **score_classes(samples, truth, radius),
        **(dict.fromkeys(LANDMARK_SCORES, math.nan) if marks is None else score_landmarks(posterior, marks)),
        "displacement_variance": variance / 3,
        "displacement_variance_total": variance,
        **_correlation(posterior, pair.images),
        "ess": draws.ess,
        "khat": draws.khat if math.isfinite(draws.khat) else math.nan,
        "max_weight": float(draws.weights.max()),
        "unique": float(len(samples)),
        "samples": moments.weight,
    }
    shrunk = abs(float(np.linalg.det(space.alignment[:3, :3])))
    moving = label_counts(encode_labels(pair.moving_label, labels), len(labels)) * space.moving.voxel_volume / shrunk
    volumes = score_volumes(samples, truth, posterior.calibration.volumes, moving.tolist())
    structures = {**{name: values.tolist() for name, values in dice.items()}, **ribbons, **volumes}
    return PairResult(*pair.names, labels, structures, scores, curves)


def _correlation(posterior: Posterior, images: PairImages) -> dict[str, float]:
    """Mean squared local correlation in the fixed brain on the work grid, before and after the mean field."""
    brain, window = images.fixed[0, 0] > 0, figure_window(posterior.target)
    warped = warp(images.moving, posterior.space.on_work(posterior.mean[None]))
    return {
        name: float(local_ncc(images.fixed, image, window)[0, 0][brain].mean())
        for name, image in (("ncc_before", images.moving), ("ncc_after", warped))
    }


def score_ribbons(
    samples: LabelSamples, variance: Tensor, truth: Tensor, radius: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Calibration of every structure in its ribbon, and the curves of all together.

    Args:
        variance: of the displacements in mm², mean over the components, shape [X, Y, Z].
        truth: label values, shape [X, Y, Z].
    """
    codes = encode_labels(truth, samples.labels)
    rows: list[list[Tensor]] = []
    bins: list[Tensor] = []
    kept: list[Tensor] = []
    fractions = torch.tensor(FRACTIONS, dtype=torch.float64, device=truth.device)
    for i, ribbon in enumerate(label_ribbons(truth, samples.labels, radius)):
        probability = samples.probability(samples.labels[i], ribbon.box)[ribbon.mask]  # [N]
        inside = ribbon.select(codes) == i + 1
        spread = ribbon.select(variance).double()
        entropy, error = binary_entropy(probability), voxel_error(probability, inside)
        by_label, by_spread = (sparsification_curves(score, error) for score in (entropy, spread))
        reliability = reliability_curve(probability, inside)
        proper = (brier_score(probability, inside), log_score(probability, inside, samples.total_weight))
        rows.append([reliability.error, by_label.area, by_spread.area, entropy.mean(), spread.mean(), *proper])
        sums = [reliability.voxels * share.nan_to_num() for share in (reliability.confidence, reliability.accuracy)]
        bins.append(torch.stack([reliability.voxels.double(), *sums]))  # [3, M]
        if len(error):
            place = (fractions * len(error)).long()
            kept.append(torch.stack([by_label.observed, by_spread.observed, by_label.oracle])[:, place])  # [3, F]
    curves = [*torch.stack(bins).sum(0), *(torch.stack(kept).mean(0) if kept else fractions.new_empty(3, 0))]
    columns = dict(zip(RIBBON_SCORES, torch.stack([torch.stack(row) for row in rows]).T.tolist(), strict=True))
    return columns, {name: values.tolist() for name, values in zip(CURVES, curves, strict=True)}


def score_classes(samples: LabelSamples, truth: Tensor, radius: int) -> dict[str, float]:
    """Proper scores of all structures and "none of them" together, in the union of the ribbons."""
    codes = encode_labels(truth, samples.labels)
    near = torch.zeros(truth.shape, dtype=torch.bool, device=truth.device)
    for ribbon in label_ribbons(truth, samples.labels, radius):
        near[ribbon.box] |= ribbon.mask
    squares, given, none = (torch.zeros(truth.shape, dtype=torch.float64, device=truth.device) for _ in range(3))
    none += 1
    for code, label in enumerate(samples.labels, start=1):
        probability = samples.probability(label)
        squares += probability.square()
        none -= probability
        given = torch.where(codes == code, probability, given)
    given = torch.where(codes == 0, none, given)[near]
    brier = (squares + none.square())[near] - 2 * given + 1  # Σ (p − y)² = Σ p² − 2 p_true + 1
    return {
        "brier_classes": float(brier.mean()),
        "log_score_classes": float(log_score(given, torch.ones_like(given), samples.total_weight)),
    }


def score_volumes(
    samples: LabelSamples, truth: Tensor, errors: VolumeErrors | None = None, moving: Sequence[float] = ()
) -> dict[str, list[float]]:
    """Are volumes where their intervals say? NaN for structures that the fixed person has not.

    Args:
        errors: intervals as calibrated, for another rater's volume; None for those of the samples alone.
        moving: volumes of the moving person's structures after the alignment, mm³; for `errors`.
    """
    codes = encode_labels(truth, samples.labels)
    true = label_counts(codes, len(samples.labels)).double() * samples.voxel_volume
    true[true == 0] = math.nan
    mean, ends = samples.volume_interval().mean, {}
    if errors is None:
        deviation = samples.volumes.std(0) if len(samples) > 1 else torch.zeros_like(true)
        for level in LEVELS:
            _, lower, upper = samples.volume_interval(level / 100)
            ends[level] = torch.stack([lower, upper])
    else:
        names, stds = [structure_name(label) for label in samples.labels], samples.log_volume_std.tolist()
        centers = list(map(errors.center, names, mean.tolist(), moving))
        mean = torch.tensor(centers, dtype=torch.float64)
        deviation = mean * torch.tensor([errors.deviation(*each, rater=True) for each in zip(names, stds, strict=True)])
        for level in LEVELS:
            parts = zip(names, centers, stds, strict=True)
            ends[level] = torch.tensor([errors.interval(*part, level) for part in parts], dtype=torch.float64).T
    deviation[deviation == 0] = math.nan
    columns = {"volume": mean + 0 * true, "volume_true": true, "volume_z_square": ((true - mean) / deviation).square()}
    for level, (lower, upper) in ends.items():
        inside = ((lower <= true) & (true <= upper)).double()
        columns |= {f"inside_{level}": inside + 0 * true, f"width_{level}": (upper - lower) / true}
    return {name: columns[name].tolist() for name in VOLUME_SCORES}
