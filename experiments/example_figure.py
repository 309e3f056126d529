"""`python -m experiments.example_figure --dataset_dir DIR`: the paper's examples of real pairs.

Every pair is sampled as `run evaluation` samples it, as whole volumes. Two pairs are picked: the one whose best
resampled field, the Oracle, is furthest above the mean field by Dice, and the one whose fields fall most clearly into
two modes. Their numbers go into a CSV file, a row for each different resampled field. The picture is drawn from that
file alone and shows samples as points, never a scan; `--draw` draws it again.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.example_pairs import Example, Examples, Sample, build, examine, pick
from scripts.core.atomic import write_text
from scripts.core.errors import CheckpointError
from scripts.evaluation.pair_report import LabeledPair
from scripts.evaluation.plots import COLORS, GRAY

COLUMNS = ("example", *Example._fields[:-1], *Sample._fields)
LARGEST = 110
"""Area of the marker of the sample that was drawn most often; the others' are in proportion."""


def write(examples: Examples, path: Path) -> None:
    """The CSV file, numbers with five digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, example in examples.items():
        for sample in example.samples:
            writer.writerow([name, *(f"{value:.5g}" for value in (*example[:-1], *sample))])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text.getvalue())


def read(path: Path) -> Examples:
    """What :func:`write` has written.

    Raises:
        ValueError: for a file with other columns, or without one of the examples.
    """
    rows: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            rows.setdefault(row["example"], []).append(row)
    if tuple(reader.fieldnames or ()) != COLUMNS or set(rows) != {"oracle", "modes"}:
        raise ValueError(f"{path} is no file of this program; make it with --dataset_dir")
    return {
        name: Example._make([*_numbers(Example, own[0]), tuple(Sample._make(_numbers(Sample, row)) for row in own)])
        for name, own in rows.items()
    }


def _numbers(kind: type[Example | Sample], row: Mapping[str, str]) -> list[Any]:
    """The fields of a tuple that are in a row, as numbers of their type."""
    types = get_type_hints(kind)
    return [types[name](row[name]) for name in kind._fields if name in row]


def draw(examples: Examples) -> Figure:
    """Two panels: Dice against weight of the Oracle's pair, and the plane of the fields of the pair with modes."""
    figure = Figure(figsize=(10, 4.8), layout="constrained")
    oracle, modes = figure.subplots(1, 2)
    _draw_oracle(oracle, examples["oracle"])
    _draw_modes(modes, examples["modes"])
    for axes in (oracle, modes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="0.9")
        axes.set_axisbelow(True)
        axes.margins(0.06)
        axes.title.set_fontsize(10)
        axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=2, frameon=False)
    return figure


def _draw_oracle(axes: Axes, example: Example) -> None:
    best = max(example.samples, key=lambda sample: sample.dice)
    weight, logs, dice, *_ = (np.array(values) for values in zip(*example.samples, strict=True))
    sizes = LARGEST * weight / weight.max()
    axes.scatter(logs, dice, s=sizes, color=COLORS[0], alpha=0.6, linewidth=0, label=f"{len(dice)} different samples")
    axes.plot(best.log_weight, best.dice, "*", color=COLORS[5], markersize=15)
    lines = (("Oracle", best.dice, "-"), ("mean field", example.dice_mean, "--"), ("μ", example.dice_mu, ":"))
    for (name, value, style), color in zip(lines, (COLORS[5], "black", GRAY), strict=True):
        axes.axhline(value, color=color, linestyle=style, linewidth=1.3, label=f"{name}: DSC {value:.3f}")
    gain = f"{example.gain:+.4f} over the mean field, the largest gain of {example.pairs} pairs"
    title = f"(a) Oracle of pair {example.pair}\n{gain}"
    axes.set(title=title, xlabel="log-weight, relative to the best proposal", ylabel="DSC, mean over structures")


def _draw_modes(axes: Axes, example: Example) -> None:
    weight, _, dice, mode, first, second = (np.array(values) for values in zip(*example.samples, strict=True))
    for k in np.unique(mode):
        own = mode == k
        mean = np.average(dice[own], weights=weight[own])
        label = f"{'mode' if example.distinct else 'group'} {k + 1}: {weight[own].sum():.0%}, mean DSC {mean:.3f}"
        sizes = LARGEST * weight[own] / weight.max()
        axes.scatter(first[own], second[own], s=sizes, color=COLORS[k], alpha=0.6, linewidth=0, label=label)
    axes.plot(0, 0, "x", color="black", markersize=8, label=f"mean field: DSC {example.dice_mean:.3f}")
    axes.set(title=_modes_title(example), xlabel="first principal component of the field (mm rms)")
    axes.set_ylabel("second principal component (mm rms)")


def _modes_title(example: Example) -> str:
    """What was found, and where; that there is nothing to be found, if so."""
    pair = f"pair {example.pair} ({_p_values(example)})"
    if example.distinct:
        return f"(b) Two modes: in {example.pairs_with_modes} of {example.pairs} pairs\nmost clearly in {pair}"
    return f"(b) No two modes in any of {example.pairs} pairs\nmost separated is {pair}"


def _p_values(example: Example) -> str:
    return f"p = {example.p_value:.2g}, of the valley {example.valley_p_value:.2g}"


def search(options: argparse.Namespace) -> Examples:
    """Examine all pairs, with a line about each, and pick the two examples."""
    given = {name: getattr(options, name) for name in ("dataset_dir", "split", "split_file", "num_pairs")}
    given |= {"ckpt_path": str(options.ckpt_path), "refine_steps": options.refine_steps}
    given |= {"evaluated_proposals": options.num_proposals, "evaluated_samples": options.num_samples}
    found = []
    with TemporaryDirectory() as folder:
        evaluation = build(options.config_file.split(","), folder, given)
        for number, item in enumerate(evaluation.data_loader):
            start = time.perf_counter()
            sampler = evaluation.sampler
            example = examine(evaluation, LabeledPair.of_item(item, sampler.factor, sampler.device), number)
            found.append(example)
            print(
                f"pair {number}: DSC of μ {example.dice_mu:.4f}, mean field {example.dice_mean:.4f}, Oracle "
                f"{example.dice_mean + example.gain:.4f}; {len(example.samples)} different samples, two modes: "
                f"{'yes' if example.distinct else 'no'} ({_p_values(example)}, dip {example.dip:.3f}); "
                f"{time.perf_counter() - start:.1f} s",
                flush=True,
            )
    return pick(found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Search for the examples, or only draw them, and say where they are."""
    parser = argparse.ArgumentParser(prog="python -m experiments.example_figure", description=__doc__)
    parser.add_argument("--draw", action="store_true", help="only draw what the CSV file holds")
    parser.add_argument("--config_file", default="configs/train.yaml,configs/evaluate.yaml", help="comma-separated")
    parser.add_argument("--ckpt_path", type=Path, default=Path("models/model.pt"))
    parser.add_argument("--dataset_dir", help="folder of scans, as for the evaluation")
    parser.add_argument("--split", default="test")
    parser.add_argument("--split_file", default="configs/splits/oasis.json", help='"" for the folder\'s own')
    parser.add_argument("--num_pairs", type=int, default=16, help="the evaluation's fixed random choice")
    parser.add_argument("--refine_steps", type=int, help="gradient steps on each pair; the config's if not given")
    parser.add_argument("--num_proposals", type=int, help="drawn for each pair; the config's if not given")
    parser.add_argument("--num_samples", type=int, help="resampled for each pair; the config's if not given")
    parser.add_argument("--csv", type=Path, default=Path("docs/results/examples.csv"))
    parser.add_argument("--output", type=Path, default=Path("docs/images/results/examples.png"))
    options = parser.parse_args(arguments)
    if not options.draw and not options.dataset_dir:
        parser.error("--dataset_dir names the scans to look for examples in; --draw only draws the CSV file's")
    try:
        if not options.draw:
            write(search(options), options.csv)
            print(f"The numbers are in {options.csv}")
        figure = draw(read(options.csv))
    except (CheckpointError, ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=100)
    print(f"The picture is in {options.output}")


if __name__ == "__main__":
    main()
