"""Tiny datasets on disk, in each layout."""

import json
from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np

from scripts.data.dataset_folders import IMAGE, LABEL
from scripts.synthetic.subjects import volume_affine

SHAPE = (8, 10, 12)
AFFINE = volume_affine(SHAPE, 2.0)


def brain(seed: int, shape: Sequence[int] = SHAPE) -> np.ndarray:
    """Noise in a box, zeros around it, values in (0.2, 1]."""
    image = np.zeros(shape, dtype=np.float32)
    inside = tuple(slice(2, size - 2) for size in shape)
    image[inside] = np.random.default_rng(seed).uniform(0.2, 1.0, image[inside].shape)
    return image


def labels(seed: int, shape: Sequence[int] = SHAPE, largest: int = 35) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, largest + 1, shape).astype(np.int16)


def write(path: Path, values: np.ndarray, affine: np.ndarray = AFFINE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, affine), path)
    return path


def write_scan(folder: Path, seed: int = 0) -> None:
    write(folder / IMAGE, brain(seed))
    write(folder / LABEL, labels(seed))


def write_neurite(root: Path, names: Sequence[str], split: dict | None = None) -> Path:
    for seed, name in enumerate(names):
        write_scan(root / name, seed)
    if split is not None:
        (root / "split.json").write_text(json.dumps(split))
    return root


def oasis(*numbers: int) -> list[str]:
    return [f"OASIS_OAS1_{number:04d}_MR1" for number in numbers]


def write_learn2reg(root: Path, training: int = 4, test: int = 2) -> Path:
    """As the challenge packs OASIS: registration_val is part of training, images of the test have no labels."""
    train = [f"./imagesTr/OASIS_{k:04d}_0000.nii.gz" for k in range(1, training + 1)]
    tests = [f"./imagesTs/OASIS_{k:04d}_0000.nii.gz" for k in range(90, 90 + test)]
    for seed, name in enumerate(train):
        write(root / name, brain(seed))
        write(root / name.replace("images", "labels"), labels(seed))
    for seed, name in enumerate(tests, start=50):
        write(root / name, brain(seed))
    content = {
        "name": "OASIS",
        "numTraining": training,
        "tensorImageShape": {"0": list(SHAPE)},
        "training": [{"image": name, "label": name.replace("images", "labels")} for name in train],
        "test": [{"image": name} for name in tests],
        "registration_val": [{"fixed": train[-2], "moving": train[-1]}],
        "registration_test": [{"fixed": tests[0], "moving": tests[1]}],
    }
    (root / "OASIS_dataset.json").write_text(json.dumps(content))
    return root
