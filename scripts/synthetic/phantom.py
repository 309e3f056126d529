"""One synthetic brain: the shared anatomy, deformed, folded and painted as a T1-weighted scan, at any points.

A subject's random fields are drawn in a fixed order from one generator, all before the scanner's noise, so that they do
not depend on how many points are asked for: the same seed gives the same person at every resolution.

Of N points, `place` [N, 3] is where they lie in the shared anatomy, in mm; `folded` the same with |x| in place of x;
`left` [N] whether they belong to the left side. `width` is that of the borders in mm.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from . import anatomy
from .implicit import ellipsoid, fold_sides, lattice_gradient, random_lattice, sample_lattice, soft_min

#: Period in mm of the pattern of folds: two neighboring sulci are about half of it apart.
FOLD_PERIOD = 22.0
#: Share of the pattern's variance that all subjects have in common.
SHARED_FOLDS = 0.45
_SHARED_SEED = 20240229

CSF, GRAY, WHITE = 0.20, 0.55, 0.87
CEREBELLAR_GRAY, CEREBELLAR_WHITE = 0.60, 0.83


def paint_brain(points: Tensor, spacing: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Brightness and label at each point, painted from the outside to the inside, each tissue over the last.

    Args:
        points: positions [N, 3] in mm about the center of the volume; x to the left, y downwards, z to the front.
        spacing: edge in mm of the voxels around the points, which decides how soft borders look (partial volume).
        generator: decides everything about the person.

    Returns:
        Brightness float32 [N] in [0, 1], 0 outside of the brain, and seg35 labels uint8 [N].
    """
    # A voxel's box and the blur of the scanner itself.
    width = (spacing**2 + 0.8**2) ** 0.5
    # Large ventricles, wide sulci and thin cortex come together, with age.
    age = torch.randn(1, generator=generator).clamp(-1.3, 2.2).item()
    place = _deform(points, generator)
    folded = fold_sides(place)
    left = place[:, 0] > 0

    image, label, shell = _paint_cerebrum(place, left, age, width, generator)
    cerebellum = anatomy.cerebellum(folded)
    tissue, tissue_label = _paint_cerebellum(place, left, -cerebellum, width, generator)
    image = torch.lerp(image, tissue, _inside(cerebellum, width))
    label = torch.where(cerebellum < 0, tissue_label, label)
    outside = torch.minimum(-shell, cerebellum)

    low, high = folded.new_tensor(anatomy.DEEP_BOX).T
    deep = torch.nonzero(((folded > low) & (folded < high)).all(-1))[:, 0]
    image[deep], label[deep], stem = _paint_deep(
        folded[deep], left[deep], image[deep], label[deep], age, width, generator
    )
    outside[deep] = torch.minimum(outside[deep], stem)

    # Skull stripping leaves a rim of fluid.
    mask = _inside(outside - 0.8, width)
    image = _scan(image * mask, points, spacing, generator)
    return torch.where(mask > 0, image, 0.0), torch.where(mask > 0.5, label, 0)


def _inside(distance: Tensor, width: float) -> Tensor:
    """Share [N] of a voxel of the given width that lies inside a shape, from the signed distance at its center."""
    return (0.5 - distance / width).clamp(0.0, 1.0)


def _within(distance: Tensor, reach: Tensor | float, width: float) -> Tensor:
    """Share [N] of a voxel nearer than ``reach`` to a thin sheet, from the distance of its center to the sheet.

    Unlike :func:`_inside` it is right for sheets thinner than a voxel: the overlap of two intervals.
    """
    reach = torch.as_tensor(reach, dtype=distance.dtype)
    distance = distance.clamp(min=0.0)
    upper = torch.minimum(distance + width / 2, reach)
    lower = torch.maximum(distance - width / 2, -reach)
    return (upper - lower).clamp(min=0.0) / width


def _sided(left: Tensor, labels: tuple[int, int]) -> Tensor:
    """Label uint8 [N] of a structure with the given numbers on the (left, right) side."""
    first, second = torch.tensor(labels, dtype=torch.uint8)
    return torch.where(left, first, second)


def _deform(points: Tensor, generator: torch.Generator) -> Tensor:
    """Position [N, 3] in the shared anatomy of each point [N, 3] of a subject: rest of an affine, lobes, then gyri."""
    matrix = torch.eye(3) + 0.01 * torch.randn(3, 3, generator=generator)
    shift = 0.5 * torch.randn(3, generator=generator)
    broad = 1.5 * random_lattice(generator, 3, 90.0)
    fine = 0.7 * random_lattice(generator, 3, 32.0)
    offset = (sample_lattice(broad, points) + sample_lattice(fine, points)).T
    # The falx holds the midline nearly straight.
    offset[:, 0] *= 0.35 + 0.65 * (points[:, 0].abs() / 35.0).clamp(max=1.0)
    return points @ matrix + shift + offset


def _paint_cerebrum(
    place: Tensor, left: Tensor, age: float, width: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Cortex, white matter and the fluid around them; sulci are wider by `age` standard deviations of the population.

    Returns:
        Each [N]: brightness, label, and depth in mm below the surface of the cerebrum with its great fissures filled.
    """
    distance, depth, shell = _cortical_distance(place, generator)
    # Sulci gape towards the outside, most of all on the convexity.
    mouth = 0.45 * torch.exp(-depth.clamp(min=0.0) / 4.0) + 0.75 * torch.exp(-shell.clamp(min=0.0) / 5.0)
    gap = max(0.3 + 0.12 * age, 0.12) + mouth
    thickness = 3.7 - 0.15 * age + 0.25 * sample_lattice(random_lattice(generator, 1, 40.0), place)[0]
    csf = _within(distance, gap, width)
    # The border to the white matter is not sharp in anatomy either.
    white = 1.0 - _within(distance, gap + thickness, (width**2 + 1.2**2) ** 0.5)
    # Skull stripping takes away much of the fluid near the surface.
    fluid = CSF * (0.15 + 0.85 * ((shell - 1.0) / 6.0).clamp(0.0, 1.0))
    image = fluid * csf + GRAY * (1.0 - csf - white) + WHITE * white
    label = torch.where(white > 0.5, _sided(left, (1, 20)), _sided(left, (2, 21)))
    return image, torch.where((csf > 0.5) | (depth < 0), 0, label), shell


@lru_cache(maxsize=1)
def _shared_folds() -> Tensor:
    """The part of the fold pattern [1, X, Y, Z] that all subjects have."""
    return random_lattice(torch.Generator().manual_seed(_SHARED_SEED), 1, FOLD_PERIOD, bandwidth=0.25)


def _cortical_distance(place: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """How far each point lies from the nearest fluid outside of the cerebrum, that in the sulci included.

    Sulci are walls that stand on the smooth surface where a random pattern is zero: a labyrinth, as in real brains.

    Returns:
        In mm, each [N]: distance to the nearest outer surface or sulcus; depth below the smooth surface of the
        hemispheres; depth below the surface of the whole, with the great fissures filled.
    """
    own = random_lattice(generator, 1, FOLD_PERIOD, bandwidth=0.25)
    pattern = SHARED_FOLDS**0.5 * _shared_folds() + (1.0 - SHARED_FOLDS) ** 0.5 * own
    bend = random_lattice(generator, 3, 28.0)
    reach = random_lattice(generator, 1, 40.0)
    # Even the great sulci run a little differently in everyone.
    points = place + 1.6 * sample_lattice(random_lattice(generator, 3, 22.0), place).T

    depth, named, shell, *normal = sample_lattice(anatomy.cortex_lattice(), points)
    inward = torch.stack(normal, dim=-1)
    # Walls along the normal: ask the pattern at the foot of each point on the surface. The bend grows with depth.
    foot = points + depth[:, None] * (0.16 * sample_lattice(bend, points).T - 0.9 * inward)
    value, *slope = sample_lattice(torch.cat([pattern, lattice_gradient(pattern[0])]), foot)
    slopes = torch.stack(slope, dim=-1)
    along = slopes - (slopes * inward).sum(-1, keepdim=True) * inward
    # First-order distance to the zero set within the surface; the constant keeps flat spots of the pattern harmless.
    sideways = value.abs() / (along.square().sum(-1) + 0.03**2).sqrt()
    bottom = (15.5 + 3.5 * sample_lattice(reach, foot)[0]).clamp(7.0, 22.0)
    # Halfway between two surfaces the smoothed normal is short, and a wall that went on would tear the white matter.
    bottom = bottom - 30.0 * (0.7 - inward.norm(dim=-1)).clamp(min=0.0)
    sulcus = (sideways.square() + (depth - bottom).clamp(min=0.0).square()).sqrt()

    # Rounding the crease between surface and sulcus rounds the crowns of the gyri.
    distance = soft_min(depth, torch.minimum(sulcus, named), 5.0)
    folded = fold_sides(points)
    # No fold enters the core, basal ganglia and thalamus included: there, only the way to the smooth surface counts.
    deep_gray = ellipsoid(folded, (0, -3, 0), (35, 23, 40), 2.2)
    core = torch.minimum(deep_gray, anatomy.callosal_core(folded))
    return torch.maximum(distance, torch.minimum(-core, depth)), depth, shell


def _paint_cerebellum(
    place: Tensor, left: Tensor, depth: Tensor, width: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Brightness [N] and label [N] of the cerebellum: thin leaves around a tree of white matter.

    `depth` [N] is that below its smooth surface, in mm.
    """
    y, z = place[:, 1] - anatomy.FOLIA_CENTER[0], place[:, 2] - anatomy.FOLIA_CENTER[1]
    radius = (y * y + z * z).sqrt()
    wobble = sample_lattice(random_lattice(generator, 2, 26.0), place)
    # All fissures hold the left-right axis through one point, so they radiate in sagittal planes.
    turn = torch.atan2(y, -z) + 0.1 * wobble[0]
    distance = depth
    # Few deep fissures part the lobules, many shallow ones the folia.
    for period, reach in ((0.3, 16.0), (0.15, 5.0)):
        offset = (turn / period - (turn / period).round()).abs() * period * radius
        bottom = reach * (1.0 + 0.2 * wobble[1])
        fissure = (offset.square() + (depth - bottom).clamp(min=0.0).square()).sqrt()
        distance = torch.minimum(distance, fissure)
    csf = _within(distance, 0.25, width)
    white = 1.0 - _within(distance, 2.35, width)
    image = CSF * csf + CEREBELLAR_GRAY * (1.0 - csf - white) + CEREBELLAR_WHITE * white
    return image, torch.where(white > 0.5, _sided(left, (5, 24)), _sided(left, (6, 25)))


def _paint_deep(
    folded: Tensor, left: Tensor, image: Tensor, label: Tensor, age: float, width: float, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Paint the deep structures over what is there, each a little larger or smaller, brighter or darker than usual.

    Ventricles are wider by `age` standard deviations of the population; `image` and `label` [N] are what is there.

    Returns:
        Each [N]: brightness, label, and signed distance to the brain stem, which reaches out of the cerebrum.
    """
    growth, tone = torch.randn(2, len(anatomy.DEEP_STRUCTURES), generator=generator)
    stem = torch.full_like(image, torch.inf)
    for index, structure in enumerate(anatomy.DEEP_STRUCTURES):
        border = structure.distance(folded) - structure.swells * (0.1 + age) - 0.35 * growth[index]
        image = torch.lerp(image, structure.intensity + 0.015 * tone[index], _inside(border, width))
        label = torch.where(border < 0, _sided(left, structure.labels), label)
        stem = border if structure.distance is anatomy.brain_stem else stem
    return image, label, stem


def _scan(image: Tensor, points: Tensor, spacing: float, generator: torch.Generator) -> Tensor:
    """Add what a scanner adds to ideal brightness [N] at points [N, 3]: contrast, coil shading, texture and noise."""
    contrast = 1.0 + 0.07 * torch.randn(1, generator=generator).clamp(-2.0, 2.0).item()
    shading = 0.05 * sample_lattice(random_lattice(generator, 1, 120.0), points)[0]
    texture = 0.012 * sample_lattice(random_lattice(generator, 1, 12.0), points)[0]
    # Larger voxels average noise away, though less than if it were independent.
    noise = 0.013 * (2.0 / spacing) ** 0.5 * torch.randn(len(points), generator=generator)
    bright = image.clamp(0.0, 1.0).pow(contrast) * shading.exp()
    return (bright + torch.where(image > 0.05, texture + noise, 0.0)).clamp(0.0, 1.0)
