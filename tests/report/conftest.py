"""A made-up registration of synthetic brains: everything that a report shows, with known places and figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter, map_coordinates

from scripts.core.grid import Grid
from scripts.core.seg35 import SEG35
from scripts.posterior.result import LabelResult, Mode, RegistrationResult, StructureVolume
from scripts.report.page import write_report
from scripts.synthetic.subjects import synthesize_subject

NASTY = "sub-<b>'\"&amp;</script><script>alert(1)</script> Übung 脳"
SHAPE = (40, 48, 56)
SPACING = 4.0
DIAGNOSTICS = {
    "ess": 41.3,
    "ess_share": 41.3 / 1200,
    "num_proposals": 1200,
    "num_samples": 80,
    "largest_weight": 0.08,
    "khat": 0.55,
    "temperature": 3.0,
    "scale": 212.4,
    "ncc_before": 0.412,
    "ncc_after": 0.628,
    "fold_percent": 0.021,
    "fold_percent_mean": 0.0,
    "seconds": {"reading": 0.8, "network": 1.9, "proposals": 14.2, "summary": 6.1},
    "versions": {"torch": "2.13.0", "monai": "1.6.1"},
    "seed": 7,
    "alignment": "affine, mutual information; the brains were 12.4 mm apart",
    "dice_before": 0.604,
    "dice_after": 0.731,
    "inverse_error_mm": 0.03,
    "model": "S+LC 10L, 2 mm",
}


def smooth_field(seed: int, shape: tuple[int, ...], length: float, size: float) -> np.ndarray:
    """A random field [3, X, Y, Z] in voxels, of `size` voxels on average, smooth over `length` voxels."""
    noise = np.random.default_rng(seed).normal(size=(3, *shape)).astype(np.float32)
    field = np.stack([gaussian_filter(channel, length) for channel in noise])
    return size * field / np.sqrt(np.square(field).sum(0).mean())


def pull(volume: np.ndarray, field: np.ndarray, order: int = 1) -> np.ndarray:
    """The volume at x + field(x)."""
    index = np.indices(volume.shape, dtype=np.float32) + field
    return map_coordinates(volume, index, order=order, mode="nearest").astype(volume.dtype)


def build_result(shape: tuple[int, int, int] = SHAPE, spacing: float = SPACING, samples: int = 8) -> RegistrationResult:
    """The fixed brain, the same brain deformed as the moving one, and samples that differ most in the left front.

    Args:
        shape: of the volumes, in voxels.
        spacing: of the voxels in mm.
        samples: label maps drawn for the probabilities.
    """
    person = synthesize_subject(3, shape, spacing)
    grid = Grid(shape, person.affine)
    fixed, label, brain = person.image, person.label.astype(np.int32), person.label > 0
    rng = np.random.default_rng(0)
    length = 16.0 / spacing
    moving = pull(fixed, smooth_field(1, shape, length, 6.0 / spacing))
    warped = pull(fixed, smooth_field(2, shape, length, 1.2 / spacing))
    noise = rng.normal(scale=0.02, size=(2, *shape)).astype(np.float32) * brain
    x, y, z = np.moveaxis(grid.to_world(np.indices(shape).reshape(3, -1).T).reshape(*shape, 3), -1, 0)
    bump = np.exp(-((x + 40) ** 2 + (y - 45) ** 2 + (z - 20) ** 2) / (2 * 22.0**2))  # left, anterior, superior
    spread = ((0.35 + 2.2 * bump + 0.25 * gaussian_filter(rng.normal(size=shape), 3)).clip(0.05) * brain).astype("f4")
    draws = [smooth_field(10 + k, shape, length / 2, 1.0) * spread / spacing for k in range(samples)]
    maps = [pull(label, draw, order=0) for draw in draws]
    rotation = grid.affine[:3, :3]  # from voxels to RAS mm
    ras = [np.einsum("ij,jxyz->ixyz", rotation, draw).astype(np.float32) for draw in draws]
    displacement = np.einsum("ij,jxyz->ixyz", rotation, smooth_field(1, shape, length, 6.0 / spacing)).astype("f4")
    volume_change = np.trace(
        np.stack([np.stack(np.gradient(c)) for c in smooth_field(1, shape, length, 6.0 / spacing)])
    )
    return RegistrationResult(
        moving_name="sub-02_T1w",
        fixed_name="sub-01_T1w",
        grid=grid,
        alignment=np.eye(4),
        fixed=fixed,
        moving=moving + noise[0],
        warped=warped + noise[1],
        displacement=displacement,
        std=spread,
        std_axes=np.repeat(spread[None] / np.float32(np.sqrt(3)), 3, axis=0),
        log_jacobian=(volume_change * 0.6 * brain).astype(np.float32),
        fold_probability=(0.3 * (bump > 0.95)).astype(np.float32),
        brain=brain,
        labels=vote(maps, label, grid),
        modes=[
            Mode(0.64, 17, displacement + ras[0], warped),
            Mode(0.36, 903, displacement + ras[1], warped + noise[0]),
        ],
        diagnostics=dict(DIAGNOSTICS),
        warnings=["The moving image appears not to be skull-stripped."],
    )


def vote(maps: list[np.ndarray], truth: np.ndarray, grid: Grid) -> LabelResult:
    """Most probable label, its probability, entropy, and volumes of the label maps [X, Y, Z]."""
    numbers = np.unique(truth)
    share = np.stack([np.mean([sample == number for sample in maps], axis=0) for number in numbers]).astype(np.float32)
    best = share.argmax(0)
    entropy = -(share * np.log(np.maximum(share, 1e-12))).sum(0)
    volumes = []
    for number in numbers[1:]:
        sizes = np.array([np.count_nonzero(sample == number) for sample in maps]) * grid.voxel_volume
        low, high = np.percentile(sizes, [2.5, 97.5])
        same = np.count_nonzero((numbers[best] == number) & (truth == number))
        total = np.count_nonzero(numbers[best] == number) + np.count_nonzero(truth == number)
        size = float(np.count_nonzero(truth == number) * grid.voxel_volume)
        name = SEG35[int(number)].name
        volumes.append(StructureVolume(int(number), name, sizes.mean(), low, high, size, 2 * same / total))
    return LabelResult(numbers[best].astype(np.int32), share.max(0), entropy.astype(np.float32), volumes, truth)


@pytest.fixture(scope="session")
def make_result() -> Callable[[], RegistrationResult]:
    """A new shallow copy of one result, built once: tests replace what they want to see."""
    result = build_result()
    return lambda: replace(result, diagnostics=dict(result.diagnostics), warnings=list(result.warnings))


@pytest.fixture(scope="session")
def written(make_result, tmp_path_factory) -> Path:
    """A report with everything in it, under a name that needs quoting."""
    path = tmp_path_factory.mktemp("a report") / "später 1" / "report.html"
    write_report(replace(make_result(), moving_name=NASTY), path)
    return path
