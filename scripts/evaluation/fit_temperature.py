"""`run calibration`: fit the temperature of trained weights on validation pairs, and write it into their file."""

from __future__ import annotations

import csv
import io
import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from scripts.core.atomic import write_text
from scripts.core.checkpoint import network_state, read, save_atomically
from scripts.core.errors import DataError
from scripts.core.seg35 import SCORED
from scripts.core.truth import truth
from scripts.evaluation.mean_fields import MeanFields
from scripts.evaluation.pair_report import LabeledPair, pair_seed
from scripts.evaluation.results import PathLike
from scripts.evaluation.summary_table import to_json
from scripts.evaluation.temperature import SCORES, Choice, RibbonSamples, Setting, choose, score_choice
from scripts.gaussian import StructuredGaussian
from scripts.inference.chunks import CHUNK
from scripts.inference.objectives import Objective
from scripts.inference.proposals import redraw, spread_of, weigh_proposals
from scripts.inference.refine import Parts, Refinement
from scripts.networks.layout import ProposalLayout
from scripts.networks.weight_scale import calibrated_temperature, trained_scale
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.label_maps import check_labels
from scripts.registration.target import Target
from scripts.registration.warp import warp_labels

logger = logging.getLogger(__name__)

TEMPERATURES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0, 12.0, 16.0)
CRITERIA = {"ause": "ause_label", "ece": "ece"}
DICE = "dice_mean"
"""Dice of the mean of the resampled fields, as in the evaluation's results."""


class Calibration:
    """Fits T (and σ_α) of a trained model to labeled pairs that are neither of its training nor of its test.

    Only T / σ_α acts on the weights. σ_α is first set to the mean spread of the pairs' log-weights under as many
    proposals as inference draws (training measured it from a few at a time), which keeps T comparable between models;
    then the T with the smallest criterion is taken, of those that cost no accuracy: the criteria may like the
    uncertainty of a worse mean field.

    Args:
        network: from [1, 2, X, Y, Z] (moving, fixed) to raw parameters, with the weights of ``ckpt_path``.
        layout: how the output is read.
        target: the posterior.
        dataset: of pair dictionaries as :class:`~scripts.data.pairs.PairDataset` gives them.
        labels: the S label ids to score; None for the 31 structures of seg35 that scans have.
        ckpt_path: the file whose temperature and scale are written.
        output_dir: of the report.
        criterion: what T is to minimize: ``ause`` (by label entropy) or ``ece``.
        dice_tolerance: how far the mean field's Dice at the chosen T may be below the best of all temperatures; None
            or a negative number for no bound.
        temperatures: to choose from.
        fit_scale: measure σ_α anew; otherwise that of training stays.
        temperature: T as it is configured, for the comparison, if the weights were not calibrated before.
        num_proposals: drawn and weighted for each pair.
        num_samples: resampled for each pair and temperature.
        objective: of the training, for refinement.
        refine_steps: gradient steps on each pair before its fields are drawn, as in the evaluation; 0 for none.
        refine_parts: ``mean``, or ``all`` for L and R as well.
        seed: of all pairs, as in the evaluation.
        radius: of the ribbon in voxels (decision 15).
        chunk: proposals in memory at a time.
        device: None for the network's.
        write: False to report only.
        progress: show progress bars.

    Raises:
        ValueError: for weights without proposals to weigh, another criterion, temperatures that are not positive, or a
            tolerance or a refinement that is none.
    """

    def __init__(
        self,
        network: nn.Module,
        layout: ProposalLayout,
        target: Target,
        dataset: Dataset,
        labels: Sequence[int] | None,
        ckpt_path: PathLike,
        output_dir: PathLike,
        *,
        criterion: str = "ause",
        dice_tolerance: float | None = 0.002,
        temperatures: Sequence[float] = TEMPERATURES,
        fit_scale: bool = True,
        temperature: float = 3.0,
        num_proposals: int = 1200,
        num_samples: int = 80,
        objective: Objective | None = None,
        refine_steps: int = 0,
        refine_parts: Parts = "mean",
        seed: int = 0,
        radius: int = 3,
        chunk: int = CHUNK,
        device: torch.device | str | None = None,
        write: bool = True,
        progress: bool = True,
    ) -> None:
        if layout.deterministic or not temperature > 0:
            raise ValueError("nothing to calibrate: the samples of this variant are not weighed (S and I are)")
        if not isinstance(network, nn.Module):
            raise ValueError(f"expected the weights of one network to calibrate, got {len(network)}")
        if criterion not in CRITERIA:
            raise ValueError(f"the criterion must be {' or '.join(CRITERIA)}, got {criterion!r}")
        if not temperatures or not all(value > 0 for value in temperatures):
            raise ValueError(f"temperatures must be positive, got {list(temperatures)}")
        if dice_tolerance is not None and not isinstance(dice_tolerance, int | float):
            raise ValueError(f"the tolerance of Dice must be a number or None, got {dice_tolerance!r}")
        self.device = torch.device(device) if device is not None else next(network.parameters()).device
        self.network, self.layout, self.target = network.to(self.device), layout, target.to(self.device)
        self.dataset, self.labels = dataset, check_labels(SCORED if labels is None else labels)
        self.ckpt_path, self.folder = Path(ckpt_path), Path(output_dir)
        self.criterion, self.temperatures = criterion, sorted(set(map(float, temperatures)))
        self.dice_tolerance = None if dice_tolerance is None or dice_tolerance < 0 else float(dice_tolerance)
        objective = None if objective is None else objective.to(self.device)
        self.refinement = Refinement(objective, refine_steps, refine_parts)
        self.before = calibrated_temperature(network) or float(temperature)
        self.num_proposals, self.num_samples = num_proposals, num_samples
        self.seed, self.radius, self.chunk = seed, radius, chunk
        self.fit_scale, self.write = truth("fit_scale", fit_scale), truth("write", write)
        self.progress = truth("progress", progress)

    @torch.no_grad()
    def run(self) -> dict[str, Any]:
        """Fit, write, print before and after.

        Returns:
            The report, as written to ``calibration.json``.

        Raises:
            DataError: without pairs, or when the criterion cannot be computed on them.
        """
        if not len(self.dataset):  # type: ignore[arg-type]
            raise DataError("nothing to calibrate on: there are no pairs; give labeled ones of the validation people")
        self.network.eval()
        log_weights = [self._log_weights(pair) for pair in self._pairs("weighing")]
        spread = sum(map(spread_of, log_weights)) / len(log_weights)
        trained = trained_scale(self.network)
        scale = spread if self.fit_scale or trained is None else trained
        settings = [Setting(self.before, spread if trained is None else trained)]  # as it was
        settings += [Setting(temperature, scale) for temperature in self.temperatures]

        parts, sizes = [], []
        for pair, weights in zip(self._pairs("scoring"), log_weights, strict=True):
            gaussian, seed = self._gaussian(pair), pair_seed(pair.names, self.seed)
            choice = choose(weights, settings, self.num_samples, seed)
            parts.append(self._scores(gaussian, choice, seed, pair))
            sizes.append(choice.ess)
        # As in the tables: the mean over pairs of each structure, then that over structures. [T, scores]
        means = torch.stack(parts).nanmean(0).nanmean(-1)
        rows = [
            {
                "temperature": setting.temperature,
                "scale": setting.scale,
                **dict(zip((*SCORES, DICE), scores, strict=True)),
                "ess": float(ess),
            }
            for setting, scores, ess in zip(settings, means.tolist(), torch.stack(sizes).mean(0), strict=True)
        ]
        fitted = best(rows[1:], self.criterion, self.dice_tolerance)
        report = {
            "criterion": self.criterion,
            "dice_tolerance": self.dice_tolerance,
            **self.refinement.settings,
            "pairs": len(parts),
            "num_proposals": self.num_proposals,
            "num_samples": self.num_samples,
            "before": rows[0],
            "after": fitted,
            "weights": str(self.ckpt_path),
            "written": self.write,
        }
        self._report(report, rows)
        if self.write:
            write_temperature(self.ckpt_path, fitted["temperature"], fitted["scale"])
        if fitted["temperature"] in (self.temperatures[0], self.temperatures[-1]) and len(self.temperatures) > 1:
            logger.warning("T = %g is at the end of the temperatures tried: try others beyond", fitted["temperature"])
        return report

    def _pairs(self, title: str) -> Iterator[LabeledPair]:
        count = len(self.dataset)  # type: ignore[arg-type]
        for index in tqdm(range(count), desc=title, unit="pair", disable=not self.progress):
            item = self.dataset[index]
            batch = {key: value[None] if isinstance(value, Tensor) else value for key, value in item.items()}
            pair = LabeledPair.from_batch(batch, self.device)
            yield pair

    def _gaussian(self, pair: LabeledPair) -> StructuredGaussian:
        """The pair's proposal; computed again for scoring, as those of all pairs together may not fit into memory."""
        raw = self.network(torch.cat([pair.moving, pair.fixed], dim=1))
        return self.layout.gaussian(self.refinement(raw, pair.moving, pair.fixed, pair_seed(pair.names, self.seed)))

    def _log_weights(self, pair: LabeledPair) -> Tensor:
        (images,) = self.target.prepare(pair.moving, pair.fixed)
        seed = pair_seed(pair.names, self.seed)
        gaussian = self._gaussian(pair)
        return weigh_proposals(gaussian, self.target, images, self.num_proposals, seed, self.chunk).log_weights

    def _scores(self, gaussian: StructuredGaussian, choice: Choice, seed: int, pair: LabeledPair) -> Tensor:
        """``SCORES`` and Dice of the mean field for T settings and S structures, shape [T, len(SCORES) + 1, S]."""
        truth = pair.fixed_label[0, 0]  # [X, Y, Z]
        choice = choice._replace(counts=choice.counts.to(truth.device))  # log-weights are always on the CPU
        means = MeanFields(self.target.transform, truth.shape, choice.counts)

        def label_maps() -> Iterator[Tensor]:
            for part, fields in redraw(gaussian, choice.indices, seed, self.chunk):
                for position, field in zip(part, fields.split(1), strict=True):
                    yield warp_labels(pair.moving_label, means.add(position, field))[0, 0]

        scores = score_choice(choice, label_maps(), RibbonSamples(truth, self.labels, self.radius))
        warped = (warp_labels(pair.moving_label, ddf)[0, 0] for ddf in means)
        dice = torch.stack([dice_per_structure(label_map, truth, self.labels) for label_map in warped])  # [T, S]
        return torch.cat([scores, dice[:, None]], dim=1)

    def _report(self, report: dict[str, Any], rows: list[dict[str, float]]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[1:])
        write_text(self.folder / "calibration.csv", text.getvalue())
        write_text(self.folder / "calibration.json", to_json(report))
        print(f"\n{'':8}{'T':>7}{'sigma':>11}{'AUSE_label':>12}{'ECE':>9}{'entropy':>9}{'DSC':>9}{'ESS':>8}")
        marks = ["before", *("fitted" if row is report["after"] else "" for row in rows[1:])]
        for mark, row in zip(marks, rows, strict=True):
            print(
                f"{mark:8}{row['temperature']:7.3g}{row['scale']:11.4g}{row['ause_label']:12.4f}"
                f"{row['ece']:9.4f}{row['label_entropy']:9.4f}{row[DICE]:9.4f}{row['ess']:8.1f}"
            )
        where = f"written into {self.ckpt_path}" if self.write else "not written"
        bound = "" if self.dice_tolerance is None else f", DSC within {self.dice_tolerance:g} of the best,"
        fitted = f"T = {report['after']['temperature']:g} by {self.criterion}{bound}"
        print(f"\n{fitted} on {report['pairs']} pairs, {where}\n")


def best(rows: Sequence[dict[str, float]], criterion: str, dice_tolerance: float | None = None) -> dict[str, float]:
    """The row with the smallest criterion; those where it could not be computed do not count.

    Args:
        rows: scores at each temperature.
        criterion: ``ause`` or ``ece``.
        dice_tolerance: leave out rows whose Dice is further than this below the best one's; None to leave out none.

    Raises:
        DataError: when it could not be computed for any.
    """
    column = CRITERIA[criterion]
    known = [row for row in rows if math.isfinite(row[column])]
    if not known:
        raise DataError(
            f"{column} could not be computed at any temperature: no scored structure is in both label maps of a pair"
        )
    if dice_tolerance is not None:
        highest = max(row[DICE] for row in known)
        known = [row for row in known if row[DICE] >= highest - dice_tolerance]
    return min(known, key=lambda row: row[column])


def write_temperature(path: PathLike, temperature: float, scale: float) -> None:
    """Put a fitted temperature and σ_α into a file of weights, or of a training, and leave the rest as it is.

    Raises:
        CheckpointError: when the file cannot be read or written.
    """
    content = read(Path(path))
    state = dict(network_state(content))
    for name, value in (("temperature", temperature), ("value", scale)):
        state[f"weight_scale.{name}"] = torch.tensor(value, dtype=torch.float64)
    save_atomically({**content, "network": state} if "network" in content else state, Path(path))
