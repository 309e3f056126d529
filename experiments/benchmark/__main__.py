"""`python -m experiments.benchmark [solve | train | inference | growth | fusion | all]`: figures of this machine.

A table for people, and JSON in output/benchmark. `--paper` measures `train` or `inference` at the paper's size.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

BENCHMARKS = ("solve", "train", "inference", "growth", "fusion")
AT_PAPER_SIZE = ("train", "inference")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the named benchmark, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, "all"], nargs="?", default="all")
    parser.add_argument("--paper", action="store_true", help="144x160x192 at 1 mm (train, inference)")
    parser.add_argument("--proposals", type=int, help="instead of 1,200 (inference)")
    parsed = parser.parse_args(arguments)
    options: dict[str, Any] = {}
    if parsed.paper:
        if parsed.name not in AT_PAPER_SIZE:
            parser.error(f"--paper is for {' and '.join(AT_PAPER_SIZE)}")
        options["paper"] = True
    if parsed.proposals is not None:
        if parsed.name != "inference" or parsed.proposals < 3:
            parser.error("--proposals is for inference, and at least 3")
        options["num_proposals"] = parsed.proposals
    for name in BENCHMARKS if parsed.name == "all" else (parsed.name,):
        importlib.import_module(f"experiments.benchmark.{name}").run(**options)


if __name__ == "__main__":
    main()
