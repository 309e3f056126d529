"""`python -m experiments.comparison`: train and evaluate the paper's variants at 2 mm, for docs/results.md.

    python -m experiments.comparison --dataset_dir /data/oasis2mm,/data/ixi2mm --work_dir output/comparison

Each variant is trained with experiments/comparison.yaml from the common start experiments/weights/mean.pt and evaluated
on pairs of the test people twice: the network alone with the configured temperature, as in the paper, and as the bundle
registers files, each pair refined, the temperature fitted on the validation people. Both are filed in docs/results, the
weights in experiments/weights; then `python -m experiments.results` makes the tables.

Whatever is done already is not done again, so it can be interrupted and started again. Several of these may work on the
same folder, on different cores: each takes the next variant that nobody has taken.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.core.checkpoint import read
from scripts.inference.model_file import load_model

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "experiments/weights"
VARIANTS = ("s_lc_10l", "v_lc", "v_d", "v_ld", "v_c", "i_lc", "s_d", "s_ld", "s_c", "s_lc", "s_lc_svf")
SENSITIVITY = ("s_lc_5l", "s_lc_20l", "s_lc_30l", "s_lc_t2", "s_lc_t4")
ENSEMBLE = tuple(f"vxm_{seed}" for seed in range(5))
EPOCH = 25  # steps; epoch_length of the preset
MEMBER_STEPS = 3
"""Steps of a member of the ensemble for each step of the others."""
TEST_SPLIT = "configs/splits/oasis.json"
REFINE_STEPS = 25  # as configs/inference.json


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, evaluate and file what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m experiments.comparison", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--dataset_dir", required=True, help="folders, separated by commas; the first has the test people"
    )
    parser.add_argument("--work_dir", type=Path, default=Path("output/comparison"))
    parser.add_argument("--variants", default=",".join((*VARIANTS, *ENSEMBLE, *SENSITIVITY)), help="comma-separated")
    parser.add_argument("--kept", action="store_true", help="train nothing, take the weights in experiments/weights")
    parser.add_argument(
        "--refined", help="variants to evaluate with refinement too, or none; by default all of the group variants"
    )
    parser.add_argument("--num_pairs", type=int, default=16, help="test pairs, the same for all")
    parser.add_argument("--proposals", type=int, default=400, help="drawn for each pair in the evaluation")
    parser.add_argument("--group", default="variants", help="of docs/results to file the networks alone under")
    parser.add_argument("--steps", type=int, default=400, help=f"of training, a multiple of {EPOCH}")
    chosen = parser.parse_args(arguments)
    folders, work = chosen.dataset_dir.split(","), chosen.work_dir.resolve()
    variants = chosen.variants.split(",")
    for variant in variants:
        with claimed(work / f"{variant}.lock") as mine:
            if not mine:
                continue
            if chosen.kept:
                made = chosen.steps * (MEMBER_STEPS if is_member(variant) else 1)
                restore(WEIGHTS / f"{variant}.pt", work / variant / "last.pt", made)
            else:
                train(variant, folders, work / variant, chosen.steps)
            if chosen.group == "variants" and not chosen.kept:
                keep_weights(work / variant / "last.pt", WEIGHTS / f"{variant}.pt")
            if not is_member(variant):
                evaluate(variant, variant, folders[0], work, chosen.num_pairs, chosen.proposals, group=chosen.group)
    refined_ones = chosen.refined or ("all" if chosen.group == "variants" else "none")
    also_refined = variants if refined_ones == "all" else refined_ones.split(",")
    for variant in variants:
        if variant in also_refined and not is_member(variant):
            with claimed(work / f"{variant}.lock") as mine:
                # Another process may still be training it; that one comes here itself.
                if mine and finished(work / variant / "last.pt", chosen.steps):
                    refined(variant, folders[0], work, chosen.num_pairs, chosen.proposals)
    if not set(ENSEMBLE) & set(variants):
        return
    members = [work / name / "last.pt" for name in ENSEMBLE]
    # Whoever finishes the last member comes here after it: nobody has to wait for others.
    if not all(finished(path, MEMBER_STEPS * chosen.steps) for path in members):
        return
    with claimed(work / "vxm5.lock") as mine:
        if mine:
            evaluate("vxm5", "vxm", folders[0], work, chosen.num_pairs, chosen.proposals, members)


def is_member(variant: str) -> bool:
    """Whether this is one of the networks of an ensemble, which count only together."""
    return variant.startswith("vxm_")


def train(variant: str, folders: Sequence[str], output: Path, steps: int) -> None:
    """Train one variant, or go on with it."""
    config, options = variant, {"seed": "0"}
    if is_member(variant):
        # Members of an ensemble start from nothing, each from its own seed: from a common start they would hardly
        # differ. Nothing is the empty string: MONAI ignores an option that is None. Pairs come one at a time instead of
        # four: from nothing, more steps lead farther.
        config, steps = variant[:3], MEMBER_STEPS * steps
        options = {"seed": variant[4:], "start_from": "", "batch_size": "1", "learning_rate": "0.002"}
    bundle(
        "training", config, dataset_dir=str(list(folders)), output_dir=str(output), max_epochs=str(steps // EPOCH),
        decay_steps=str(steps), **options,
    )  # fmt: skip


def keep_weights(checkpoint: Path, path: Path) -> None:
    """File a training's weights beside those of the other variants, without what only training needs."""
    if checkpoint.is_file():
        load_model(checkpoint).save(path)


def restore(weights: Path, checkpoint: Path, steps: int) -> None:
    """Kept weights as the checkpoint of a finished training, for evaluation."""
    if not checkpoint.is_file():
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        load_model(weights).save(checkpoint, progress={"iteration": steps})


def finished(checkpoint: Path, steps: int) -> bool:
    """Whether a training has made all its steps, by the checkpoint that it leaves after each epoch."""
    return checkpoint.is_file() and read(checkpoint)["progress"]["iteration"] >= steps // EPOCH * EPOCH


def evaluate(
    name: str,
    config: str,
    folder: str,
    work: Path,
    pairs: int,
    proposals: int,
    members: Sequence[Path] = (),
    group: str = "variants",
) -> None:
    """Evaluate the network alone on test pairs and file the figures in docs/results."""
    weights = str([str(path) for path in members]) if members else str(work / name / "last.pt")
    output = work / name
    on_pairs(
        "evaluation", config, folder, "test", proposals, num_pairs=str(pairs), output_dir=str(output), name=name,
        ckpt_path=weights, calibrated="false",
    )  # fmt: skip
    results = [sys.executable, "-m", "experiments.results"]
    run([*results, "add", str(output / "evaluation_test"), "--group", group, "--name", name])
    if not members and group == "variants" and (output / "validation.csv").is_file():
        run([*results, "training", str(output), "--name", name])


def refined(name: str, folder: str, work: Path, pairs: int, proposals: int) -> None:
    """The same with refinement, and with a temperature fitted to it where samples are weighed."""
    output = work / name / "refined"
    weights, options = output / "model.pt", {"refine_steps": str(REFINE_STEPS), "output_dir": str(output)}
    output.mkdir(parents=True, exist_ok=True)
    if not weights.is_file():
        shutil.copyfile(work / name / "last.pt", weights)  # a fit writes into it, and training's own file stays
    # The posterior of V is its q: nothing to fit.
    if not name.startswith("v_") and not (output / "calibration/calibration.json").is_file():
        on_pairs("calibration", name, folder, "val", proposals, ckpt_path=str(weights), **options)
    on_pairs(
        "evaluation",
        name,
        folder,
        "test",
        proposals,
        num_pairs=str(pairs),
        name=name,
        ckpt_path=str(weights),
        **options,
    )
    results = [sys.executable, "-m", "experiments.results"]
    run([*results, "add", str(output / "evaluation_test"), "--group", "refined", "--name", name])


def on_pairs(task: str, config: str, folder: str, split: str, proposals: int, **options: str) -> None:
    """Evaluate or calibrate on pairs of a split of the test people's set."""
    # Whole volumes, whatever training crops; an expression, since MONAI ignores an option that is None.
    bundle(
        task, config, dataset_dir=folder, split_file=TEST_SPLIT, split=split, roi_size="$None",
        evaluated_proposals=str(proposals), **options,
    )  # fmt: skip


def config_files(task: str, variant: str) -> list[str]:
    """The configs of a task; each overrides those before it, so that the variant has the last word about the model.

    Training and evaluation share all but the last: the network's output must be read as it was trained.
    """
    files = ["configs/train.yaml", "experiments/comparison.yaml", f"configs/variants/{variant}.yaml"]
    more = {"evaluation": ["evaluate"], "calibration": ["evaluate", "calibrate"]}
    return [*files, *(f"configs/{name}.yaml" for name in more.get(task, ()))]


def bundle(task: str, variant: str, **options: str) -> None:
    """Run a workflow of this bundle with a variant's config."""
    named = [part for key, value in options.items() for part in (f"--{key}", value)]
    run([sys.executable, "-m", "monai.bundle", "run", task, "--config_file", str(config_files(task, variant)), *named])


def run(command: Sequence[str]) -> None:
    """Run a command from the bundle's root; its failure ends this program."""
    print("+", " ".join(command), flush=True)
    subprocess.run(command, cwd=ROOT, check=True)


@contextmanager
def claimed(lock: Path) -> Iterator[bool]:
    """Whether this process has the work behind a lock file; the lock of a process that is gone counts for nothing."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    if lock.is_file() and not _alive(int(lock.read_text() or 0)):
        lock.unlink(missing_ok=True)
    try:
        with lock.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        yield False
        return
    try:
        yield True
    finally:
        lock.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return process > 0


if __name__ == "__main__":
    main()
