"""`python -m experiments.uncertainty.failures`: registrations that fail on purpose, and the signs that give them away.

    python -m experiments.uncertainty.failures cases --dataset_dir /data/oasis2mm --split train --pairs 11
    python -m experiments.uncertainty.failures fit --write models/model.pt
    python -m experiments.uncertainty.failures cases --dataset_dir /data/oasis2mm --split test --pairs 16
    python -m experiments.uncertainty.failures score

`cases` registers each pair as it is and after each disturbance, and files the Dice of the mean field with the signs. A
case counts as a failure when its Dice is below 0.6. Cases that the table holds are not done again.
"""

from __future__ import annotations

import csv
import math
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import fire
import numpy as np
import torch
from monai.data import MetaTensor
from scipy.ndimage import gaussian_filter
from scipy.optimize import minimize
from sklearn.metrics import roc_auc_score

from experiments.uncertainty.people import pairs as ordered
from experiments.uncertainty.people import people
from experiments.uncertainty.registered import IMAGE, LABEL, WORK
from scripts.alignment.align import Method
from scripts.core.seg35 import SCORED
from scripts.data.pair_input import pair_input_transforms
from scripts.evaluation.fit_temperature import write_fitted
from scripts.inference.model_file import load_model
from scripts.posterior.calibrated import Calibration
from scripts.posterior.dice import dice_per_structure
from scripts.posterior.failure import BAD, SIGNS, probability, signs
from scripts.posterior.pair_images import PairImages
from scripts.posterior.sampler import Sampler

FAILED = 0.6
"""Dice below which a registration has failed."""
REACH = 10.0
"""Standard deviations beyond which a sign says no more."""
TABLE = WORK / "failures.csv"

Item = dict[str, Any]
Disturbance = Callable[[Item, np.random.Generator], Item]


def _moving(item: Item, image: torch.Tensor) -> Item:
    """The pair with another moving image on the same grid."""
    changed = MetaTensor(image.float(), meta=item["moving"].meta)
    return {**item, "moving": changed, "moving_file": changed}


def _turned(item: Item, matrix: np.ndarray) -> Item:
    """The pair with the moving file moved in space by a 4x4 matrix about the world's origin."""
    out = dict(item)
    for key in ("moving", "moving_file", "moving_label"):
        affine = torch.from_numpy(matrix) @ torch.as_tensor(np.asarray(item[key].affine), dtype=torch.float64)
        out[key] = MetaTensor(item[key].as_tensor(), affine=affine)
    return out


def rotated(item: Item, rng: np.random.Generator) -> Item:
    """By 30 to 90 degrees about a random axis."""
    axis = rng.normal(size=3)
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = np.radians(rng.uniform(30, 90))
    matrix = np.eye(4)
    matrix[:3, :3] += np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross
    return _turned(item, matrix)


def shifted(item: Item, rng: np.random.Generator) -> Item:
    """By 20 to 50 mm."""
    direction = rng.normal(size=3)
    matrix = np.eye(4)
    matrix[:3, 3] = rng.uniform(20, 50) * direction / np.linalg.norm(direction)
    return _turned(item, matrix)


def mirrored(item: Item, rng: np.random.Generator) -> Item:
    """Left and right exchanged, image and labels, as by a wrong header."""
    return _turned(item, np.diag([-1.0, 1, 1, 1]))


def halved(item: Item, rng: np.random.Generator) -> Item:
    """Half of the brain is missing."""
    image = item["moving"].as_tensor().clone()
    axis, first = int(rng.integers(1, 4)), bool(rng.integers(2))
    half = image.shape[axis] // 2
    image.narrow(axis, 0 if first else half, half).zero_()
    return _moving(item, image)


def organ(item: Item, rng: np.random.Generator) -> Item:
    """Another organ: blobs of random texture within an ellipsoid."""
    shape = item["moving"].shape[1:]
    noise = gaussian_filter(rng.normal(size=shape), rng.uniform(2, 5))
    grid = np.meshgrid(*(np.linspace(-1, 1, size) for size in shape), indexing="ij")
    radii = rng.uniform(0.45, 0.85, size=3)
    inside = sum((part / radius) ** 2 for part, radius in zip(grid, radii, strict=True)) < 1
    texture = (0.5 + 0.2 * noise / noise.std()).clip(0.05, 1) * inside
    return _moving(item, torch.from_numpy(texture)[None])


def inverted(item: Item, rng: np.random.Generator) -> Item:
    """Another contrast: dark is bright."""
    image = item["moving"].as_tensor()
    return _moving(item, torch.where(image > 0, 1.02 * image.max() - image, image))


def noisy(item: Item, rng: np.random.Generator) -> Item:
    """Noise as strong as the signal."""
    image = item["moving"].as_tensor()
    level = rng.uniform(0.3, 0.8)
    return _moving(item, ((image + level * torch.from_numpy(rng.normal(size=image.shape))) * (image > 0)).clamp(0, 1))


def shaded(item: Item, rng: np.random.Generator) -> Item:
    """Coil shading of up to eight times, over a quarter of the volume."""
    image = item["moving"].as_tensor()
    field = gaussian_filter(rng.normal(size=image.shape[1:]), [size / 8 for size in image.shape[1:]])
    return _moving(item, (image * np.exp(math.log(8) * field / np.abs(field).max())).clamp(0, 1))


def lesioned(item: Item, rng: np.random.Generator) -> Item:
    """Three dark and bright lesions of 15 to 25 mm radius."""
    image = item["moving"].as_tensor().clone()
    inside = np.argwhere(image[0].numpy() > 0)
    grid = np.stack(np.meshgrid(*(np.arange(size) for size in image.shape[1:]), indexing="ij"))
    for value in (0.02, 1.0, 0.1):
        center = inside[rng.integers(len(inside))]
        ball = ((grid - center[:, None, None, None]) ** 2).sum(0) < rng.uniform(7.5, 12.5) ** 2
        image[0][torch.from_numpy(ball) & (image[0] > 0)] = value
    return _moving(item, image)


def misplaced(item: Item, rng: np.random.Generator) -> Item:
    """Turned by 15 to 40 degrees and shifted, while nothing aligns: see `cases`."""
    return shifted(rotated(item, rng), rng)


def _disturbed(disturb: Disturbance, rng: np.random.Generator, item: Mapping[Any, Any]) -> Any:
    return disturb(dict(item), rng)


def as_it_is(item: Item, rng: np.random.Generator) -> Item:
    """Nothing."""
    return item


def others_labels(item: Item, rng: np.random.Generator) -> Item:
    """The labels are another person's: `cases` puts their file there."""
    return item


DISTURBED: dict[str, Disturbance] = {
    function.__name__: function
    for function in (
        as_it_is, organ, others_labels, rotated, shifted, mirrored, halved, inverted, noisy, shaded, lesioned,
        misplaced,
    )
}  # fmt: skip
COLUMNS = ("split", "fixed", "moving", "disturbed", "dice", *SIGNS)


def cases(
    dataset_dir: str,
    split: str = "train",
    pairs: int = 11,
    steps: tuple[int, ...] = (4,),
    kinds: tuple[str, ...] = tuple(DISTURBED),
    table: str = str(TABLE),
) -> None:
    """Register pairs as they are and disturbed in these ways, and file their Dice and their signs."""
    folder, path = Path(dataset_dir), Path(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    done = {tuple(row[key] for key in COLUMNS[:4]) for row in csv.DictReader(path.open(encoding="utf-8"))}
    model = load_model("models/model.pt")
    sampler = Sampler(
        model, {"refine_steps": 25, "detail_steps": 8, "progress": False, "num_samples": 2}, spread="noise"
    )
    names = people(split)
    chosen = [
        pair for step in (steps if isinstance(steps, tuple | list) else (steps,)) for pair in ordered(step, split)
    ]
    for fixed, moving in chosen[:pairs]:
        for name, disturb in DISTURBED.items():
            if name not in kinds or (split, fixed, moving, name) in done:
                continue
            rng = np.random.default_rng(zlib.crc32(f"{fixed} {moving} {name}".encode()))
            paths = {f"{role}{kind}": str(folder / who / file) for role, who in (("fixed", fixed), ("moving", moving))
                     for kind, file in (("", IMAGE), ("_label", LABEL))}  # fmt: skip
            if name == "others_labels":
                other = next(person for person in names if person not in (fixed, moving))
                paths["moving_label"] = str(folder / other / LABEL)
            method: Method = "none" if name == "misplaced" else "auto"
            try:
                transform = pair_input_transforms(
                    model.voxel_mm, model.stride, method, disturb=partial(_disturbed, disturb, rng)
                )
                item = transform(paths)
                images = PairImages.of_item(item, sampler.factor)
                posterior = sampler.posterior(images)
            except Exception as error:  # refused with a message: that is an answer, too
                print(f"{fixed} {moving} {name}: {error}", flush=True)
                continue
            space = posterior.space
            found = space.warp_labels(
                item["moving_label"].as_tensor()[0], space.displacement(posterior.mean[None])[0].cpu()
            )
            dice = float(dice_per_structure(found, item["fixed_label"].as_tensor()[0], SCORED).nanmean())
            values = signs(model, images, posterior)
            row = [split, fixed, moving, name, f"{dice:.4f}", *(f"{values[key]:.5g}" for key in SIGNS)]
            with path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow(row)
            print(" ".join(row), flush=True)


def _read(table: str, split: str) -> tuple[np.ndarray, np.ndarray, list[dict[str, str]]]:
    """Signs [N, S], whether each failed [N], and the rows."""
    with Path(table).open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    values = np.array([[float(row[key]) for key in SIGNS] for row in rows])
    return values, np.array([float(row["dice"]) < FAILED for row in rows]), rows


def fit(table: str = str(TABLE), write: str | None = None, strength: float = 0.1) -> None:
    """Logistic regression on the training people's cases, checked by leaving out each fixed person in turn."""
    values, failed, rows = _read(table, "train")
    fixed = np.array([row["fixed"] for row in rows])
    usual = np.array([row["disturbed"] in ("as_it_is", "rotated", "shifted") for row in rows])
    held = np.zeros(len(rows))
    for person in np.unique(fixed):
        part = fixed != person
        fitted = _fit(values[part], failed[part], usual[part], strength)
        for i in np.flatnonzero(~part):
            held[i] = probability(dict(zip(SIGNS, values[i], strict=True)), fitted)
    print(f"{len(rows)} cases, {int(failed.sum())} failures; left out: AUC {roc_auc_score(failed, held):.4f}")
    fitted = _fit(values, failed, usual, strength)
    for name, (mean, scale, weight) in fitted["signs"].items():
        print(f"{name:12} mean {mean:8.3f} scale {scale:7.3f} weight {weight:+.2f}")
    if write is not None:
        model = load_model(write)
        known = Calibration.of(model.calibration)
        notes = {**known.notes, "failure": f"{len(rows)} cases of training people, {int(failed.sum())} failures, 2 mm"}
        model.calibration = Calibration(known.spread, known.volumes, known.points, fitted, notes).plain()
        write_fitted(model, Path(write))


def _fit(values: np.ndarray, failed: np.ndarray, usual: np.ndarray, strength: float) -> dict[str, Any]:
    """Numbers for `scripts.posterior.failure.probability`; `usual` are pairs that nothing was done to.

    Logistic regression with weights that are not negative: what is worse than usual must not speak for a registration.
    """
    mean, scale = np.median(values[usual], axis=0), np.maximum(values[usual].std(axis=0), 2e-3)
    signs = np.clip((values - mean) / scale * list(BAD.values()), 0, REACH)
    balance = np.where(failed, 0.5 / failed.mean(), 0.5 / (~failed).mean())

    def cost(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        total, weights = numbers[0] + signs @ numbers[1:], numbers[1:]
        wrong = balance * (1 / (1 + np.exp(-total)) - failed)
        loss = (balance * (np.logaddexp(0, total) - failed * total)).sum() + (weights**2).sum() / (2 * strength)
        return loss, np.concatenate([[wrong.sum()], signs.T @ wrong + weights / strength])

    count = values.shape[1]
    bounds = [(None, None), *[(0, None)] * count]
    bias, *weights = minimize(cost, np.zeros(count + 1), jac=True, method="L-BFGS-B", bounds=bounds).x.tolist()
    numbers = zip(mean.tolist(), scale.tolist(), weights, strict=True)
    return {
        "bias": bias,
        "reach": REACH,
        "signs": {name: list(each) for name, each in zip(SIGNS, numbers, strict=True)},
    }


def score(table: str = str(TABLE), split: str = "test", weights: str = "models/model.pt") -> None:
    """Area under the ROC curve on other people, and the worst misses."""
    values, failed, rows = _read(table, split)
    fitted = Calibration.of(load_model(weights).calibration).failure
    assert fitted is not None
    found = np.array([probability(dict(zip(SIGNS, each, strict=True)), fitted) for each in values])
    print(f"{len(rows)} cases, {int(failed.sum())} failures: AUC {roc_auc_score(failed, found):.4f}")
    caught, false = (float(np.mean(found[part] > 0.5)) for part in (failed, ~failed))
    print(f"at 0.5: {caught:.3f} of failures found, {false:.3f} false alarms")
    for name in DISTURBED:
        part = np.array([row["disturbed"] == name for row in rows])
        if part.any():
            dice = np.mean([float(row["dice"]) for row, chosen in zip(rows, part, strict=True) if chosen])
            figures = f"{part.sum():4} cases, {int(failed[part].sum()):4} failures, Dice {dice:.3f}"
            print(f"{name:14} {figures}, p {found[part].mean():.2f}")
    gap = np.where(failed, 1 - found, found)
    for i in np.argsort(-gap)[:8]:
        row = rows[i]
        print(f"missed: {row['disturbed']} {row['moving']} to {row['fixed']}: Dice {row['dice']}, p {found[i]:.2f}")


if __name__ == "__main__":
    fire.Fire({"cases": cases, "fit": fit, "score": score})
