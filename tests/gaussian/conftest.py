from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scripts.gaussian import Stencil, StructuredGaussian
from scripts.gaussian.backends import BACKENDS

GRIDS = [(1, 1, 1), (2, 3, 4), (1, 5, 7), (3, 4, 9), (6, 6, 6)]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]
# (cross_channel, rank) of the paper's four covariances; LC with both patterns
VARIANTS = {"D": ("none", 0), "LD": ("none", 3), "C": ("voxel", 0), "LC": ("voxel", 3), "LC full": ("full", 2)}
RTOL = {torch.float64: 1e-9, torch.float32: 1e-4}


def random_entries(
    stencil: Stencil, batch: int, grid: tuple[int, ...], dtype: torch.dtype = torch.float64, seed: int = 0
) -> Tensor:
    """A well-conditioned L: diagonal in [1, 2], small couplings everywhere, also where they point outside."""
    generator = torch.Generator().manual_seed(seed)
    entries = 0.15 * torch.randn(batch, stencil.num_channels, *grid, generator=generator, dtype=torch.float64)
    entries[:, :3] = 1 + torch.rand(batch, 3, *grid, generator=generator, dtype=torch.float64)
    return entries.to(dtype)


def random_gaussian(
    variant: str,
    batch: int = 2,
    grid: tuple[int, ...] = (3, 4, 5),
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    backend: str | None = None,
    requires_grad: bool = False,
) -> StructuredGaussian:
    cross_channel, rank = VARIANTS[variant]
    generator = torch.Generator().manual_seed(1)
    entries = random_entries(Stencil(cross_channel), batch, grid, dtype)
    mean = torch.randn(batch, 3, *grid, generator=generator, dtype=torch.float64).to(dtype)
    factor = 0.5 * torch.randn(batch, rank, 3, *grid, generator=generator, dtype=torch.float64).to(dtype)
    parts = [part.to(device).requires_grad_(requires_grad) for part in (mean, entries, factor)]
    return StructuredGaussian(*parts, backend=backend)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param
