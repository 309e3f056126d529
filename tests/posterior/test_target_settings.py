"""Likelihoods and priors as settings, and back."""

import pytest
import torch

from scripts.core.errors import DataError
from scripts.posterior.target_settings import make_target, target_settings
from scripts.registration.local_correlation import LocalNCC, MSELikelihood, NCCLikelihood
from scripts.registration.prior import BendingEnergyPrior, DiffusionPrior, HyperelasticPrior
from scripts.registration.target import Target
from scripts.registration.transform import DisplacementTransform
from tests.registration.conftest import brain_like


@pytest.mark.parametrize("likelihood", [NCCLikelihood(3, 0.7), MSELikelihood(0.2)])
@pytest.mark.parametrize("prior", [DiffusionPrior(1.5), BendingEnergyPrior(0.5), HyperelasticPrior(1.0, 0.2, 0.3)])
def test_a_target_comes_back_from_its_settings(likelihood, prior):
    target = Target(likelihood, prior, DiffusionPrior(2.5))
    again = make_target(target_settings(target), DisplacementTransform())
    z = 0.3 * torch.randn(2, 3, 4, 4, 4, generator=torch.Generator().manual_seed(0))
    images = brain_like(8, 8, 8), brain_like(8, 8, 8, seed=1)
    values = [part(part.prepare(*images)[0], z) for part in (target, again)]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=0)


def test_others_are_refused():
    with pytest.raises(DataError, match="LocalNCC cannot be stored"):
        target_settings(Target(LocalNCC(3)))
    with pytest.raises(DataError, match="later version"):
        make_target(
            {"likelihood": {"kind": "new"}, "prior": {"kind": "diffusion", "weight": 1.0}}, DisplacementTransform()
        )
