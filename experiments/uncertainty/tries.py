"""`python -m experiments.uncertainty.tries`: proper scores of many spreads around the same means, on training people.

    python -m experiments.uncertainty.tries --dataset_dir /data/oasis1mm --pairs 6 \
        --spreads "[{'kind': 'curvature', 'trust': 0.008, 'stiffness': 0.03}, {'kind': 'noise'}]"

Each line of the table is a spread: means over the pairs. Rows are added to a CSV file, and what is in it is not done
again.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fire
import numpy as np
import torch

from experiments.uncertainty.people import pairs as chosen
from experiments.uncertainty.people import tested
from experiments.uncertainty.registered import WORK, Registered, register
from scripts.core.described import make
from scripts.core.seg35 import SCORED
from scripts.evaluation.pair_report import score
from scripts.evaluation.pair_result import PAIR_SCORES, PairResult
from scripts.evaluation.results import ResultStore
from scripts.inference.model_file import load_model
from scripts.networks.ensemble import EnsembleLayout
from scripts.posterior.spread import NetworkSpread, Spread

STRUCTURES = ("dice_labels", "dice_sample", "brier", "log_score", "ece", "ause_label", "inside_95", "volume_z_square")
PAIRS = ("fold_samples", "brier_classes", "log_score_classes")


class OtherNetwork(Spread):
    """The Gaussian of other weights around this mean, times one number."""

    kind = "other_network"

    def __init__(self, weights: str, scale: float = 1.0, local: bool = False) -> None:
        self.weights, self.scale, self.local = weights, scale, local

    def around(self, raw: Any, layout: Any, target: Any, space: Any, pair: Any) -> tuple[Any, Any]:
        """See `Spread.around`."""
        model = load_model(self.weights)
        with torch.no_grad():
            own = model.network(torch.cat([pair.moving, pair.fixed], dim=1))
        own = model.layout.with_means(own, layout.means(raw))
        return NetworkSpread(self.scale).around(own, model.layout, target, space, pair)


class BlurredLabels(Spread):
    """The labels that the mean alone carries over, their probabilities blurred."""

    kind = "blurred"

    def __init__(self, blur: float = 0.5) -> None:
        self.blur = blur

    def around(self, raw: Any, layout: Any, target: Any, space: Any, pair: Any) -> tuple[Any, Any]:
        """See `Spread.around`."""
        return layout.means(raw), EnsembleLayout(1)


def figures(result: PairResult) -> dict[str, float]:
    """The scores that decide, means over structures."""
    out = {name: float(np.nanmean(result.structures[name])) for name in STRUCTURES}
    return out | {name: result.pair[name] for name in PAIRS}


def tries(
    dataset_dir: str,
    spreads: Sequence[Mapping[str, Any]],
    pairs: int = 6,
    num_samples: int = 40,
    step: int = 4,
    table: str = "tries.csv",
    split: str = "train",
    keep: str | None = None,
) -> None:
    """Score spreads on pairs of people; prints a row for each spread when its pairs are done.

    Numbers are chosen on training people. `--split test --pairs 16` is for the table of what was chosen: the pairs are
    then those of `run evaluation --num_pairs 16`, and `--keep FOLDER` files them as an evaluation does, for a single
    spread.
    """
    folder, path = Path(dataset_dir), WORK / table
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[str, ...], dict[str, float]] = {}
    names = (*STRUCTURES, *PAIRS)
    if path.exists():
        for row in csv.DictReader(path.open(encoding="utf-8")):
            known[row["data"], row["spread"], row["fixed"], row["moving"], row["samples"]] = {
                name: float(row[name]) for name in names
            }
    else:
        path.write_text(",".join(["data", "spread", "fixed", "moving", "samples", *names]) + "\n", encoding="utf-8")
    print(f"{'':60}" + " ".join(f"{name[:9]:>9}" for name in names), flush=True)
    held: dict[tuple[str, str], Registered] = {}
    for settings in spreads:
        rows, text = [], json.dumps(settings, sort_keys=True)
        for fixed, moving in chosen(step)[:pairs] if split == "train" else tested(split, pairs):
            key = (folder.name, text, fixed, moving, str(num_samples))
            if key not in known:
                if (fixed, moving) not in held:
                    held[fixed, moving] = register(folder, fixed, moving)
                one = held[fixed, moving]
                posterior = one.posterior(make(settings, Spread), num_samples)  # type: ignore[type-abstract]
                result = score(posterior, one.pair, SCORED)
                known[key] = figures(result)
                if keep is not None:
                    nothing = dict.fromkeys(PAIR_SCORES, math.nan)
                    ResultStore(keep).add(replace(result, pair={**nothing, **result.pair}))
                with path.open("a", newline="", encoding="utf-8") as file:
                    csv.writer(file).writerow([*key, *(known[key][name] for name in names)])
            rows.append([known[key][name] for name in names])
        mean = np.mean(rows, axis=0)
        print(f"{text[1:-1][:60]:60}" + " ".join(f"{value:9.4f}" for value in mean), flush=True)


if __name__ == "__main__":
    fire.Fire(tries)
