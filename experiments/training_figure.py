"""`python -m experiments.training_figure RUN [RUN …] --output figure.png`: how trainings went.

Validation Dice (with that of the unregistered pairs), variance of the displacements, and effective sample size as a
share of the proposals, against the iteration, from each run's validation.csv.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure

PANELS = [
    ("dice", "validation Dice"),
    ("variance", "displacement variance (voxels²)"),
    ("ess", "effective sample size / proposals"),
]

FEW = 4
"""Lines that leave room for a legend among them."""


def read_columns(path: Path) -> dict[str, list[float]]:
    """Columns of a CSV file of numbers."""
    if not path.is_file():
        raise SystemExit(f"{path} does not exist: is this the output_dir of a training?")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows] for name in rows[0] if all(row[name] for row in rows)}


def draw(runs: dict[str, dict[str, list[float]]]) -> Figure:
    """Three panels, a line for each run."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for number, (column, title) in enumerate(PANELS):
        axes = figure.add_subplot(1, len(PANELS), number + 1)
        for name, columns in runs.items():
            if column in columns:
                axes.plot(columns["iteration"], columns[column], marker="o", markersize=3, label=name)
        baseline = [columns["dice_unregistered"][0] for columns in runs.values() if "dice_unregistered" in columns]
        if column == "dice" and baseline:
            axes.axhline(baseline[0], color="gray", linestyle="--", label="unregistered")
        axes.set(title=title, xlabel="iteration")
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    if len(labels) <= FEW:
        figure.axes[0].legend(fontsize=8)
    else:  # they would cover the lines
        figure.legend(handles, labels, loc="outside right upper", fontsize=8, frameon=False)
    return figure


def main() -> None:
    """Read the runs, write the picture, say where it is."""
    parser = argparse.ArgumentParser(prog="python -m experiments.training_figure", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of trainings")
    parser.add_argument("--output", type=Path, default=Path("output/training.png"))
    arguments = parser.parse_args()
    runs = {run.name: read_columns(run / "validation.csv") for run in arguments.runs}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    draw(runs).savefig(arguments.output, dpi=110)
    print(f"The picture is in {arguments.output}")


if __name__ == "__main__":
    main()
