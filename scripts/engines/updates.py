"""What one iteration of training and of validation does with a batch of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from monai.engines.utils import IterationEvents
from monai.utils.enums import CommonKeys as Keys
from torch import Tensor

from scripts.core.processes import Processes
from scripts.gaussian.noise import fold
from scripts.posterior.pair_images import PairImages
from scripts.posterior.sampler import Sampler
from scripts.registration.warp import warp

FIGURES = "figures"
"""Key of the numbers to watch in an iteration's output."""


class NonFiniteTrainingError(RuntimeError):
    """A loss or gradient is NaN or infinite; the weights on disk are from before it."""

    def __init__(self, what: str, iteration: int, pairs: Sequence[str]) -> None:
        super().__init__(
            f"{what} became NaN or infinite in iteration {iteration}, at the pair {'; '.join(pairs)}. "
            "The checkpoints on disk are finite and from before; look at these images, or lower the learning rate"
        )


def prepare_pair(
    batch: dict[str, Any], device: torch.device | str | None = None, non_blocking: bool = False, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """(pair, fixed) for MONAI's engines: the network's input [B, 2, X, Y, Z] (moving, fixed) and [B, 1, X, Y, Z]."""
    plain = (batch[key].as_subclass(Tensor) for key in ("moving", "fixed"))  # metadata would be copied at every step
    moving, fixed = (volume.to(device, non_blocking=non_blocking, **kwargs) for volume in plain)
    return torch.cat([moving, fixed], dim=1), fixed


class TrainingUpdate:
    """One step: network, objective, gradients, a look whether they are finite, optimizer, schedule.

    Args:
        seed: of all noise in training; iteration i draws from `fold(seed, i)`.
        scheduler: learning rate schedule, stepped every iteration.
        max_grad_norm: gradients longer than this are shortened to it; None leaves them.
    """

    def __init__(self, seed: int = 0, scheduler: Any = None, max_grad_norm: float | None = None) -> None:
        self.seed, self.scheduler, self.max_grad_norm = seed, scheduler, max_grad_norm

    def __call__(self, engine: Any, batch: dict[str, Any]) -> dict[str, Any]:
        """The update function of a `monai.engines.SupervisedTrainer`."""
        if batch is None:
            raise ValueError("the data loader gave no batch")
        pair, fixed = engine.prepare_batch(batch, engine.state.device, engine.non_blocking)
        output: dict[str, Any] = {Keys.IMAGE: pair}
        engine.state.output = output
        engine.network.train()
        engine.optimizer.zero_grad(set_to_none=True)

        output[Keys.PRED] = engine.network(pair)
        # Here, not only at the loss: linear algebra on NaN fails with messages that nobody understands.
        if not torch.isfinite(output[Keys.PRED].detach().sum()):
            raise NonFiniteTrainingError("the network's output", engine.state.iteration, pair_names(batch))
        engine.fire_event(IterationEvents.FORWARD_COMPLETED)
        seed = fold(self.seed, engine.state.iteration)
        labels = None
        if engine.loss_function.target.overlap is not None:
            moving_label, fixed_label = (batch[key].as_subclass(Tensor) for key in ("moving_label", "fixed_label"))
            labels = moving_label.to(pair.device), fixed_label.to(pair.device)
        processes = Processes.current()
        outcome = engine.loss_function(output[Keys.PRED], pair[:, :1], fixed, seed, labels=labels, processes=processes)
        output[Keys.LOSS], output[FIGURES] = outcome.loss, outcome.figures
        if not torch.isfinite(outcome.loss):
            raise NonFiniteTrainingError("the loss", engine.state.iteration, pair_names(batch))
        engine.fire_event(IterationEvents.LOSS_COMPLETED)

        outcome.loss.backward()
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(engine.network.parameters(), limit)
        # Before the optimizer takes it in: after, no weight would be left to save.
        if not torch.isfinite(norm):
            raise NonFiniteTrainingError("the gradient", engine.state.iteration, pair_names(batch))
        output[FIGURES]["grad_norm"] = float(norm)
        engine.fire_event(IterationEvents.BACKWARD_COMPLETED)

        engine.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        output[Keys.LOSS], output[Keys.PRED] = outcome.loss.detach(), output[Keys.PRED].detach()
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return output


class ValidationUpdate:
    """Registers a pair by the mean of the resampled posterior.

    Args:
        sampler: the way from a pair to its posterior. Its network is the one that is trained, not in the wrapper of
            several processes: these need not have equally many pairs to validate.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    @torch.no_grad()
    def __call__(self, engine: Any, batch: dict[str, Any]) -> dict[str, Any]:
        """The update function of a `monai.engines.SupervisedEvaluator`.

        `ddf` is the mean of the resampled fields (the mean itself for a deterministic network), [B, 3, X, Y, Z].
        """
        pair, _ = engine.prepare_batch(batch, engine.state.device, engine.non_blocking)
        self.sampler.model.network.eval()
        ddfs, stds, figures = zip(*(self._register(part) for part in pair.split(1)), strict=True)
        ddf = torch.cat(ddfs)
        output = {
            Keys.IMAGE: pair,
            "ddf": ddf,
            "warped": warp(pair[:, :1], ddf),
            "std": torch.cat(stds),
            FIGURES: {name: sum(each[name] for each in figures) / len(figures) for name in figures[0]},
        }
        engine.fire_event(IterationEvents.FORWARD_COMPLETED)
        engine.fire_event(IterationEvents.MODEL_COMPLETED)
        return output

    def _register(self, pair: Tensor) -> tuple[Tensor, Tensor, dict[str, float]]:
        """Displacement [1, 3, X, Y, Z], its standard deviation [1, 1, X, Y, Z] (voxels), figures."""
        posterior = self.sampler.posterior(PairImages.on_one_grid(pair[:, :1], pair[:, 1:]))
        draws, space = posterior.draws, posterior.space
        mean = space.on_work(posterior.mean[None])
        variance = torch.zeros_like(mean)
        for _, count, points in posterior.samples():
            variance += count / len(draws.resampled) * (space.on_work(points[None]) - mean).square()
        figures = {"variance": float(variance.mean()), "ess": draws.ess / len(draws.weights), "khat": draws.khat}
        return mean, variance.sum(1, keepdim=True).sqrt(), {} if posterior.layout.deterministic else figures


def pair_names(batch: dict[str, Any]) -> list[str]:
    """'moving -> fixed' for each pair of a batch."""
    moving, fixed = (batch.get(f"{role}_name", ["?"]) for role in ("moving", "fixed"))
    return [f"{m} -> {f}" for m, f in zip(moving, fixed, strict=False)]
