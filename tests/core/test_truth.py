"""The word false, which is no empty text, wherever a command line may set a switch."""

from __future__ import annotations

import pytest

from scripts.core.errors import DataError
from scripts.engines.handlers.checkpoints import Checkpoints
from scripts.inference.objectives import SIRObjective
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target


def switches(tmp_path, value) -> dict[str, bool]:
    layout = ProposalLayout(rank=2)
    network = ProposalNetwork(layout, amp=value)
    objective = SIRObjective(Target(NCCLikelihood(3)), layout, proposal_density=value)
    resume = Checkpoints(tmp_path, network, {}, resume=value).resume
    return {"amp": network.amp, "proposal_density": objective.proposal_density, "resume": resume}


@pytest.mark.parametrize(("value", "expected"), [("false", False), ("True", True), (False, False), (True, True)])
def test_words_and_values_mean_the_same(tmp_path, value, expected):
    assert all(switch is expected for switch in switches(tmp_path, value).values())


def test_another_word_is_refused(tmp_path):
    with pytest.raises(DataError, match="--amp must be true or false, got 'maybe'"):
        switches(tmp_path, "maybe")
