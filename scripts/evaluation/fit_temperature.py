"""`run calibration`: fit the temperature of trained weights on validation pairs, and write it into their file."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from scripts.core.atomic import write_text
from scripts.core.checkpoint import beside_weights, read
from scripts.core.errors import DataError
from scripts.core.progress import Progress
from scripts.core.seg35 import SCORED
from scripts.core.truth import truth
from scripts.evaluation.pair_report import LabeledPair, pair_seed
from scripts.evaluation.results import PathLike, csv_text
from scripts.evaluation.summary_table import to_json
from scripts.evaluation.temperature import SCORES, Choice, RibbonSamples, choose
from scripts.inference.model import Fitted, Model, Weighting
from scripts.inference.proposals import spread_of
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.label_maps import check_labels
from scripts.posterior.posterior import Posterior
from scripts.posterior.posterior_file import load, save
from scripts.posterior.sampler import Sampler

logger = logging.getLogger(__name__)

TEMPERATURES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0, 12.0, 16.0)
CRITERIA = {"ause": "ause_label", "ece": "ece"}
DICE = "dice_mean"
"""Dice of the mean of the resampled fields, as in the evaluation's results."""
NOTED = ("num_proposals", "num_samples", "refine_steps", "refine_parts", "detail_steps")
"""Settings that a fit depends on."""


class Calibration:
    """Fits T (and σ_α) of a trained model to labeled pairs that are neither of its training nor of its test.

    Only T / σ_α acts on the weights. σ_α is first set to the mean spread of the pairs' log-weights under as many
    proposals as inference draws (training measured it from a few at a time), which keeps T comparable between models;
    then the T with the smallest criterion is taken, of those that cost no accuracy: the criteria may like the
    uncertainty of a worse mean field.

    Args:
        sampler: the model of `ckpt_path`, and how it is used: with as many steps and proposals as it will be.
        ckpt_path: the file that is told what was fitted.
        output_dir: of the report; while it runs, also of the pairs' posteriors.
        criterion: what T is to minimize: ``ause`` (by label entropy) or ``ece``.
        dice_tolerance: how far the mean field's Dice at the chosen T may be below the best of all temperatures; None
            or a negative number for no bound.
        fit_scale: measure σ_α anew; otherwise that of training stays.
        write: False to report only.

    Raises:
        DataError: for weights without proposals to weigh, another criterion, temperatures that are not positive, or a
            tolerance that is none.
    """

    def __init__(
        self,
        sampler: Sampler,
        dataset: Dataset,
        labels: Sequence[int] | None,
        ckpt_path: PathLike,
        output_dir: PathLike,
        *,
        criterion: str = "ause",
        dice_tolerance: float | None = 0.002,
        temperatures: Sequence[float] = TEMPERATURES,
        fit_scale: bool = True,
        seed: int = 0,
        write: bool = True,
        progress: bool = True,
    ) -> None:
        if not isinstance(ckpt_path, str | os.PathLike):
            raise DataError(f"expected the weights of one network to calibrate, got {len(ckpt_path)}")
        if not sampler.model.objective.temperature > 0:
            raise DataError("nothing to calibrate: the samples of this variant are not weighed (S and I are)")
        if criterion not in CRITERIA:
            raise DataError(f"the criterion must be {' or '.join(CRITERIA)}, got {criterion!r}")
        if not temperatures or not all(value > 0 for value in temperatures):
            raise DataError(f"temperatures must be positive, got {list(temperatures)}")
        if dice_tolerance is not None and not isinstance(dice_tolerance, int | float):
            raise DataError(f"the tolerance of Dice must be a number or None, got {dice_tolerance!r}")
        self.sampler, self.dataset = sampler, dataset
        self.labels = check_labels(SCORED if labels is None else labels)
        self.ckpt_path, self.folder = Path(ckpt_path), Path(output_dir)
        self.criterion, self.temperatures = criterion, sorted(set(map(float, temperatures)))
        self.dice_tolerance = None if dice_tolerance is None or dice_tolerance < 0 else float(dice_tolerance)
        self.seed = seed
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
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="posteriors_", dir=self.folder) as drawn:
            rows = self._rows(Path(drawn))
        fitted = best(rows[1:], self.criterion, self.dice_tolerance)
        settings = {name: getattr(self.sampler.settings, name) for name in NOTED}
        settings |= {"criterion": self.criterion, "dice_tolerance": self.dice_tolerance, "pairs": len(self.dataset)}  # type: ignore[arg-type]
        report = {**settings, "before": rows[0], "after": fitted, "weights": str(self.ckpt_path), "written": self.write}
        self._report(report, rows)
        if self.write:
            notes = settings | {name: fitted[name] for name in (DICE, CRITERIA[self.criterion])}
            self.sampler.model.fitted = Fitted(fitted["temperature"], fitted["scale"], notes)
            write_fitted(self.sampler.model, self.ckpt_path)
        if fitted["temperature"] in (self.temperatures[0], self.temperatures[-1]) and len(self.temperatures) > 1:
            logger.warning("T = %g is at the end of the temperatures tried: try others beyond", fitted["temperature"])
        return report

    def _rows(self, folder: Path) -> list[dict[str, float]]:
        """Scores as it was, and at each temperature: means over pairs, then over structures, as in the tables.

        Args:
            folder: for the posteriors of all pairs, which together may not fit into memory.
        """
        spreads = []
        for index, pair in self._pairs("weighing"):
            sampler = self.sampler.with_settings(seed=pair_seed(pair.names, self.seed))
            posterior = sampler.posterior(pair.images)
            spreads.append(spread_of(posterior.draws.proposals.log_weights))
            save(posterior, folder / f"{index}.pt")
        spread = sum(spreads) / len(spreads)
        before = self.sampler.model.weighting(self.sampler.settings.temperature)
        scale = spread if self.fit_scale or before.scale is None else before.scale
        weightings = [before, *(Weighting(temperature, scale) for temperature in self.temperatures)]

        parts, sizes = [], []
        for index, pair in self._pairs("scoring"):
            posterior = load(folder / f"{index}.pt", self.sampler.device)
            choice = choose(posterior.draws.proposals, weightings, self.sampler.settings.num_samples)
            parts.append(self._scores(posterior, choice, pair))
            sizes.append(choice.ess)
        means = torch.stack(parts).nanmean(0).nanmean(-1)  # [T, scores]
        return [
            {
                "temperature": temperature,
                "scale": spread if own is None else own,  # without one, each pair has its own spread
                **dict(zip((*SCORES, DICE), values, strict=True)),
                "ess": float(size),
            }
            for (temperature, own), values, size in zip(
                weightings, means.tolist(), torch.stack(sizes).mean(0), strict=True
            )
        ]

    def _pairs(self, title: str) -> Iterator[tuple[int, LabeledPair]]:
        count, sampler = len(self.dataset), self.sampler  # type: ignore[arg-type]
        with Progress(title, count, self.progress) as advance:
            for index in range(count):
                yield index, LabeledPair.of_item(self.dataset[index], sampler.factor, sampler.device)
                advance(index + 1)

    def _scores(self, posterior: Posterior, choice: Choice, pair: LabeledPair) -> Tensor:
        """``SCORES`` and Dice of the mean field for T weightings and S structures, shape [T, len(SCORES) + 1, S]."""
        counts, space = choice.counts.to(posterior.mean), posterior.space  # log-weights are always on the CPU
        samples = RibbonSamples(pair.fixed_label, self.labels)

        def label_map(points: Tensor) -> Tensor:
            return space.warp_labels(pair.moving_label, space.displacement(points[None])[0])

        shares = (counts / counts.sum(1, keepdim=True))[..., None, None, None, None]  # [T, U, 1, 1, 1, 1]
        means = torch.zeros_like(posterior.mean).repeat(len(counts), 1, 1, 1, 1)
        for position, points in enumerate(posterior.control_points(choice.indices)):
            samples.add(label_map(points))
            means += shares[:, position] * points
        dice = [dice_per_structure(label_map(mean), pair.fixed_label, self.labels) for mean in means]
        return torch.cat([samples.score(counts), torch.stack(dice)[:, None]], dim=1)

    def _report(self, report: dict[str, Any], rows: list[dict[str, float]]) -> None:
        write_text(self.folder / "calibration.csv", csv_text(list(rows[0]), (list(row.values()) for row in rows[1:])))
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


def write_fitted(model: Model, path: Path) -> None:
    """Write a model with what was fitted into its file; what else a checkpoint of a training holds stays."""
    model.save(path, **beside_weights(read(path)))
