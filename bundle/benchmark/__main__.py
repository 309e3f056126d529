"""`python -m bundle.benchmark [solve | train | inference | all]`: figures of this machine.

A table for people, and JSON in output/benchmark.
"""

from __future__ import annotations

import argparse
import importlib

BENCHMARKS = ("solve", "train", "inference")


def main() -> None:
    """Run the named benchmark, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m bundle.benchmark", description=__doc__)
    parser.add_argument("name", choices=[*BENCHMARKS, "all"], nargs="?", default="all")
    chosen = parser.parse_args().name
    for name in BENCHMARKS if chosen == "all" else (chosen,):
        importlib.import_module(f"bundle.benchmark.{name}").run()


if __name__ == "__main__":
    main()
