"""A few given fields as a proposal: those of an ensemble, or the one of a network without a covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Fields:
    """The uniform distribution over K fields [K, 3, x, y, z]; a :class:`~scripts.networks.layout.Proposal`."""

    def __init__(self, fields: Tensor) -> None:
        self.fields, self.limit = fields, len(fields)
        self.mean = fields.mean(0, keepdim=True)

    def draw(self, indices: Sequence[int], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Sample i is field i mod K, whatever the seed; log q = −log K, of a density that counts fields."""
        fields = self.sample(indices=indices, seed=seed)
        return fields, fields.new_full((len(indices), 1), -math.log(self.limit), dtype=torch.float64)

    def sample(self, n: int | None = None, *, seed: int = 0, indices: Sequence[int] | None = None) -> Tensor:
        """The fields, [n, 1, 3, x, y, z]."""
        del seed
        which = torch.tensor([i % self.limit for i in (range(n or 0) if indices is None else indices)])
        return self.fields[which.to(self.fields.device)][:, None].clone()

    def average(self, indices: Sequence[int], weights: Tensor, seed: int = 0) -> Tensor:
        """The weighted mean of some of them, [1, 3, x, y, z]."""
        return torch.einsum("n,nb...->b...", weights.to(self.fields), self.sample(indices=indices, seed=seed))
