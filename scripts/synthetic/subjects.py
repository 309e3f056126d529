"""Synthetic T1-weighted brains with labels, made from a seed: no download, no license, any resolution.

All subjects share one anatomy, deformed smoothly for each. The cortical folds are only partly shared: each subject has
sulci of its own, so that between two subjects a fold may have no counterpart: there, registration is truly ambiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .phantom import paint_brain


@dataclass(frozen=True)
class Subject:
    """A synthetic person's scan."""

    image: np.ndarray  # float32 [X, Y, Z] in [0, 1], 0 outside of the brain
    label: np.ndarray  # uint8 [X, Y, Z], seg35 numbers
    affine: np.ndarray  # float64 [4, 4], voxels to RAS mm; axis codes L, I, A; origin at the volume's center


def volume_affine(shape: Sequence[int], spacing: float) -> np.ndarray:
    """Affine [4, 4] of a volume with axes Left, Inferior, Anterior whose center is the world's origin."""
    affine = np.eye(4)
    affine[:3, :3] = spacing * np.array([[-1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
    affine[:3, 3] = -affine[:3, :3] @ ((np.asarray(shape) - 1) / 2)
    return affine


def synthesize_subject(seed: int, shape: Sequence[int] = (80, 96, 112), spacing: float = 2.0) -> Subject:
    """Make the scan of one synthetic person.

    The anatomy is fixed in millimeters about the volume's center, so the same seed is the same person at every
    resolution; only the scanner's noise differs. 160 x 192 x 224 mm hold the whole brain.

    The seed, in 0..2**63 - 1, decides everything about the person; shape is in voxels, spacing in mm.

    Raises:
        ValueError: when the seed is out of range, or shape or spacing do not describe a volume.
    """
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed must be in 0..2**63 - 1, got {seed} instead")
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape must be three positive numbers, got {tuple(shape)} instead")
    if not 0 < spacing < float("inf"):
        raise ValueError(f"spacing must be positive, in mm, got {spacing} instead")
    axes = [(torch.arange(size, dtype=torch.float32) - (size - 1) / 2) * spacing for size in shape]
    grid = torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, 3)  # (X * Y * Z, 3)
    # No brain reaches beyond this ellipsoid: almost half of the voxels need no work.
    near = torch.nonzero((grid / grid.new_tensor((86.0, 103.0, 116.0))).square().sum(-1) < 1.0)[:, 0]
    image, label = paint_brain(grid[near], spacing, torch.Generator().manual_seed(seed))
    return Subject(
        image=torch.zeros(len(grid)).index_copy_(0, near, image).reshape(*shape).numpy(),
        label=torch.zeros(len(grid), dtype=torch.uint8).index_copy_(0, near, label).reshape(*shape).numpy(),
        affine=volume_affine(shape, spacing),
    )


def cohort_seeds(num_subjects: int, seed: int = 0) -> list[int]:
    """Seeds of so many people, at least one; cohorts of different seeds have no person in common."""
    if num_subjects < 1:
        raise ValueError(f"num_subjects must be positive, got {num_subjects} instead")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed} instead")
    # Hashed seeds: with seed + index, neighboring cohorts would share people.
    words = np.random.SeedSequence(seed).generate_state(num_subjects, np.uint64)
    return [int(word) >> 1 for word in words]
