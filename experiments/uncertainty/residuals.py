"""`python -m experiments.uncertainty.residuals`: what samples say about volumes, beside the people's own label maps.

    python -m experiments.uncertainty.residuals --dataset_dir /data/oasis1mm --steps 1,3,4,7

A row a pair and structure in `volumes.csv`: expected volume, standard deviation of its logarithm over the samples, the
volumes in the fixed and in the moving person's own label map. `experiments.uncertainty.fit` makes intervals of them.
Pairs that the file holds are not done again.
"""

from __future__ import annotations

import csv
from pathlib import Path

import fire
import numpy as np
import torch

from experiments.uncertainty.people import pairs
from experiments.uncertainty.registered import WORK, register
from scripts.core.seg35 import SCORED, SEG35
from scripts.posterior.dice import label_counts
from scripts.posterior.label_maps import encode_labels
from scripts.posterior.spread import named_spread

COLUMNS = ("fixed", "moving", "label", "name", "expected", "log_std", "true", "moving_volume")


def residuals(
    dataset_dir: str,
    steps: tuple[int, ...] = (1, 3, 4, 7),
    num_samples: int = 40,
    split: str = "train",
    spread: str = "curvature",
    table: str = "volumes.csv",
) -> None:
    """Go through pairs of people; `steps` say who moves onto whom."""
    folder, path = Path(dataset_dir), WORK / table
    path.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if path.exists():
        done = {(row["fixed"], row["moving"]) for row in csv.DictReader(path.open(encoding="utf-8"))}
    else:
        path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    labels = list(SCORED)
    for step in steps if isinstance(steps, tuple | list) else (steps,):
        for fixed, moving in pairs(step, split):
            if (fixed, moving) in done:
                continue
            one = register(folder, fixed, moving)
            samples = one.posterior(named_spread(spread), num_samples).labels(one.pair.moving_label, labels)
            space = one.pair.images.space
            shrunk = abs(float(np.linalg.det(space.alignment[:3, :3])))
            own, other = (
                label_counts(encode_labels(label, labels), len(labels)) * grid.voxel_volume
                for label, grid in ((one.pair.fixed_label, space.fixed), (one.pair.moving_label, space.moving))
            )
            columns = [samples.mean_volumes, samples.log_volume_std, own.double(), other / shrunk]
            rows = torch.stack(columns, dim=1).tolist()
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                for label, row in zip(labels, rows, strict=True):
                    writer.writerow([fixed, moving, label, SEG35[label].name, *(f"{value:.5g}" for value in row)])
            print(fixed, moving, flush=True)


if __name__ == "__main__":
    fire.Fire(residuals)
