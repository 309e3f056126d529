"""Settings check themselves, however they are made; limits of each are in its type."""

from __future__ import annotations

import math
from dataclasses import asdict, replace

import pytest

from scripts.core.errors import DataError
from scripts.posterior.settings import Settings


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_proposals": 1}, "--num_proposals must be a whole number of at least 2, got 1"),
        ({"num_proposals": 1e3}, "--num_proposals must be a whole number of at least 2, got 1000.0"),
        ({"num_samples": 0}, "--num_samples must be a whole number of at least 1, got 0"),
        ({"num_samples": "many"}, "--num_samples must be a whole number of at least 1, got 'many'"),
        ({"num_modes": True}, "--num_modes must be a whole number of at least 0, got True"),
        ({"temperature": -1}, "--temperature must be a number of at least 0, got -1"),
        ({"temperature": math.nan}, "--temperature must be a number of at least 0, got nan"),
        ({"temperature": "3"}, "--temperature must be a number of at least 0, got '3'"),
        ({"seed": -1}, "--seed must be in 0..9223372036854775807, got -1"),
        ({"seed": 2**63}, "--seed must be in 0..9223372036854775807, got 9223372036854775808"),
        ({"seed": None}, "--seed must be a whole number, got None"),
        ({"refine_parts": "L"}, "--refine_parts must be mean or all, got 'L'"),
        ({"chunk": 0}, "--chunk must be a whole number of at least 1, got 0"),
        ({"progress": "loud"}, "--progress must be true, false or log, got 'loud'"),
        ({"num_sample": 3}, "unknown option --num_sample; did you mean --num_samples?"),
    ],
    ids=str,
)
def test_a_wrong_one_is_named(option, message):
    with pytest.raises(DataError) as caught:
        Settings(**option)
    assert str(caught.value) == message


def test_by_position_the_name_is_known_too():
    with pytest.raises(DataError, match="--num_samples must be"):
        Settings(1200, 0)


def test_others_are_taken_over_and_checked_again():
    settings = replace(Settings(12, temperature=3, progress="false"), num_samples=6)
    assert (settings.num_proposals, settings.num_samples, settings.temperature) == (12, 6, 3.0)
    assert settings.progress is False
    assert Settings(progress="log").progress == "log"
    assert Settings(**asdict(settings)) == settings
    with pytest.raises(DataError, match="--refine_steps"):
        replace(settings, refine_steps=-1)
