"""Moving scans made unlike the training data, in known ways: how robust is a registration?

Each disturbance has one documented strength and depends on nothing but its name, a seed and the names of the two scans.
Labels move with the head; changes of brightness leave them as they are.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from monai.data import MetaTensor
from torch import Tensor
from torch.nn.functional import interpolate

from scripts.evaluation.ribbon import dilate
from scripts.registration.warp import warp, warp_labels

GAMMA = 1.6
"""Contrast: brightness to the power of 1.6 or of 1/1.6."""
BIAS = 1.5
"""Coil shading: up to 1.5 times brighter here and darker there, over about a quarter of the volume."""
NOISE = 0.08
"""Standard deviation of the noise, where white matter is about 0.8."""
BLUR_MM = 4.0
"""Full width at half maximum of the blur."""
ROTATE_DEGREES = 6.0
"""About a random axis through the brain's center."""
SHIFT_MM = 6.0
"""In a random direction."""
STRIP_MM = 4.0
"""Skull stripping gone wrong: so much of the brain's rim is lost on one side, so much tissue left on the other."""


class Perturbation:
    """A disturbance, one of ``PERTURBATIONS``, of the moving scan of a pair; the fixed scan stays as it is."""

    def __init__(self, name: str, seed: int = 0) -> None:
        if name not in PERTURBATIONS:
            raise ValueError(f"--perturb must be one of {', '.join(PERTURBATIONS)}, got {name!r}")
        self.name, self.seed = name, seed

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}"

    def __call__(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """The pair with a disturbed moving scan: image [1, X, Y, Z], and its label map if it has one."""
        words = "\n".join([str(self.seed), self.name, item["fixed_name"], item["moving_name"]])
        generator = torch.Generator().manual_seed(zlib.crc32(words.encode()))
        image, label = item["moving"].as_subclass(Tensor), item.get("moving_label")
        spacing = item["moving"].pixdim.float() if isinstance(item["moving"], MetaTensor) else torch.ones(3)
        changed = {}
        if self.name in _BRIGHTNESS:
            changed["moving"] = _BRIGHTNESS[self.name](image, spacing, generator)
        else:
            ddf = _MOTION[self.name](image, spacing, generator)
            changed["moving"] = warp(image[None], ddf)[0]
            if label is not None:
                changed["moving_label"] = warp_labels(label.as_subclass(Tensor)[None], ddf)[0]
        out = dict(item)
        for key, values in changed.items():
            out[key] = MetaTensor(values, meta=item[key].meta) if isinstance(item[key], MetaTensor) else values
        return out


def perturbation(name: str | None, seed: int = 0) -> Perturbation | None:
    """The disturbance of this name; None for none, as configs leave it."""
    return None if name in (None, "", "null") else Perturbation(str(name), seed)


def _gamma(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    brighter = float(torch.rand((), generator=generator)) < 0.5
    return image.clamp(0, 1) ** (1 / GAMMA if brighter else GAMMA)


def _bias(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    field = _smooth(image, generator)
    shaded = image * torch.exp(math.log(BIAS) * field)
    return shaded / shaded.max().clamp(min=1.0)


def _noise(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    noisy = image + NOISE * torch.randn(image.shape, generator=generator)
    return (noisy * (image > 0)).clamp(0, 1)


def _blur(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    values = image[None]
    for axis, step in enumerate(spacing.tolist()):
        sigma = BLUR_MM / math.sqrt(8 * math.log(2)) / step
        reach = max(1, math.ceil(3 * sigma))
        kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma).square())
        shape = [1, 1, 1, 1, 1]
        shape[2 + axis] = len(kernel)
        padding = [0, 0, 0]
        padding[axis] = reach
        values = torch.conv3d(values, (kernel / kernel.sum()).reshape(shape), padding=padding)
    return values[0] * (image > 0)


def _strip(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    steps = max(1, round(STRIP_MM / float(spacing.mean())))
    brain = image[0] > 0
    side = _smooth(image, generator)[0] > 0
    lost = brain & dilate(~brain, steps) & side
    left = dilate(brain, steps) & ~brain & ~side
    tissue = 0.3 + 0.4 * torch.rand(brain.shape, generator=generator)
    return torch.where(left, tissue, torch.where(lost, 0.0, image[0]))[None]


def _rotation(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    """Displacements [1, 3, X, Y, Z] in voxels of a rotation about the brain's center."""
    axis = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    x, y, z = axis.tolist()
    cross = torch.tensor([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    turn = torch.linalg.matrix_exp(math.radians(ROTATE_DEGREES) * cross)
    brain = (image[0] > 0).nonzero().float()
    center = brain.mean(0) if len(brain) else torch.tensor(image.shape[1:]) / 2
    grid = torch.stack(torch.meshgrid(*(torch.arange(float(n)) for n in image.shape[1:]), indexing="ij"))
    offset = (grid - center.reshape(3, 1, 1, 1)) * spacing.reshape(3, 1, 1, 1)  # mm
    moved = torch.tensordot(turn - torch.eye(3), offset, dims=1)
    return (moved / spacing.reshape(3, 1, 1, 1))[None]


def _translation(image: Tensor, spacing: Tensor, generator: torch.Generator) -> Tensor:
    """Displacements [1, 3, X, Y, Z] in voxels of a shift."""
    direction = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    return (SHIFT_MM * direction / spacing).reshape(1, 3, 1, 1, 1).expand(1, 3, *image.shape[1:]).contiguous()


def _smooth(image: Tensor, generator: torch.Generator) -> Tensor:
    """A smooth random field with the extremes -1 and 1, shape [1, X, Y, Z]."""
    coarse = torch.randn(1, 1, 4, 4, 4, generator=generator)
    field = interpolate(coarse, image.shape[1:], mode="trilinear", align_corners=True)[0]
    return 2 * (field - field.min()) / (field.max() - field.min()) - 1


Change = Callable[[Tensor, Tensor, torch.Generator], Tensor]
"""Of the image [1, X, Y, Z], the voxel's edges in mm [3] and random numbers."""
_BRIGHTNESS: dict[str, Change] = {"gamma": _gamma, "bias": _bias, "noise": _noise, "blur": _blur, "strip": _strip}
_MOTION: dict[str, Change] = {"rotate": _rotation, "shift": _translation}
PERTURBATIONS = (*_BRIGHTNESS, *_MOTION)
