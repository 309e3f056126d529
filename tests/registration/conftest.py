from __future__ import annotations

import pytest
import torch
from scipy.ndimage import uniform_filter
from torch import Tensor

from scripts.registration import local_correlation, warp

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["compiled", "torch"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test with the compiled loops (for float32 on the CPU) and with their torch twins."""
    if request.param == "torch":
        for module in (local_correlation, warp):
            monkeypatch.setattr(module, "compiled", lambda name, *tensors: None)
    return request.param


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def smooth(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, passes: int = 2) -> Tensor:
    """Noise after a few 3³ means, scaled to a standard deviation of 1."""
    out = noise(*shape, seed=seed).numpy()
    for _ in range(passes):
        out = uniform_filter(out, 3, axes=(2, 3, 4), mode="nearest")
    return torch.from_numpy(out / out.std()).to(dtype)


def brain_like(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Intensities in [0, 1] with background of exactly 0."""
    return (0.4 * smooth(1, 1, *shape, seed=seed, dtype=torch.float64)).clamp(0, 1).to(dtype)
