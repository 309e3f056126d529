"""Everything the paper's tables say about one pair: accuracy, folds, calibration, and how well the sampling went."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from monai.data import MetaTensor
from torch import Tensor

from scripts.evaluation.calibration import binary_entropy, reliability_curve, sparsification_curves, voxel_error
from scripts.evaluation.pair_result import CURVES, FRACTIONS, PAIR_SCORES, RIBBON_SCORES, PairResult
from scripts.evaluation.ribbon import label_ribbons
from scripts.gaussian import StructuredGaussian
from scripts.gaussian.noise import fold
from scripts.inference.chunks import CHUNK
from scripts.inference.proposals import redraw, sample_posterior
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.field_moments import FieldMoments
from scripts.posterior.folds import fold_percentage
from scripts.posterior.label_maps import check_labels, encode_labels
from scripts.posterior.label_samples import LabelSamples
from scripts.registration.local_correlation import local_ncc
from scripts.registration.target import Target
from scripts.registration.warp import warp, warp_labels


class LabeledPair(NamedTuple):
    """One pair to evaluate, a batch of 1."""

    fixed: Tensor  # image, [1, 1, X, Y, Z]
    moving: Tensor
    fixed_label: Tensor  # label values, [1, 1, X, Y, Z]
    moving_label: Tensor
    names: tuple[str, str] = ("fixed", "moving")
    voxel_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @classmethod
    def from_batch(cls, batch: Mapping[str, Any], device: torch.device | str | None = None) -> LabeledPair:
        """Take a collated item of :class:`~scripts.data.pairs.PairDataset`; voxel sizes are those of its affine.

        Raises:
            ValueError: when a label map is missing, or the batch has more than one pair.
        """
        names = (_only(batch.get("fixed_name", "fixed")), _only(batch.get("moving_name", "moving")))
        missing = [key for key in ("fixed", "moving", "fixed_label", "moving_label") if key not in batch]
        if missing:
            raise ValueError(f"evaluation needs images and label maps, but {names} has no {', '.join(missing)}")
        fixed = batch["fixed"]
        if fixed.ndim != 5 or fixed.shape[0] != 1:
            raise ValueError(f"expected one pair at a time, [1, 1, X, Y, Z], got {tuple(fixed.shape)} for {names}")
        sizes = (1.0, 1.0, 1.0)
        if isinstance(fixed, MetaTensor):
            affine = fixed.affine.reshape(-1, 4, 4)[0, :3, :3].double()
            x, y, z = affine.norm(dim=0).tolist()
            sizes = (x, y, z)
        volumes = [batch[key].as_subclass(Tensor).to(device) for key in ("fixed", "moving")]
        labels = [batch[f"{key}_label"].as_subclass(Tensor).to(device) for key in ("fixed", "moving")]
        return cls(volumes[0], volumes[1], labels[0], labels[1], names, sizes)


def pair_seed(names: tuple[str, str], seed: int = 0) -> int:
    """A seed of the pair's own, made of its scans' names: its result depends on no other pair."""
    return fold(seed, 1 + zlib.crc32("\n".join(names).encode()))


@torch.no_grad()
def evaluate_pair(
    gaussian: StructuredGaussian,
    target: Target,
    pair: LabeledPair,
    labels: Sequence[int],
    *,
    num_proposals: int = 1200,
    num_samples: int = 80,
    temperature: float = 3.0,
    scale: float | None = None,
    seed: int = 0,
    radius: int = 3,
    chunk: int = CHUNK,
    seconds_network: float = 0.0,
) -> PairResult:
    """Sample the posterior of one pair (decision 13) and score it.

    Args:
        gaussian: the network's proposal, batch shape (1,), from ``ProposalLayout.gaussian``.
        target: the posterior.
        pair: images and label maps.
        labels: the S label ids to score.
        num_proposals: drawn and weighted.
        num_samples: K, resampled.
        temperature: T of the weights (decision 10).
        scale: σ_α from training; None for the spread of this pair's own log-weights.
        seed: of proposals and resampling.
        radius: of the ribbon in voxels (decision 15).
        chunk: proposals in memory at a time; the result does not depend on it.
        seconds_network: what the network took, to be reported.
    """
    start = time.perf_counter()
    (images,) = target.prepare(pair.moving, pair.fixed)
    posterior = sample_posterior(
        gaussian,
        target,
        images,
        num_proposals=num_proposals,
        num_samples=num_samples,
        temperature=temperature,
        scale=scale,
        seed=seed,
        chunk=chunk,
    )
    indices, counts = (values.tolist() for values in posterior.resampled.unique(return_counts=True))
    weighted = time.perf_counter()

    def resampled() -> Iterator[tuple[Tensor, int]]:
        # Each different sample once, however often it was chosen.
        for part, fields in redraw(gaussian, indices, seed, chunk):
            yield from zip(fields.split(1), counts[part.start : part.stop], strict=True)

    result = _score(target, pair, labels, radius, resampled(), gaussian.mean)
    sampling = {
        "ess": posterior.ess,
        "khat": posterior.khat,
        "max_weight": float(posterior.weights.max()),
        "seconds_network": seconds_network,
        "seconds_proposals": weighted - start,
        "seconds_evaluation": time.perf_counter() - weighted,
    }
    return replace(result, pair=_ordered({**result.pair, **sampling}))


@torch.no_grad()
def evaluate_fields(
    fields: Sequence[Tensor],
    target: Target,
    pair: LabeledPair,
    labels: Sequence[int],
    *,
    radius: int = 3,
    seconds_network: float = 0.0,
) -> PairResult:
    """Score K fields of equal weight, as from an ensemble of deterministic networks.

    There is no proposal: μ is the mean of the fields, on the image grid, as the paper reports it for its ensemble.

    Args:
        fields: K fields on the field grid in image voxels, each [1, 3, x, y, z].
        target: says what a field means; nothing is weighted.
        pair: images and label maps.
        labels: the S label ids to score.
        radius: of the ribbon in voxels (decision 15).
        seconds_network: what the networks took, to be reported.
    """
    start = time.perf_counter()
    result = _score(target, pair, labels, radius, ((field, 1) for field in fields), None)
    sampling = {
        "ess": float(len(fields)),
        "khat": float("nan"),
        "max_weight": 1.0 / len(fields),
        "seconds_network": seconds_network,
        "seconds_proposals": 0.0,
        "seconds_evaluation": time.perf_counter() - start,
    }
    return replace(result, pair=_ordered({**result.pair, **sampling}))


def _score(
    target: Target,
    pair: LabeledPair,
    labels: Sequence[int],
    radius: int,
    fields: Iterable[tuple[Tensor, int]],
    center: Tensor | None,
) -> PairResult:
    """Score fields [1, 3, x, y, z] with their counts, and the field `center` that stands for μ (None: their mean)."""
    labels = check_labels(labels)
    truth = pair.fixed_label[0, 0]  # [X, Y, Z]
    samples, moments = LabelSamples(labels, truth=truth), FieldMoments()
    fold_oracle = float("nan")
    for z, count in fields:
        ddf = target.displacement(z, truth.shape)  # [1, 3, X, Y, Z], the only one in memory
        samples.add(warp_labels(pair.moving_label, ddf)[0, 0], count)
        if samples.oracle == len(samples) - 1:  # the best so far
            fold_oracle = float(fold_percentage(ddf))
        moments.add(ddf, count)

    def dice_and_folds(ddf: Tensor) -> tuple[Tensor, float]:
        warped = warp_labels(pair.moving_label, ddf)[0, 0]
        return dice_per_structure(warped, truth, labels), float(fold_percentage(ddf))

    mean = moments.mean
    dice_mean, fold_mean = dice_and_folds(mean)
    dice_mu, fold_mu = dice_mean, fold_mean
    if center is not None:
        dice_mu, fold_mu = dice_and_folds(target.displacement(center, truth.shape))
    dice = {"dice_mu": dice_mu, "dice_mean": dice_mean, "dice_oracle": samples.dice[samples.oracle]}

    spacing = mean.new_tensor(pair.voxel_mm).reshape(3, 1, 1, 1)
    total_variance = (moments.variance[0] * spacing.square()).sum(0)  # [X, Y, Z], mm²
    ribbons, curves = score_ribbons(samples, total_variance / 3, truth, radius)

    brain = truth > 0 if bool((truth > 0).any()) else pair.fixed[0, 0] > 0
    window = getattr(target.likelihood, "window", 9)
    variance = float(total_variance[brain].double().mean())
    scores = {
        "dice_before": float(dice_per_structure(pair.moving_label[0, 0], truth, labels).nanmean()),
        **{name: float(values.nanmean()) for name, values in dice.items()},
        "fold_mu": fold_mu,
        "fold_mean": fold_mean,
        "fold_oracle": fold_oracle,
        "displacement_variance": variance / 3,
        "displacement_variance_total": variance,
        "ncc_before": float(local_ncc(pair.fixed, pair.moving, window)[0, 0][brain].mean()),
        "ncc_after": float(local_ncc(pair.fixed, warp(pair.moving, mean), window)[0, 0][brain].mean()),
        "unique": float(len(samples)),
        "samples": moments.weight,
    }
    structures = {**{name: values.tolist() for name, values in dice.items()}, **ribbons}
    return PairResult(*pair.names, labels, structures, scores, curves)


def score_ribbons(
    samples: LabelSamples, variance: Tensor, truth: Tensor, radius: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Calibration of every structure in its ribbon, and the curves of all together.

    Args:
        samples: the warped label maps.
        variance: of the displacements in mm², mean over the components, shape [X, Y, Z].
        truth: label values, shape [X, Y, Z].
        radius: of the ribbon in voxels.
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
        rows.append([reliability.error, by_label.area, by_spread.area, entropy.mean(), spread.mean()])
        sums = [reliability.voxels * share.nan_to_num() for share in (reliability.confidence, reliability.accuracy)]
        bins.append(torch.stack([reliability.voxels.double(), *sums]))  # [3, M]
        if len(error):
            place = (fractions * len(error)).long()
            kept.append(torch.stack([by_label.observed, by_spread.observed, by_label.oracle])[:, place])  # [3, F]
    curves = [*torch.stack(bins).sum(0), *(torch.stack(kept).mean(0) if kept else fractions.new_empty(3, 0))]
    columns = dict(zip(RIBBON_SCORES, torch.stack([torch.stack(row) for row in rows]).T.tolist(), strict=True))
    return columns, {name: values.tolist() for name, values in zip(CURVES, curves, strict=True)}


def _ordered(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: scores[name] for name in PAIR_SCORES}


def _only(name: str | Sequence[str]) -> str:
    """The name of a batch of one: collated strings are lists."""
    return name if isinstance(name, str) else name[0]
