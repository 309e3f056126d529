"""Progress: one line of a terminal, few lines in a log, nothing of what is not asked for."""

from __future__ import annotations

import io
import logging
import re
from types import SimpleNamespace

import pytest

from scripts.core.processes import Processes
from scripts.core.progress import Progress, say


@pytest.fixture
def terminal(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("scripts.core.progress.sys", SimpleNamespace(stderr=screen))
    return screen


def lines(caplog):
    return [re.sub(r", [\d:]+ left$", " …", record.getMessage()) for record in caplog.records]


@pytest.mark.parametrize("how", ["log", True])  # tests have no terminal
def test_log_lines_are_few_and_end_with_the_whole(caplog, how):
    with caplog.at_level(logging.INFO), Progress("proposals", 100, how) as advance:
        for done in range(1, 101):
            advance(done)
    middle = [f"proposals: {done} of 100 …" for done in (20, 40, 60, 80)]
    assert lines(caplog) == ["proposals: 0 of 100", *middle, "proposals: 100 of 100"]


@pytest.mark.parametrize(("how", "shown"), [(True, True), (False, False)])
def test_bar_is_drawn_only_on_request(terminal, how, shown):
    with Progress("summary", 3, how) as advance:
        advance(2)
    assert ("summary" in terminal.getvalue()) is shown


def test_only_the_first_of_several_processes_shows_anything(terminal, caplog, monkeypatch):
    monkeypatch.setattr(Processes, "current", lambda: Processes(1, 2))
    with caplog.at_level(logging.INFO):
        for how in (True, "log"):
            with Progress("summary", 3, how) as advance:
                advance(3)
    assert terminal.getvalue() == "" == caplog.text


def test_parts_stand_in_the_line_of_the_whole(terminal):
    with Progress("pairs", 2) as pairs:
        with Progress("refining", 25) as advance:
            advance(5)
        pairs(1, "dice=0.7")
        with Progress("detail", 8) as advance:
            advance(4)
        say("failed: x")
    drawn = terminal.getvalue()
    assert "0/2 [00:00<?, refining 5/25]" in drawn
    assert re.search(r"1/2 \[00:00<00:00, dice=0.7, detail 4/8\]", drawn)
    assert "failed: x\n" in drawn
    assert drawn.count("\n") == 1  # one line, drawn again and again


def test_parts_leave_nothing_in_a_log(caplog):
    with caplog.at_level(logging.INFO), Progress("pairs", 1) as pairs:
        with Progress("refining", 25, "log") as advance:
            advance(25)
        pairs(1)
    assert lines(caplog) == ["pairs: 0 of 1", "pairs: 1 of 1"]


def test_what_was_done_before_does_not_count_for_the_time_left(caplog):
    with caplog.at_level(logging.INFO):
        display = Progress("evaluation", 4, done=1)
        display(2, fresh=False)
        display(3)
        display.close()
        display.close()  # an interruption and the end of the run may both close it
        Progress("next", 1).close()
    assert lines(caplog) == ["evaluation: 1 of 4", "evaluation: 2 of 4", "evaluation: 3 of 4 …", "next: 0 of 1"]
