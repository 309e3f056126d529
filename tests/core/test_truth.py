"""The word false, which is no empty text, wherever a command line may set a switch; other values and their errors."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import BeforeValidator, Field

from scripts.core.checked import Labels, Whole, check, checked
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


def refusing(value):
    raise DataError(f"{value} is refused")


@checked
class Few:
    """Something with options."""

    first: Whole
    second: Annotated[Whole, Field(ge=1)] | None = None
    third: Annotated[int, BeforeValidator(refusing)] = 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--first is missing"),
        ({"first": False}, "--first must be a whole number, got False"),
        ({"first": 1, "second": 0}, "--second must be a whole number of at least 1, got 0"),
        ({"first": 1, "forth": 0}, "unknown option --forth; did you mean --first?"),
        ({"first": 1, "qqq": 0}, "unknown option --qqq; the options are first, second, third"),
        ({"first": 1, "third": 3}, "3 is refused"),
    ],
    ids=str,
)
def test_options_of_an_object_are_checked_together(options, message):
    with pytest.raises(DataError) as caught:
        Few(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [[14, 30], (14, 30), "14, 30", "14 30", ["14", "30"]], ids=str)
def test_labels_as_a_list_and_as_text(value):
    assert check("labels", value, Labels) == [14, 30]
    assert check("labels", 14, Labels) == [14]
    with pytest.raises(DataError, match="--labels must be label values such as 14, 30, got 'left'"):
        check("labels", [14, "left"], Labels)
