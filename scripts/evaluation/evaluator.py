"""The evaluation of a trained model on a list of pairs: a MONAI evaluator that can be interrupted and resumed."""

from __future__ import annotations

import copy
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from statistics import fmean
from typing import Any

from ignite.engine import Engine, Events
from monai.data import DataLoader
from monai.engines import Evaluator
from monai.transforms import Compose
from torch import nn
from torch.utils.data import Dataset

from scripts.core.atomic import write_text
from scripts.core.processes import Processes
from scripts.core.progress import Progress
from scripts.core.seg35 import SCORED
from scripts.core.truth import truth
from scripts.data.samplers import ShardSampler
from scripts.evaluation.landmark_scores import LandmarkFolder
from scripts.evaluation.pair_report import LabeledPair, evaluate_pair, pair_seed
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.plots import draw_figures
from scripts.evaluation.results import PathLike
from scripts.evaluation.shared_results import SharedStore
from scripts.evaluation.summary_table import Summary, format_tables, summarize_results, to_json
from scripts.posterior.label_maps import check_labels
from scripts.posterior.sampler import Sampler

logger = logging.getLogger(__name__)

ASIDE = ("num_modes", "chunk", "progress", "format", "version", "temperature", "fitted")
"""What no score depends on, or only by way of the weighting."""


class Evaluation(Evaluator):
    """Evaluate a model on pairs with label maps: results, tables and figures in ``output_dir``.

    Pairs that the folder already holds are not computed again, so an interrupted run is simply started again; the
    summary is that of all pairs in the folder. Results of other settings or other weights are refused. Several
    processes divide the pairs among them. Each pair has a seed of its own, made of its scans' names: its result depends
    neither on the order of the pairs nor on interruptions.

    Args:
        sampler: the model, and how it is used on each pair.
        dataset: of pairs with label maps: :class:`~scripts.data.pairs.PairDataset` for scans on one grid,
            :class:`~scripts.data.pairs.FilePairDataset` for files as inference takes them.
        labels: the S label ids to score; None for the 31 structures of seg35 that scans have.
        calibrated: whether the T and σ_α that `run calibration` has left in the weights count.
        radius: of the ribbon in voxels (decision 15).
        landmarks_dir: experts' points of scans, see :mod:`scripts.evaluation.landmark_scores`; None for none.
        resume: go on with what the folder holds; otherwise start over.
        val_handlers: more Ignite handlers, for example a ``CheckpointLoader``; attached before ours.

    Raises:
        ValueError: for labels that are none.
        ResultsError: when the folder holds results that cannot be continued.
    """

    def __init__(
        self,
        sampler: Sampler,
        dataset: Dataset,
        labels: Sequence[int] | None,
        output_dir: PathLike,
        *,
        name: str = "model",
        calibrated: bool = True,
        seed: int = 0,
        radius: int = 3,
        landmarks_dir: PathLike | None = None,
        num_workers: int = 0,
        resume: bool = True,
        progress: bool = True,
        figures: bool = True,
        val_handlers: Sequence[Any] | None = None,
    ) -> None:
        if not truth("calibrated", calibrated):
            model = copy.copy(sampler.model)
            model.fitted, model.calibration = None, {}
            sampler = Sampler(model, sampler.settings, sampler.device, spread=sampler.spread)
        processes = Processes.current()
        self.sampler, self.dataset = sampler, dataset
        self.labels, self.name = check_labels(SCORED if labels is None else labels), name
        self.landmarks = None if landmarks_dir is None else LandmarkFolder(str(landmarks_dir))
        self.seed, self.radius, self.figures = seed, radius, truth("figures", figures)
        self.store = SharedStore(output_dir, truth("resume", resume), processes)
        shard = ShardSampler(dataset)  # type: ignore[arg-type]
        # Files have grids of their own: nothing is stacked.
        loader = DataLoader(dataset, batch_size=1, sampler=shard, num_workers=num_workers, collate_fn=itemgetter(0))
        # MONAI's engine: iterations call `_iteration`, whose result becomes `state.output`.
        super().__init__(device=sampler.device, val_data_loader=loader, val_handlers=val_handlers, decollate=False)
        self.add_event_handler(Events.STARTED, self._start)
        self.add_event_handler(Events.ITERATION_COMPLETED, self._add)
        self.add_event_handler(Events.EPOCH_COMPLETED, self._finish)
        self.progress = truth("progress", progress)

    def run(self, global_epoch: int = 1) -> Summary:  # type: ignore[override]
        """Evaluate all pairs that are not done yet; write and print the tables, draw the figures; the summary."""
        with Progress("evaluation", self.state.epoch_length or 0, self.progress) as self._shown:
            super().run(global_epoch)
        folder = self.store.folder
        summary = summarize_results(self.store.results)
        if not self.store.processes.is_first:
            return summary
        tables = format_tables({self.name: summary})
        write_text(folder / "summary.json", to_json(summary))
        write_text(folder / "tables.txt", tables + "\n")
        print(f"\n{tables}\n")
        if self.figures:
            paths = draw_figures({self.name: self.store.results}, folder / "figures")
            logger.info("%d figures in %s", len(paths), folder / "figures")
        logger.info("%d pairs in %s", len(self.store), folder)
        return summary

    def _start(self, engine: Engine) -> None:
        """Note the settings; here, because handlers may have loaded weights just now."""
        del engine
        self.store.check_settings(self._settings())
        if len(self.store):
            logger.info("%s holds %d pairs: going on from there", self.store.folder, len(self.store))
        settings = self.sampler.settings
        temperature, scale = self.sampler.model.weighting(settings.temperature)
        known = "each pair's own spread" if scale is None else f"{scale:.4g}"
        text = "%s: %d of %d proposals a pair, temperature %g, scale of log-weights: %s"
        logger.info(text, self.name, settings.num_samples, settings.num_proposals, temperature, known)
        if settings.refine_steps or settings.detail_steps:
            text = "each pair is refined first: %d steps, %s; detail: %d steps where files have it"
            logger.info(text, settings.refine_steps, settings.refine_parts, settings.detail_steps)

    def _iteration(self, engine: Engine, batchdata: dict[str, Any]) -> PairResult | None:  # type: ignore[override]
        """Evaluate one pair; None for one that is done."""
        del engine
        pair = LabeledPair.of_item(batchdata, self.sampler.factor, self.sampler.device)
        if pair.names in self.store:
            return None
        sampler = self.sampler.with_settings(seed=pair_seed(pair.names, self.seed))
        return evaluate_pair(sampler, pair, self.labels, self.radius, self.landmarks)

    def _add(self, engine: Engine) -> None:
        """File the pair, if there is a new one, and show how far it is."""
        new: Any = engine.state.output
        self.store.add(new)
        dice = fmean(result.pair["dice_mean"] for result in self.store.results) if len(self.store) else math.nan
        self._shown(engine.state.iteration, f"dice={dice:.4f}", fresh=new is not None)

    def _finish(self, engine: Engine) -> None:
        """Means over all pairs of all processes in `engine.state.metrics`, for MONAI's other handlers."""
        self.store.finish(len(self.dataset))  # type: ignore[arg-type]
        if len(self.store):
            scores = summarize_results(self.store.results)["structures"]
            engine.state.metrics.update({name: values["mean"] for name, values in scores.items()})

    def _settings(self) -> dict[str, Any]:
        """All that a result depends on beside the pair, each value under a name of its own."""
        model, settings = self.sampler.model, replace(self.sampler.settings, seed=self.seed)
        used = {**model.description(), **asdict(settings)}
        return _flat(
            {
                **{name: value for name, value in used.items() if name not in ASIDE},
                "weighting": model.weighting(settings.temperature)._asdict(),
                "spread": self.sampler.spread.settings(),
                "labels": list(self.labels),
                "radius": self.radius,
                "transform": _plain(self.dataset.transform),  # type: ignore[attr-defined]
                **self._first_pair(),
                "weights": _fingerprint(model.network),
            }
        )

    def _first_pair(self) -> dict[str, Any]:
        """Size, spacing and brightness: other scans of the same names, or other crops of them, show."""
        pair = LabeledPair.of_item(self.dataset[0], self.sampler.factor)
        grid = pair.images.space.fixed
        return {
            "shape": list(grid.shape),
            "spacing": [round(float(edge), 3) for edge in grid.spacing],
            "brightness": round(float(pair.images.fixed.mean()), 3),
        }


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested values as one dictionary of plain ones, such as `target.likelihood.sigma`."""
    if isinstance(value, list) and any(isinstance(part, Mapping) for part in value):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {name: value}
    parts = [_flat(part, f"{name}.{key}".lstrip(".")) for key, part in value.items()]
    return {key: plain for part in parts for key, plain in part.items()}


def _plain(transform: Any) -> Any:
    """The plain options of what is done to each pair."""
    if transform is None:
        return None
    if isinstance(transform, Compose):
        return [_plain(part) for part in transform.transforms]
    options = {key: value for key, value in vars(transform).items() if isinstance(value, bool | int | float | str)}
    return {type(transform).__name__: {key: value for key, value in options.items() if not key.startswith("_")}}


def _fingerprint(module: nn.Module) -> str:
    """A short hash of all weights: results of two checkpoints must not get into one folder."""
    digest = hashlib.sha256()
    for name, values in module.state_dict().items():
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
