"""Tiny pairs with a known answer, and results made up of plain numbers."""

import torch

from scripts.evaluation.pair_report import LabeledPair
from scripts.evaluation.pair_result import CURVES, FRACTIONS, PAIR_SCORES, STRUCTURE_SCORES, PairResult
from scripts.gaussian import StructuredGaussian

GRID = (12, 14, 16)  # of the field
SHAPE = (24, 28, 32)  # of the image
LABELS = (3, 22)
SHIFT = 2


def blobs(shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """An image with smooth texture and two boxes as labels, all moved along the first axis; each [1, 1, X, Y, Z]."""
    noise = torch.randn(1, 1, *SHAPE, generator=torch.Generator().manual_seed(0))
    image = torch.nn.functional.avg_pool3d(noise, 3, stride=1, padding=1)
    image = (image - image.min()) / (image.max() - image.min())
    label = torch.zeros(1, 1, *SHAPE, dtype=torch.int32)
    label[..., 6:12, 7:14, 8:20] = LABELS[0]
    label[..., 12:18, 14:22, 10:22] = LABELS[1]
    return image.roll(shift, 2), label.roll(shift, 2)


def shifted_pair(**options) -> LabeledPair:
    """A moving scan that is the fixed one, SHIFT voxels further along the first axis: the right field is known."""
    fixed, fixed_label = blobs()
    moving, moving_label = blobs(SHIFT)
    return LabeledPair(fixed, moving, fixed_label, moving_label, **options)


def constant_field(shift: float) -> torch.Tensor:
    """The displacement `shift` along the first axis, [1, 3, x, y, z]."""
    field = torch.zeros(1, 3, *GRID)
    field[:, 0] = shift
    return field


def proposal(shift: float, std: float, wide: float = 0.0) -> StructuredGaussian:
    """Jitter of `std` voxels at every field voxel about a constant shift, and a common shift of `wide` voxels."""
    factor = constant_field(wide)[:, None] if wide else None
    return StructuredGaussian(constant_field(shift), torch.full((1, 3, *GRID), 1 / std), factor)


def made_up(fixed: str, moving: str, labels: tuple[int, ...] = LABELS, seed: int = 0, **scores) -> PairResult:
    """A result with random numbers, or the given ones for single scores."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(count: int) -> list[float]:
        return torch.rand(count, generator=generator, dtype=torch.float64).tolist()

    structures = {name: scores.get(name, numbers(len(labels))) for name in STRUCTURE_SCORES}
    pair = dict(zip(PAIR_SCORES, numbers(len(PAIR_SCORES)), strict=True))
    curves = {name: numbers(10 if name.startswith("rel") else len(FRACTIONS)) for name in CURVES}
    return PairResult(fixed, moving, tuple(labels), structures, pair, curves)
