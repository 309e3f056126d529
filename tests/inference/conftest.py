"""What the tests of the objectives share: raw network outputs, the toy's losses, and tiny pairs of images."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from scripts.inference.objectives import ImportanceObjective, Objective, SIRObjective, VariationalObjective
from scripts.networks import ProposalLayout
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.prior import DiffusionPrior
from scripts.registration.target import Target
from tests.gaussian.conftest import VARIANTS, random_gaussian
from tests.inference.toy import GRID, LinearGaussianTarget, dense_of, image_of, target_with_posterior
from tests.registration.conftest import brain_like

VOXELS = math.prod(GRID)
SIZE = (8, 8, 8)  # of the images that a network sees
OBJECTIVES = {
    "V": VariationalObjective,
    "I": ImportanceObjective,
    "S": functools.partial(SIRObjective, num_proposals=6, num_resampled=3),
}


def layout_of(variant: str) -> ProposalLayout:
    cross_channel, rank = VARIANTS[variant]
    return ProposalLayout(cross_channel, rank, initial_std=0.7)


def random_raw(layout: ProposalLayout, batch: int = 1, seed: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    raw = 0.2 * torch.randn(batch, layout.out_channels, *GRID, generator=generator, dtype=torch.float64)
    return raw.requires_grad_()


@pytest.fixture(scope="module")
def toy() -> tuple[LinearGaussianTarget, Tensor]:
    """A target with a known posterior, and its observation."""
    return target_with_posterior(dense_of(random_gaussian("LC", 1, GRID)))


def images(batch: int = 1, size: tuple[int, ...] = SIZE, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    moving = torch.cat([brain_like(*size, seed=b, dtype=dtype) for b in range(batch)])
    fixed = torch.cat([brain_like(*size, seed=20 + b, dtype=dtype) for b in range(batch)])
    return moving, fixed


def apply(objective: Objective, raw: Tensor, y: Tensor, seed: int = 7) -> Tensor:
    """The loss on the toy without regularization."""
    objective.off_diagonal_penalty = 0.0
    moving = image_of(y)
    return objective(raw, moving, moving, seed).loss


def assert_same_with_gradient(loss: Tensor, expected: Tensor, raw: Tensor) -> None:
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
    got, wanted = (torch.autograd.grad(value, raw)[0] for value in (loss, expected))
    assert float(wanted.abs().max()) > 1e-3
    torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)


def registration_target() -> Target:
    return Target(NCCLikelihood(window=3), DiffusionPrior(1.0), mean_prior=DiffusionPrior(2.5))
