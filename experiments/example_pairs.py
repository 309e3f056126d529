"""Pairs as examples: every resampled field of a pair as a point, with its weight, its Dice and its mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from monai.bundle import ConfigParser
from torch import Tensor

from scripts.evaluation.evaluator import Evaluation
from scripts.evaluation.pair_report import LabeledPair, pair_seed
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.dip import dip
from scripts.posterior.modes import are_distinct, find_modes
from scripts.posterior.posterior import Posterior

COMPONENTS = 5
"""In which modes are looked for, as `find_modes` does by itself."""


class Sample(NamedTuple):
    """One of the different fields that were resampled."""

    weight: float  # how often it was drawn, as a share
    log_weight: float  # logarithm of its tempered importance weight, relative to the best proposal's
    dice: float  # mean over structures
    mode: int  # 0 for the heavier one
    first_mm: float  # from the mean field along the first two principal components, see `principal_coordinates`
    second_mm: float  # of the different fields; by weight, any field that was drawn twice would be a component


class Example(NamedTuple):
    """The posterior of one pair."""

    pair: int  # its number in the files of docs/results
    pairs: int  # among how many it was picked
    pairs_with_modes: int  # how many of these have two modes
    dice_mu: float
    dice_mean: float  # of the mean field
    distinct: int  # 1 if this pair has two modes, by `are_distinct`
    p_value: float  # of the groups' silhouette, against one Gaussian
    valley_p_value: float  # of the valley between them, likewise
    dip: float  # depth of that valley
    samples: tuple[Sample, ...]

    @property
    def gain(self) -> float:
        """How far the Oracle's Dice is above that of the mean field."""
        return max(sample.dice for sample in self.samples) - self.dice_mean

    @property
    def clarity(self) -> tuple[float, float, float]:
        """The larger, the more clearly two modes. The dip alone would prefer pairs with few different samples."""
        return self.distinct, -self.valley_p_value, self.dip


Examples = dict[str, Example]
"""The picked pairs by what they are examples of: `oracle` and `modes`."""


def pick(found: Sequence[Example]) -> Examples:
    """The pair with the largest gain of the Oracle, and the one with the clearest modes; the first among equals."""
    with_modes = sum(example.distinct for example in found)
    counted = [example._replace(pairs=len(found), pairs_with_modes=with_modes) for example in found]
    return {"oracle": max(counted, key=lambda e: e.gain), "modes": max(counted, key=lambda e: e.clarity)}


def build(config_files: Sequence[str], folder: str, options: Mapping[str, Any]) -> Evaluation:
    """The evaluation of whole volumes that configs describe; it is not run here.

    Args:
        config_files: as of `run evaluation`.
        folder: for its results.
        options: values of the config; those that are None are left as the files have them.

    Raises:
        ValueError: for a model without samples.
    """
    parser = ConfigParser()
    parser.read_config(list(config_files))
    parser.update({key: value for key, value in options.items() if value is not None})
    parser.update({"roi_size": None, "evaluation_dir": folder})
    evaluation: Evaluation = parser.get_parsed_content("evaluator")
    if evaluation.sampler.model.layout.deterministic:
        raise ValueError("this model predicts one field and has no samples to show")
    return evaluation


@torch.no_grad()
def examine(evaluation: Evaluation, pair: LabeledPair, number: int) -> Example:
    """Sample the posterior of the pair with this number, score every resampled field and look for modes."""
    sampler = evaluation.sampler.with_settings(seed=pair_seed(pair.names, evaluation.seed))
    posterior = sampler.posterior(pair.images)
    counts = posterior.draws.counts()
    indices, share = list(counts), [count / sum(counts.values()) for count in counts.values()]
    fields = torch.stack(list(posterior.control_points(indices)))  # [n, 3, x, y, z]
    dice = [_dice(posterior, pair, points, evaluation.labels) for points in fields]
    both = (posterior.mean, posterior.center())
    dice_mean, dice_mu = (_dice(posterior, pair, points, evaluation.labels) for points in both)
    weights = posterior.draws.weights
    logs = (weights[indices] / weights.max()).log().tolist()

    fields *= fields.new_tensor(posterior.space.work.spacing).reshape(3, 1, 1, 1)
    groups = find_modes(fields, share, num_components=COMPONENTS, seed=evaluation.seed)
    mode = np.zeros(len(indices), dtype=np.int64)
    for k, group in enumerate(groups):
        mode[list(group.members)] = k
    shares = np.array(share)
    depth = valley(principal_coordinates(fields, shares), shares, mode)
    places = principal_coordinates(fields, np.full_like(shares, 1 / len(shares)), 2)
    places -= shares @ places
    distinct = int(are_distinct(groups))
    rows = zip(share, logs, dice, mode.tolist(), *places.T.tolist(), strict=True)
    return Example(
        pair=number,
        pairs=1,
        pairs_with_modes=distinct,
        dice_mu=dice_mu,
        dice_mean=dice_mean,
        distinct=distinct,
        p_value=groups[0].p_value,
        valley_p_value=groups[0].valley_p_value,
        dip=depth,
        samples=tuple(Sample(*row) for row in rows),
    )


def principal_coordinates(fields: Tensor, share: np.ndarray, count: int = COMPONENTS) -> np.ndarray:
    """Coordinates of weighted samples along their principal components.

    Args:
        fields: shape [n, ...].
        share: their weights, shape (n,), positive, that add up to 1.
        count: how many components; those that do not exist have zeros.

    Returns:
        Shape (n, count), such that a sample's distance from the mean is the root mean square of their difference.
    """
    flat = fields.flatten(1)
    centered = flat - torch.from_numpy(share).to(flat) @ flat
    gram = (centered @ centered.T).double().cpu().numpy() / flat.shape[1]
    root = np.sqrt(share)[:, None]
    variances, vectors = (part[..., ::-1][..., :count] for part in np.linalg.eigh(root * gram * root.T))
    kept = variances > 1e-6 * max(variances[0], np.finfo(np.float64).tiny)  # the products have single precision
    places = np.zeros((len(share), count))
    places[:, : kept.sum()] = gram @ (root * vectors[:, kept]) / np.sqrt(variances[kept])
    return places


def valley(places: np.ndarray, share: np.ndarray, mode: np.ndarray) -> float:
    """Depth of the valley between two modes: the dip along the line between their centers, as in `find_modes`.

    Args:
        places: of the samples, shape (n, components).
        share: their weights, shape (n,), that add up to 1.
        mode: 0 or 1, shape (n,); if all are 0 there is no valley, and the result is 0.
    """
    if not mode.any():
        return 0.0
    one, other = (np.average(places[mode == k], axis=0, weights=share[mode == k]) for k in (0, 1))
    return dip(places @ (other - one), share)


def _dice(posterior: Posterior, pair: LabeledPair, points: Tensor, labels: Sequence[int]) -> float:
    """Dice, mean over structures, of a field with these control points [3, x, y, z]."""
    warped = posterior.space.warp_labels(pair.moving_label, posterior.space.displacement(points[None])[0])
    return float(dice_per_structure(warped, pair.fixed_label, labels).nanmean())
