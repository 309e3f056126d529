"""The anatomy that all synthetic brains share, as signed distances in millimeters about the center of the volume.

Axes as in the volumes: x grows to the left, y downwards, z to the front. Every function here takes *folded* points,
with |x| in place of x, so one description serves both hemispheres. The figures are set by hand, after rough mean
positions, extents, volumes and tissue intensities of real scans in the neurite-OASIS frame; no voxel comes from a scan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from .implicit import ellipsoid, lattice_gradient, lattice_points, smooth_lattice, soft_max, soft_min, tube

#: Point around which the folia of the cerebellum radiate in a sagittal plane (y, z): the roof of the fourth ventricle.
FOLIA_CENTER = (37.0, -30.0)


@dataclass(frozen=True)
class Structure:
    """A subcortical structure."""

    name: str  # as in the label table, without its side
    labels: tuple[int, int]  # seg35 numbers (left, right); equal for structures on the midline
    intensity: float  # brightness in a T1-weighted scan, in [0, 1]
    distance: Callable[[Tensor], Tensor]  # folded points [N, 3] to signed distances [N]
    swells: float = 0.0  # how many mm its border moves for one unit of the subject's ventricle size


def brain_stem(points: Tensor) -> Tensor:
    """Signed distance [N] to midbrain, pons and medulla."""
    stalk = tube(points, [(0, 6, -10, 10), (0, 18, -12, 12), (0, 36, -16, 12), (0, 52, -22, 10.5), (0, 66, -27, 6.5)])
    peduncle = tube(points, [(14, 6, -2, 5), (9, 20, -5, 6.5), (6, 30, -8, 6)])
    pons = ellipsoid(points, (0, 35, -10), (17, 13, 11.5))
    return soft_min(soft_min(stalk, peduncle, 5.0), pons, 5.0)


def cerebellum(points: Tensor) -> Tensor:
    """Signed distance [N] to both cerebellar hemispheres, the vermis and the middle peduncles."""
    # The tentorium slopes: the cerebellum stands highest in front, and below it is flat.
    x, y, z = points.unbind(-1)
    sheared = torch.stack([x, y + 0.18 * (z + 50.0), z], dim=-1)
    hemisphere = ellipsoid(sheared, (24, 41, -50), (29.5, 24.8, 30.0))
    vermis = ellipsoid(points, (0, 36, -50), (17, 25, 25))
    peduncle = tube(points, [(10, 36, -20, 6), (19, 39, -34, 8)])
    # A notch behind, where the falx of the cerebellum parts the hemispheres.
    notch = tube(points, [(0, 44, -86, 5), (0, 64, -73, 4), (0, 72, -58, 4)])
    return soft_max(soft_min(soft_min(hemisphere, vermis, 10.0), peduncle, 6.0), -notch, 5.0)


def callosal_core(points: Tensor) -> Tensor:
    """Signed distance [N] to what the corpus callosum encloses, itself included: no cortex lies on its midline."""
    arch = ellipsoid(points, (0, -3, -1), (26, 24, 42), 2.3)
    floor = points[..., 1] - 13.0 + 0.25 * points[..., 2].clamp(min=0.0)
    return soft_max(arch, floor, 6.0)


def cerebrum(points: Tensor) -> Tensor:
    """Signed distance [N] to the smooth outer surface of the cerebrum: what a cloth wrapped around it would touch."""
    x, y, z = points.unbind(-1)
    # The forehead is narrower than the parietal lobes.
    taper = 1.0 + 0.0016 * (z + 10.0).clamp(min=-25.0)
    tapered = torch.stack([x * taper, y, z], dim=-1)
    main = ellipsoid(tapered, (0, -8, -4), (70, 72, 88), 2.12)
    orbital = y - 37.0 + 0.006 * (x - 8.0).clamp(min=0.0) ** 2 + 0.002 * (z - 25.0).clamp(min=0.0) ** 2
    main = soft_max(main, orbital, 20.0)
    temporal = tube(points, [(36, 35, 22, 13.5), (45, 33, 8, 20), (48, 26, -22, 20.5), (43, 13, -55, 19)])
    medial_temporal = tube(points, [(25, 30, 11, 10.5), (28, 28, -8, 13), (24, 16, -32, 11), (17, 6, -48, 9)])
    lobes = soft_min(main, soft_min(temporal, medial_temporal, 8.0), 5.0)
    # The cisterns around the brain stem are outside.
    cistern = tube(points, [(0, 31, 12, 13), (0, 27, -12, 18), (0, 12, -34, 7)])
    return soft_max(lobes, -cistern, 4.0)


def _ramp(value: Tensor, low: float, high: float) -> Tensor:
    """Smooth step from 0 at ``low`` to 1 at ``high``."""
    unit = ((value - low) / (high - low)).clamp(0.0, 1.0)
    return unit * unit * (3.0 - 2.0 * unit)


def _beyond(value: Tensor, low: float, high: float) -> Tensor:
    """Distance by which ``value`` lies outside of [low, high], 0 inside."""
    return (low - value).clamp(min=0.0) + (value - high).clamp(min=0.0)


def sylvian_fissure(points: Tensor) -> Tensor:
    """Distance [N] to the cleft between the temporal lobe and the rest, with the insula at its bottom."""
    x, y, z = points.unbind(-1)
    height = 9.0 + 0.34 * z
    # Before the temporal stem the cleft reaches far inwards: the temporal pole hangs free.
    bottom = 42.0 - 27.0 * _ramp(z, 12.0, 24.0)
    cleft = ((0.94 * (y - height)) ** 2 + (bottom - x).clamp(min=0.0) ** 2 + _beyond(z, -40.0, 60.0) ** 2).sqrt()
    insula = (
        (x - 42.0 + 0.006 * (z - 2.0) ** 2) ** 2 + _beyond(y - height, -18.0, 9.0) ** 2 + _beyond(z, -22.0, 22.0) ** 2
    ).sqrt()
    return torch.minimum(cleft, insula) - 0.3


def named_sulci(points: Tensor, depth: Tensor) -> Tensor:
    """Distance [N] to the great sulci that every brain has: central, cingulate, calcarine and parieto-occipital.

    `depth` [N] is that below the outer surface, in mm.
    """
    x, y, z = points.unbind(-1)
    central = ((0.86 * (z + 16.0 - 0.42 * (y + 78.0) + 0.05 * x)) ** 2 + _beyond(depth, -9, 17) ** 2
               + _beyond(y, -99, -8) ** 2 + _beyond(x, 8, 99) ** 2)  # fmt: skip
    around = callosal_core(points)
    cingulate = (around - 12.0) ** 2 + _beyond(x, -1, 13) ** 2 + _beyond(y - 0.2 * z, -99, -6) ** 2
    calcarine = (y - 2.0 - 0.05 * (z + 60.0)) ** 2 + _beyond(x, -1, 19) ** 2 + _beyond(z, -99, -46) ** 2
    parietal = (0.8 * (z + 64.0 - 0.75 * (y + 15.0))) ** 2 + _beyond(x, -1, 15) ** 2 + _beyond(y, -75, 0) ** 2
    return torch.stack([central, cingulate, calcarine, parietal]).amin(0).sqrt()


@lru_cache(maxsize=1)
def cortex_lattice() -> Tensor:
    """Where each point lies in the cortical mantle, tabulated once for all subjects.

    Returns:
        Lattice [6, X, Y, Z]: depth in mm below the surface of a hemisphere (negative outside), distance to the named
        sulci, depth below the surface of the whole cerebrum with its great fissures filled, and the three components
        of the first depth's gradient, which leads from the surface inwards.
    """
    points = lattice_points(2.0)
    points = points[len(points) // 2 :]  # x >= 0; the other half is its mirror image
    whole = cerebrum(points)
    # The cerebellum presses into the lobes from below, and the falx parts them.
    hemisphere = soft_max(soft_max(whole, 0.4 - cerebellum(points), 2.0), 0.5 - points[..., 0], 3.0)
    hemisphere = soft_min(hemisphere, callosal_core(points), 3.0)
    depth = torch.minimum(-hemisphere, sylvian_fissure(points))
    half = torch.stack([depth, named_sulci(points, depth), -whole])
    both = torch.cat([half[:, 1:].flip(1), half], dim=1)
    # Smoothed, because halfway between two surfaces the gradient jumps, and folds that follow it would tear.
    return torch.cat([both, smooth_lattice(lattice_gradient(both[0]), 5.0)])


def _fourth_ventricle(points: Tensor) -> Tensor:
    tent = ellipsoid(points, (0, 38, -33), (8, 8, 6))
    aqueduct = tube(points, [(0, 10, -20, 0.8), (0, 26, -25, 1.8), (0, 40, -30, 3), (0, 56, -34, 1.5)])
    return soft_min(tent, aqueduct, 3.0)


def _lateral_ventricle(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    # In a coronal plane the two bodies are wings: thick at the septum, thin and higher at the outside.
    wing = torch.stack([x, y + 0.45 * (x - 5.0), z], dim=-1)
    body = tube(wing, [(4, -3, 35, 2.4), (4, -10, 25, 3.8), (4, -14, 6, 3.4), (8, -15, -14, 3.4)], (2.0, 1.2, 1.3))
    atrium = tube(points, [(10, -17, -12, 4.2), (20, -9, -31, 5.6), (24, -3, -43, 3.6), (23, -1, -56, 1.6)])
    # However narrow the wings are, the room on both sides of the septum stays open.
    room = ellipsoid(points, (0, -8, 8), (5, 11, 27))
    return soft_min(soft_min(body, atrium, 3.0), room, 2.0)


def _septum(points: Tensor) -> Tensor:
    # The septum pellucidum, a thin sheet, parts the left from the right lateral ventricle.
    return soft_max(ellipsoid(points, (0, -8, 8), (9, 16, 32)), points[..., 0] - 0.6, 0.5)


def _putamen(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    # A lens whose back turns outwards.
    sheared = torch.stack([x + 0.22 * (z - 14) + 0.012 * (y - 2) ** 2, y, z], dim=-1)
    return ellipsoid(sheared, (27, 2, 13), (5.7, 13.5, 18.5), 2.1)


def _pallidum(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    sheared = torch.stack([x + 0.3 * (z - 8), y, z], dim=-1)
    return ellipsoid(sheared, (20, 4, 8), (5.2, 8.5, 12))


def _thalamus(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    sheared = torch.stack([x + 0.35 * (z + 6), y, z], dim=-1)
    body = ellipsoid(sheared, (12, -4, -6), (12.3, 12, 18.5))
    return soft_max(body, 0.9 - x, 2.0)


def _ventral_diencephalon(points: Tensor) -> Tensor:
    x, y, z = points.unbind(-1)
    sheared = torch.stack([x, y - 0.1 * (x - 10), z + 0.2 * (x - 10)], dim=-1)
    return soft_max(ellipsoid(sheared, (10, 13, -3), (12.5, 9, 13)), 0.7 - x, 2.0)


_CAUDATE = [(11, 6, 28, 5.5), (13, -6, 26, 6.2), (15, -14, 13, 4.2), (18, -18, -2, 3.0), (21, -17, -14, 2.0)]
_HIPPOCAMPUS = [(25, 28, 3, 5.6), (28, 24, -7, 5.2), (28, 17, -17, 4.4), (23, 8, -27, 4.0), (17, 1, -30, 2.6)]
_TEMPORAL_HORN = [(27, 0, -34, 2.6), (33, 14, -22, 1.6), (35, 23, -8, 1.5), (32, 27, 5, 1.5)]

#: Box of folded points that holds all of them, with room for a subject's variation: (low, high) for each axis, in mm.
DEEP_BOX = ((-1.0, 46.0), (-36.0, 82.0), (-68.0, 50.0))

#: In the order in which they are painted, the later over the earlier.
DEEP_STRUCTURES: tuple[Structure, ...] = (
    Structure("Brain-Stem", (13, 13), 0.77, brain_stem),
    Structure("VentralDC", (17, 33), 0.78, _ventral_diencephalon),
    Structure("Thalamus", (7, 26), 0.71, _thalamus),
    Structure("Putamen", (9, 28), 0.66, _putamen),
    Structure("Pallidum", (10, 29), 0.80, _pallidum),
    Structure("Caudate", (8, 27), 0.62, partial(tube, path=_CAUDATE, stretch=(1.0, 1.1, 1.2))),
    Structure("Accumbens", (16, 32), 0.60, partial(ellipsoid, center=(10, 11, 26), radii=(5, 5.2, 7))),
    Structure("Amygdala", (15, 31), 0.57, partial(ellipsoid, center=(22, 24, 8), radii=(7.8, 7.6, 6.4))),
    Structure("Inf-Lat-Vent", (4, 23), 0.24, partial(tube, path=_TEMPORAL_HORN), 0.5),
    Structure("Hippocampus", (14, 30), 0.58, partial(tube, path=_HIPPOCAMPUS, stretch=(1.25, 1.0, 1.0))),
    Structure("Lateral-Ventricle", (3, 22), 0.22, _lateral_ventricle, 1.0),
    Structure("Cerebral-White-Matter", (1, 20), 0.70, _septum),
    Structure(
        "3rd-Ventricle", (11, 11), 0.24, partial(ellipsoid, center=(0, 7, 1), radii=(2, 9, 12), exponent=2.2), 0.5
    ),
    Structure("4th-Ventricle", (12, 12), 0.22, _fourth_ventricle, 0.3),
)
