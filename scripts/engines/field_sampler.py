"""Samples of displacement fields from networks that predict one: dropout left on, or an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from monai.inferers import Inferer
from torch import Tensor, nn

from scripts.gaussian.noise import fold

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class FieldSamples(Inferer):
    """Runs a network, or several, K times; for the engines of MONAI, in training as well as in evaluation.

    Sample k has a seed of its own, so it is the same thinned network for every pair, whatever came before it. (Within
    a batch each pair has its own masks.) The random state of the caller is left as it was.

    Args:
        num_samples: K; None for as many as there are networks, which take turns.
        dropout: put dropout layers, and nothing else, in training mode while samples are drawn. False leaves networks
            as they are: for ensembles, and for training, where masks must differ from step to step.
        seed: of the dropout.
        separate: call `network(moving, fixed)` with the two halves of the input's channels, as MONAI's VoxelMorph
            wants it, rather than `network(pair)`.
        output: which part of a network's output is the field: a position or a key; None if it is all there is.

    Example:
        >>> network = nn.Sequential(nn.Conv3d(2, 8, 3, padding=1), nn.Dropout(0.5), nn.Conv3d(8, 3, 1)).eval()
        >>> FieldSamples(4)(torch.rand(1, 2, 8, 8, 8), network).shape
        torch.Size([1, 4, 3, 8, 8, 8])
    """

    def __init__(
        self,
        num_samples: int | None = None,
        dropout: bool = True,
        seed: int = 0,
        separate: bool = False,
        output: int | str | None = None,
    ) -> None:
        super().__init__()
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"expected at least one sample, got {num_samples}")
        self.num_samples, self.dropout, self.seed = num_samples, dropout, seed
        self.separate, self.output = separate, output

    def __call__(
        self, inputs: Tensor, network: Callable[..., Any] | Sequence[nn.Module], *args: Any, **kwargs: Any
    ) -> Tensor:
        """Draw samples.

        Args:
            inputs: pairs of images, [B, 2 C, X, Y, Z], moving before fixed (or however the network was trained).
            network: one that predicts, or an ensemble: a `torch.nn.ModuleList`, or any list.

        Returns:
            Fields in voxels, [B, K, 3, X, Y, Z].

        Raises:
            ValueError: when samples would repeat each other, or what a network gives is no field.
        """
        members: list[Any] = list(network) if isinstance(network, nn.ModuleList | Sequence) else [network]
        count = self.num_samples or len(members)
        layers = [_dropout_layers(member) if self.dropout else [] for member in members]
        if count > len(members) and not all(layers):
            raise ValueError(
                f"{count} samples of {len(members)} network(s) would repeat each other: there is no dropout (layers "
                "with p > 0, and dropout=True); lower num_samples or give more networks"
            )
        plain = inputs.as_subclass(Tensor)  # a MetaTensor would carry its affine through every layer
        images = plain.chunk(2, dim=1) if self.separate else (plain,)
        fields = []
        for k in range(count):
            member = members[k % len(members)]
            with _sampling(layers[k % len(members)], fold(self.seed, k), plain.device):
                fields.append(self._field(member(*images, *args, **kwargs), plain))
        return torch.stack(fields, dim=1)

    def _field(self, output: Any, images: Tensor) -> Tensor:
        """The field in what a network gave, [B, 3, X, Y, Z]."""
        if self.output is not None:
            output = output[self.output]
        expected = (len(images), 3, *images.shape[2:])
        if not isinstance(output, Tensor) or output.shape != expected:
            got: Any = type(output).__name__
            if isinstance(output, Tensor):
                got = tuple(output.shape)
            elif isinstance(output, Mapping):
                got = f"a mapping of {', '.join(map(str, output))}"
            raise ValueError(f"expected a field of shape {expected} from the network, got {got}; see `output`")
        return output


def _dropout_layers(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, _DROPOUT) and module.p > 0]


@contextmanager
def _sampling(layers: Sequence[nn.Module], seed: int, device: torch.device) -> Iterator[None]:
    """These layers in training mode with random numbers of their own; everything as before afterwards."""
    if not layers:
        yield
        return
    modes = [layer.training for layer in layers]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        try:
            for layer in layers:
                layer.train()
            yield
        finally:
            for layer, mode in zip(layers, modes, strict=True):
                layer.train(mode)
