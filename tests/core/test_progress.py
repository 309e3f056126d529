"""Progress in a log: few lines, the last one at the end."""

from __future__ import annotations

import logging

import pytest

from scripts.core.progress import progress_of


def test_log_lines_are_few_and_end_with_the_whole(caplog):
    with caplog.at_level(logging.INFO), progress_of("proposals", 100, "log") as advance:
        for done in range(1, 101):
            advance(done)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"proposals: {done} of 100" for done in (0, 20, 40, 60, 80, 100)]


@pytest.mark.parametrize(("how", "shown"), [(True, True), (False, False)])
def test_bar_is_drawn_only_on_request(capfd, how, shown):
    with progress_of("summary", 3, how) as advance:
        advance(2)
    assert ("summary" in capfd.readouterr().err) is shown
