"""Results of an evaluation that several processes share: each computes some pairs, all know them, one writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.core.processes import Processes
from scripts.evaluation.pair_result import PairResult
from scripts.evaluation.results import PathLike, ResultsError, ResultStore


class SharedStore(ResultStore):
    """A store for several processes, of which the first has the files; alone, it is nothing but a store.

    Pair number k is computed by process k mod w. After each round of w pairs all processes meet in :meth:`add`, so that
    results are filed in the order in which one process would have filed them.
    """

    def __init__(self, folder: PathLike, resume: bool = True, processes: Processes | None = None) -> None:
        self.processes = Processes.current() if processes is None else processes
        self.rounds = 0
        if self.processes.is_first:
            super().__init__(folder, resume)
        known = self.processes.from_first(_encode(self.results) if self.processes.is_first else "")
        if not self.processes.is_first:
            self.folder, self.results = Path(folder), _decode(known)

    def check_settings(self, settings: Mapping[str, Any]) -> None:
        """See :meth:`ResultStore.check_settings`; all processes raise what the first does."""
        text = json.dumps(settings, sort_keys=True)
        if len(set(self.processes.gather(text))) > 1:
            raise ResultsError("the processes have different settings or weights: start them with the same command")
        problem = ""
        if self.processes.is_first:
            try:
                super().check_settings(settings)
            except ResultsError as error:
                problem = str(error)
        if problem := self.processes.from_first(problem):
            raise ResultsError(problem)

    def add(self, result: PairResult | None) -> None:
        """Take in this process's result of the round, None for a pair that was done before; waits for the others."""
        self.rounds += 1
        texts = self.processes.gather(_encode([] if result is None else [result]))
        for new in (part for text in texts for part in _decode(text)):
            if self.processes.is_first:
                super().add(new)
            else:
                self.results.append(new)

    def finish(self, pairs: int) -> None:
        """Wait for processes that have one more of `pairs` pairs to do than this one."""
        while self.processes.size > 1 and self.rounds < -(-pairs // self.processes.size):
            self.add(None)


def _encode(results: list[PairResult]) -> str:
    """As JSON; Python's has NaN, and numbers that are read back to the last bit."""
    return json.dumps([asdict(result) for result in results])


def _decode(text: str) -> list[PairResult]:
    return [PairResult(**{**entry, "labels": tuple(entry["labels"])}) for entry in json.loads(text)]
