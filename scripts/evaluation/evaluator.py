"""The evaluation of a trained model on a list of pairs: a MONAI evaluator that can be interrupted and resumed."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader
from monai.engines import Evaluator
from torch import nn
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from tqdm import tqdm

from scripts.core.atomic import write_text
from scripts.core.processes import Processes
from scripts.core.seg35 import SCORED
from scripts.core.truth import truth
from scripts.data.samplers import ShardSampler
from scripts.evaluation.pair_report import LabeledPair, evaluate_fields, evaluate_pair, pair_seed
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.plots import draw_figures
from scripts.evaluation.results import PathLike
from scripts.evaluation.shared_results import SharedStore
from scripts.evaluation.summary_table import Summary, format_tables, summarize_results, to_json
from scripts.inference.chunks import CHUNK
from scripts.inference.objectives import Objective
from scripts.inference.refine import Parts, Refinement
from scripts.networks.layout import ProposalLayout
from scripts.networks.weight_scale import calibrated_temperature, trained_scale
from scripts.posterior.label_maps import check_labels
from scripts.registration.target import Target

logger = logging.getLogger(__name__)


class ResultHandler:
    """Ignite handler that files each ``PairResult`` in ``engine.state.output``, and fills ``engine.state.metrics``.

    Args:
        store: where results go.
        pairs: how many there are for all processes together.
    """

    def __init__(self, store: SharedStore, pairs: int) -> None:
        self.store, self.pairs = store, pairs

    def attach(self, engine: Engine) -> None:
        """Register at the end of every iteration and of the epoch."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self.epoch_completed)

    def iteration_completed(self, engine: Engine) -> None:
        """File the pair, if there is a new one."""
        self.store.add(engine.state.output if isinstance(engine.state.output, PairResult) else None)

    def epoch_completed(self, engine: Engine) -> None:
        """Means over all pairs, for MONAI's other handlers."""
        self.store.finish(self.pairs)
        if len(self.store):
            scores = summarize_results(self.store.results)["structures"]
            engine.state.metrics.update({name: values["mean"] for name, values in scores.items()})


class ProgressHandler:
    """Ignite handler with a progress bar: pairs done, Dice of the mean field so far, time left.

    Args:
        store: whose results are shown; attach its handler first.
        total: number of pairs.
        enabled: False for no bar.
    """

    def __init__(self, store: SharedStore, total: int | None, enabled: bool = True) -> None:
        self.store, self.total, self.enabled = store, total, enabled
        self._bar: tqdm | None = None
        self._sum, self._count = 0.0, 0

    def attach(self, engine: Engine) -> None:
        """Register at the start and the end of the run and of every iteration."""
        engine.add_event_handler(Events.STARTED, self.started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self.close)

    def started(self, engine: Engine) -> None:
        """Open the bar."""
        del engine
        dice = [result.pair["dice_mean"] for result in self.store.results]
        self._sum, self._count = math.fsum(dice), len(dice)
        if self.enabled:
            self._bar = tqdm(total=self.total, desc="evaluation", unit="pair", smoothing=0.1)

    def iteration_completed(self, engine: Engine) -> None:
        """Count a pair; one that was done before does not count for the speed."""
        if self._bar is None:
            return
        if isinstance(engine.state.output, PairResult):
            self._sum, self._count = self._sum + engine.state.output.pair["dice_mean"], self._count + 1
        else:
            self._bar.initial += 1
        self._bar.set_postfix(dice=f"{self._sum / max(self._count, 1):.4f}", refresh=False)
        self._bar.update()

    def close(self, engine: Engine | None = None) -> None:
        """Close the bar, also after an interruption."""
        del engine
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Evaluation(Evaluator):
    """Evaluate a model on pairs with label maps: results, tables and figures in ``output_dir``.

    Pairs that the folder already holds are not computed again, so an interrupted run is simply started again; the
    summary is that of all pairs in the folder. Results of other settings or other weights are refused. Several
    processes divide the pairs among them. Each pair has a seed of its own, made of its scans' names: its result depends
    neither on the order of the pairs nor on interruptions.

    Args:
        network: from [1, 2, X, Y, Z] (moving, fixed) to raw parameters; or several deterministic ones, an ensemble.
        layout: how the output is read; ``deterministic`` for networks that predict nothing but a field.
        target: the posterior.
        dataset: of pair dictionaries as :class:`~scripts.data.pairs.PairDataset` gives them, or a loader of batches of
            one such pair.
        labels: the S label ids to score; None for the 31 structures of seg35 that scans have.
        output_dir: folder of this model's results.
        name: of the model in tables and figures.
        num_proposals: drawn and weighted for each pair (decision 13).
        num_samples: resampled for each pair.
        temperature: T of the weights (decision 10).
        calibrated: whether a T that `run calibration` left in the weights takes precedence.
        scale: σ_α; None for the one that training left in ``network.weight_scale``, or for each pair's own if training
            left none.
        objective: of the training, for refinement.
        refine_steps: gradient steps on each pair before its fields are drawn, as in inference; 0 for none.
        refine_parts: ``mean``, or ``all`` for L and R as well.
        seed: of all pairs.
        radius: of the ribbon in voxels (decision 15).
        chunk: proposals in memory at a time.
        voxel_mm: edges of a voxel along the array's axes; None for those of the fixed scan's affine.
        device: None for the network's.
        num_workers: processes that load pairs, if a dataset is given.
        resume: go on with what the folder holds; otherwise start over.
        progress: show a progress bar.
        figures: draw the figures at the end.
        val_handlers: more Ignite handlers, for example a ``CheckpointLoader``; attached before ours.

    Raises:
        ValueError: for several networks with a covariance, labels that are none, or a refinement that is none.
        ResultsError: when the folder holds results that cannot be continued.
    """

    def __init__(
        self,
        network: nn.Module | Sequence[nn.Module],
        layout: ProposalLayout,
        target: Target,
        dataset: Dataset | TorchDataLoader,
        labels: Sequence[int] | None,
        output_dir: PathLike,
        *,
        name: str = "model",
        num_proposals: int = 1200,
        num_samples: int = 80,
        temperature: float = 3.0,
        calibrated: bool = True,
        scale: float | None = None,
        objective: Objective | None = None,
        refine_steps: int = 0,
        refine_parts: Parts = "mean",
        seed: int = 0,
        radius: int = 3,
        chunk: int = CHUNK,
        voxel_mm: tuple[float, float, float] | None = None,
        device: torch.device | str | None = None,
        num_workers: int = 0,
        resume: bool = True,
        progress: bool = True,
        figures: bool = True,
        val_handlers: Sequence[Any] | None = None,
    ) -> None:
        networks = [network] if isinstance(network, nn.Module) else list(network)
        if not networks or (len(networks) > 1 and not layout.deterministic):
            raise ValueError(f"expected one network, or deterministic ones as an ensemble, got {len(networks)}")
        device = torch.device(device) if device is not None else next(networks[0].parameters()).device
        processes = Processes.current()
        if not isinstance(dataset, TorchDataLoader):
            shard = ShardSampler(dataset)  # type: ignore[arg-type]
            dataset = DataLoader(dataset, batch_size=1, sampler=shard, num_workers=num_workers)
        elif processes.size > 1:
            raise ValueError("several processes divide a dataset among them, got a loader instead")
        self.networks = nn.ModuleList(networks).to(device)
        self.layout, self.target = layout, target.to(device)
        self.labels, self.name = check_labels(SCORED if labels is None else labels), name
        self.num_proposals, self.num_samples, self.temperature = num_proposals, num_samples, temperature
        self.scale, self.seed, self.radius, self.chunk = scale, seed, radius, chunk
        self.calibrated, self.figures = truth("calibrated", calibrated), truth("figures", figures)
        self.voxel_mm = voxel_mm
        self.refinement = Refinement(None if objective is None else objective.to(device), refine_steps, refine_parts)
        self.store = SharedStore(output_dir, truth("resume", resume), processes)
        count = len(dataset.dataset)  # type: ignore[arg-type]
        self._scale: float | None = None
        # MONAI's engine: iterations call `_iteration`, whose result becomes `state.output`.
        super().__init__(device=device, val_data_loader=dataset, val_handlers=val_handlers, decollate=False)
        self.add_event_handler(Events.STARTED, self._start)
        ResultHandler(self.store, count).attach(self)
        progress = truth("progress", progress) and processes.is_first
        self._progress = ProgressHandler(self.store, self.state.epoch_length, progress)
        self._progress.attach(self)

    def run(self, global_epoch: int = 1) -> Summary:  # type: ignore[override]
        """Evaluate all pairs that are not done yet; write and print the tables, draw the figures.

        Args:
            global_epoch: as in MONAI's evaluators.

        Returns:
            The summary, as written to ``summary.json``: :func:`~scripts.evaluation.summary_table.summarize_results`.
        """
        try:
            super().run(global_epoch)
        finally:
            self._progress.close()
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
        """Fix the scale and note the settings; here, because handlers may have loaded weights just now."""
        del engine
        self._scale = self.scale
        if self._scale is None and not self.layout.deterministic:
            self._scale = trained_scale(self.networks[0])
        if self.calibrated and not self.layout.deterministic:
            self.temperature = calibrated_temperature(self.networks[0]) or self.temperature
        self.store.check_settings(self._settings())
        if len(self.store):
            logger.info("%s holds %d pairs: going on from there", self.store.folder, len(self.store))
        if self.layout.deterministic:
            logger.info("%s: %d deterministic network(s)", self.name, len(self.networks))
        else:
            scale = "each pair's own spread" if self._scale is None else f"{self._scale:.4g}"
            text = "%s: %d of %d proposals a pair, temperature %g, scale of log-weights: %s"
            logger.info(text, self.name, self.num_samples, self.num_proposals, self.temperature, scale)
        if self.refinement.steps:
            logger.info("each pair is refined first: %d steps, %s", self.refinement.steps, self.refinement.parts)

    @torch.no_grad()
    def _iteration(self, engine: Engine, batchdata: dict[str, Any]) -> PairResult | None:  # type: ignore[override]
        """Evaluate one pair; None for one that is done."""
        del engine
        pair = LabeledPair.from_batch(batchdata, self.state.device)
        if pair.names in self.store:
            return None
        if self.voxel_mm is not None:
            pair = pair._replace(voxel_mm=self.voxel_mm)
        start = time.perf_counter()
        images = torch.cat([pair.moving, pair.fixed], dim=1)
        seed = pair_seed(pair.names, self.seed)
        with self.mode(self.networks):
            outputs = [network(images) for network in self.networks]
        outputs = [self.refinement(raw, pair.moving, pair.fixed, seed) for raw in outputs]
        if images.is_cuda:
            torch.cuda.synchronize(images.device)  # or the seconds would be those of the launch
        seconds = time.perf_counter() - start
        if self.layout.deterministic:
            fields = [self.layout.mean(raw) for raw in outputs]
            return evaluate_fields(fields, self.target, pair, self.labels, radius=self.radius, seconds_network=seconds)
        return evaluate_pair(
            self.layout.gaussian(outputs[0]),
            self.target,
            pair,
            self.labels,
            num_proposals=self.num_proposals,
            num_samples=self.num_samples,
            temperature=self.temperature,
            scale=self._scale,
            seed=seed,
            radius=self.radius,
            chunk=self.chunk,
            seconds_network=seconds,
        )

    def _settings(self) -> dict[str, Any]:
        """All that a result depends on beside the pair."""
        settings: dict[str, Any] = {"labels": list(self.labels), "radius": self.radius, "voxel_mm": self.voxel_mm}
        settings |= self.refinement.settings
        if not self.layout.deterministic:
            for name in ("num_proposals", "num_samples", "temperature", "seed"):
                settings[name] = getattr(self, name)
            settings["scale"] = self._scale
            stencil = self.layout.stencil
            settings["layout.rank"] = self.layout.rank
            for name in ("cross_channel", "initial_std", "dominance"):
                settings[f"layout.{name}"] = getattr(stencil, name)
        for path, module in self.target.named_modules():
            for key, value in vars(module).items():
                if isinstance(value, int | float | str) and key != "training" and not key.startswith("_"):
                    settings[f"target.{path}.{key}" if path else f"target.{key}"] = value
        dataset = getattr(self.data_loader, "dataset", None)
        transform = getattr(dataset, "transform", None)
        if transform is not None:
            settings["transform"] = str(transform)
        settings |= _volumes_of(dataset)
        return {**settings, "weights": _fingerprint(self.networks)}


def _volumes_of(dataset: Any) -> dict[str, Any]:
    """Size, spacing and brightness of the first pair: other scans of the same names, or other crops of them, show."""
    if dataset is None or not len(dataset):
        return {}
    fixed = dataset[0]["fixed"]
    affine = getattr(fixed, "affine", None)
    edges = [] if affine is None else torch.as_tensor(affine)[:3, :3].double().norm(dim=0).tolist()
    return {
        "shape": list(fixed.shape[1:]),
        "spacing": [round(edge, 3) for edge in edges],
        "brightness": round(float(fixed.float().mean()), 3),
    }


def _fingerprint(module: nn.Module) -> str:
    """A short hash of all parameters: results of two checkpoints must not get into one folder."""
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
