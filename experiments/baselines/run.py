"""Running a tool on the pairs of a split; interrupted, it goes on where it stopped."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from experiments.baselines.methods import Registered
from experiments.baselines.samples import VOLUMES_FILE, append_volumes, volumes_of
from scripts.core.atomic import write_text
from scripts.core.seg35 import SCORED
from scripts.data.datalist import load_datalist, subject_pairs
from scripts.data.pairs import PairDataset
from scripts.data.transforms import load_transforms
from scripts.evaluation import pair_report
from scripts.evaluation.pair_report import LabeledPair
from scripts.evaluation.pair_result import CURVES, DICE_SCORES, PAIR_SCORES, STRUCTURE_SCORES, PairResult
from scripts.evaluation.results import ResultStore
from scripts.evaluation.summary_table import Summary, format_tables, summarize_results, to_json
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.folds import fold_percentage
from scripts.registration.warp import warp_labels


def pairs_of(
    dataset_dir: str,
    split: str,
    split_file: str | None,
    num_pairs: int | None,
    synthetic: dict[str, Any] | None = None,
    known: Collection[tuple[str, str]] = (),
) -> PairDataset:
    """The pairs that `run evaluation` takes for the same split and number of pairs, but those whose names are known."""
    subjects = load_datalist(dataset_dir or None, split, split_file, synthetic=synthetic)
    names = [str(subject["name"]) for subject in subjects]
    pairs = [pair for pair in subject_pairs(subjects, num_pairs) if (names[pair[0]], names[pair[1]]) not in known]
    # In float32: half precision is for the network's memory, not for others' optimizers.
    return PairDataset(subjects, load_transforms(), pairs, cache_dtype="float32")


def score(registered: Registered, pair: LabeledPair, labels: Sequence[int] = SCORED) -> PairResult:
    """The scores of one displacement: Dice, folds and the tool's own time; those of samples, if there are any."""
    seconds = {"network": registered.seconds, "proposals": 0.0, "evaluation": registered.around}
    times = {f"seconds_{part}": value for part, value in seconds.items()}
    if registered.samples is not None:
        posterior, images = registered.samples
        pair = pair._replace(images=replace(images, names=pair.images.names))
        result = pair_report.score(posterior, pair, labels)
        return replace(result, pair={**result.pair, **times})
    truth, ddf = pair.fixed_label, registered.ddf[None]
    dice = dice_per_structure(warp_labels(pair.moving_label[None, None], ddf)[0, 0], truth, labels)
    before = dice_per_structure(pair.moving_label, truth, labels)
    folds = float(fold_percentage(ddf))
    missing = [math.nan] * len(labels)
    scores = {
        **dict.fromkeys(PAIR_SCORES, math.nan),
        "dice_before": float(before.nanmean()),
        # One field stands for all three, as in the paper's table of ConvexAdam.
        **dict.fromkeys(DICE_SCORES, float(dice.nanmean())),
        **dict.fromkeys(("fold_mu", "fold_mean", "fold_oracle"), folds),
        **times,
    }
    structures = {**dict.fromkeys(STRUCTURE_SCORES, missing), **dict.fromkeys(DICE_SCORES, dice.tolist())}
    return PairResult(*pair.names, tuple(labels), structures, scores, {name: [] for name in CURVES})


def run(name: str, method: Any, dataset: PairDataset, output_dir: str | Path, progress: bool = True) -> Summary:
    """Register and score all pairs that the folder does not hold yet.

    Args:
        name: of the tool in the table.
        method: see :mod:`experiments.baselines.methods`.
        dataset: the pairs.
        output_dir: of the results, in the files of `run evaluation`.
        progress: show a progress bar.

    Returns:
        The summary of all pairs in the folder.

    Raises:
        ResultsError: when the folder holds results of other settings.
    """
    store = ResultStore(output_dir)
    store.check_settings({"method": name, **method.settings()})
    with torch.no_grad(), tqdm(total=len(dataset), desc=name, unit="pair", disable=not progress) as bar:
        for index in range(len(dataset)):
            names = tuple(str(dataset.subjects[i]["name"]) for i in dataset.pair(index))
            if (names[0], names[1]) in store:
                bar.initial += 1
            else:
                item = dataset[index]
                with torch.enable_grad():  # ConvexAdam optimizes by gradients
                    registered = method(item["fixed"], item["moving"])
                pair = LabeledPair.of_item(item)
                result = score(registered, pair)
                if registered.samples is not None:
                    append_volumes(store.folder / VOLUMES_FILE, volumes_of(registered.samples[0], pair))
                store.add(result)
                bar.set_postfix(dice=f"{store.results[-1].pair['dice_mean']:.4f}", refresh=False)
            bar.update()
    summary = summarize_results(store.results)
    write_text(store.folder / "summary.json", to_json(summary))
    write_text(store.folder / "tables.txt", format_tables({name: summary}) + "\n")
    return summary
