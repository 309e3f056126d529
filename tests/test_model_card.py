"""The model card: its sections, its links, and its commands, each run on small data."""

from __future__ import annotations

import re

import pytest

from scripts.core.checkpoint import description_of, read
from tests.engines.conftest import ROOT
from tests.test_readme import commands, place, run_small

__all__ = ["place"]  # a fixture

CARD = (ROOT / "docs/README.md").read_text(encoding="utf-8")
SECTIONS = [
    "Description",
    "Data",
    "Training configuration",
    "Performance",
    "Limits",
    "Intended use",
    "License of the weights",
]


def test_sections_are_those_of_the_model_zoo():
    assert re.findall(r"^## (.+)$", CARD, flags=re.M) == SECTIONS


@pytest.mark.parametrize("page", ["docs/README.md", "docs/results.md"])
def test_every_file_that_the_page_links_to_exists(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if not target.startswith("http")]
    assert targets
    assert [target for target in targets if not (ROOT / "docs" / target).exists()] == []


def test_license_and_credit_are_stated():
    terms = (ROOT / "docs/data_license.txt").read_text(encoding="utf-8")
    plain = " ".join(terms.split())
    for words in ("CC BY-NC", "OASIS project", "under academic subscription", "SBIA Contribution and Software License"):
        assert words in plain
    assert "non-commercial" in " ".join(CARD.split())


def test_the_commands_of_the_card_run_in_their_order(place):
    found = commands(CARD)
    assert [words[words.index("run") + 1] for words in found] == ["training", "calibration", "evaluation"]
    run_small(found, place)
    assert description_of(read(place / "output/training/model.pt"))["fitted"]["temperature"] > 0
    assert (place / "output/training/evaluation_test/tables.txt").is_file()
