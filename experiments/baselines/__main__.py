"""`python -m experiments.baselines METHOD --dataset_dir data/oasis2mm …`: other tools on the pairs of a split.

METHOD is unregistered, affine or syn (ANTs), syn_default (fewer iterations: the package's defaults), convexadam, or
bundle: this bundle itself, through files as users run it.
The resolution is that of the scans in dataset_dir. Results have the files of `run evaluation`; interrupted, it goes on
where it stopped. ANTs and ConvexAdam are installed by: pip install -r experiments/baselines/requirements.txt
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from experiments.baselines.methods import NAMES, make
from experiments.baselines.run import pairs_of, run
from experiments.results.store import filed_pairs


def option(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as JSON where it is some (numbers, null, true), else as text."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def main(arguments: list[str] | None = None) -> None:
    """Run one tool, print its row of the table, say where the results are."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.baselines",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("method", choices=NAMES)
    parser.add_argument("--dataset_dir", required=True, help="folder of scans, as for training and evaluation")
    parser.add_argument("--split", default="val")
    parser.add_argument("--split_file", default="configs/splits/oasis.json", help='"" for the folder\'s own')
    parser.add_argument("--num_pairs", type=int, default=None, help="a fixed random choice; all if not given")
    parser.add_argument(
        "--filed", default=None, metavar="GROUP/NAME", help="leave out the pairs that docs/results has there already"
    )
    parser.add_argument("--output_dir", default=None, help="output/baselines/METHOD if not given")
    parser.add_argument(
        "--set", action="append", default=[], type=option, metavar="KEY=VALUE", help="bundle: override inference.json"
    )
    parser.add_argument("--preset", default=None, help="bundle: a file of configs/presets, such as one_mm")
    parser.add_argument(
        "--samples", action="store_true", help="bundle: score its samples, too: calibration, Oracle, volumes"
    )
    chosen = parser.parse_args(arguments)
    folder = chosen.output_dir or f"output/baselines/{chosen.method}"
    known = filed_pairs(*chosen.filed.split("/")) if chosen.filed else ()
    dataset = pairs_of(chosen.dataset_dir, chosen.split, chosen.split_file or None, chosen.num_pairs, known=known)
    try:
        summary = run(
            chosen.method, make(chosen.method, dict(chosen.set), chosen.preset, chosen.samples), dataset, folder
        )
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; install it by: pip install -r experiments/baselines/requirements.txt") from error
    structures, pairs = summary["structures"], summary["pairs"]
    print(
        f"{chosen.method}: {summary['num_pairs']} pairs, Dice {pairs['dice_before']['mean']:.3f} to "
        f"{structures['dice_mean']['mean']:.3f}, folds {pairs['fold_mean']['mean']:.3f} %, "
        f"{pairs['seconds']['mean']:.1f} s of processor time a pair\nThe results are in {folder}"
    )


if __name__ == "__main__":
    main()
