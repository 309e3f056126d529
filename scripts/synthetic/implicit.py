"""Shapes as signed distances, and random fields, both as functions of a position in millimeters.

Nothing here knows a voxel grid: the same shape or field can be asked at any set of points, so a subject looks the same
at every resolution. A signed distance is negative inside its shape, in millimeters, and exact enough near the border.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from scipy.fft import next_fast_len
from torch import Tensor

Vector = Sequence[float]

#: Half the width in mm of the box in which lattice fields live: the usual 160 x 192 x 224 mm volume and a margin.
BOX_HALF_WIDTH = (92.0, 108.0, 124.0)


def fold_sides(points: Tensor) -> Tensor:
    """Points [..., 3] with |x| in place of x: both sides of the body laid on one."""
    return torch.cat([points[..., :1].abs(), points[..., 1:]], dim=-1)


def soft_min(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Minimum of two distances of any shape, blended up to ``width`` mm from the crease: the union of two shapes."""
    gap = (width - (a - b).abs()).clamp(min=0.0) / width
    return torch.minimum(a, b) - 0.25 * width * gap * gap


def soft_max(a: Tensor, b: Tensor, width: float) -> Tensor:
    """Maximum of two distances with a rounded crease: the intersection of two shapes (see :func:`soft_min`)."""
    return -soft_min(-a, -b, width)


def ellipsoid(points: Tensor, center: Vector, radii: Vector, exponent: float = 2.0) -> Tensor:
    """Signed distances [...] of points [..., 3] to a (super-)ellipsoid: (ρ - 1) / |∇ρ| with ρ the scaled radius.

    They are right to first order. All is in mm; an exponent of 2 is an ellipsoid, a larger one is boxier.
    """
    scaled = (points - points.new_tensor(center)).abs() / points.new_tensor(radii)
    rho = scaled.pow(exponent).sum(-1).clamp(min=1e-6).pow(1.0 / exponent)
    slope = (scaled / rho[..., None]).pow(exponent - 1.0) / points.new_tensor(radii)
    return (rho - 1.0) / slope.norm(dim=-1).clamp(min=1e-4)


def tube(points: Tensor, path: Sequence[Vector], stretch: Vector = (1.0, 1.0, 1.0)) -> Tensor:
    """Signed distance to a tube around a polyline whose radius changes along the way.

    Args:
        points: positions [..., 3] in mm.
        path: corners of the polyline, each (x, y, z, radius) in mm.
        stretch: factors by which the cross-section is wider along each axis than ``radius``.

    Returns:
        Signed distances [...], exact for ``stretch`` 1, else in units of the least stretched axis.
    """
    scale = points.new_tensor(stretch)
    scaled = points / scale
    corners = points.new_tensor(path)
    distance = points.new_full(points.shape[:-1], torch.inf)
    for start, end in pairwise(corners):
        origin, axis = start[:3] / scale, (end[:3] - start[:3]) / scale
        offset = scaled - origin
        along = ((offset @ axis) / axis.dot(axis)).clamp(0.0, 1.0)
        to_axis = (offset - along[..., None] * axis).norm(dim=-1)
        distance = torch.minimum(distance, to_axis - torch.lerp(start[3], end[3], along))
    return distance


def lattice_points(spacing: float) -> Tensor:
    """Positions [X, Y, Z, 3] in mm of a regular lattice over the box, for fields sampled by :func:`sample_lattice`."""
    sizes = [round(2 * half / spacing) + 1 for half in BOX_HALF_WIDTH]
    axes = [torch.linspace(-half, half, size) for half, size in zip(BOX_HALF_WIDTH, sizes, strict=True)]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1)


def sample_lattice(lattice: Tensor, points: Tensor) -> Tensor:
    """Values [C, N] at points [N, 3] of a field on a lattice [C, X, Y, Z] that spans the box.

    Linear between the lattice points, constant outside the box.
    """
    unit = points / points.new_tensor(BOX_HALF_WIDTH)
    # grid_sample names the last array axis first.
    grid = unit.flip(-1)[None, None, None]
    return F.grid_sample(lattice[None], grid, mode="bilinear", padding_mode="border", align_corners=True)[0, :, 0, 0]


def random_lattice(generator: torch.Generator, channels: int, wavelength: float, bandwidth: float = 0.0) -> Tensor:
    """Draw Gaussian random fields of unit variance with a chosen grain.

    Args:
        wavelength: in mm. Waves shorter than this are suppressed; with a bandwidth, those near it are kept.
        bandwidth: 0 gives a smooth (low-pass) field; else the relative width of the band around ``wavelength``, which
            gives stripes and labyrinths of that period.

    Returns:
        Values [C, X, Y, Z] for :func:`sample_lattice`.
    """
    # Coarse, because the field is smooth, but finer for the gradient of a pattern.
    spacing = wavelength / (6.0 if bandwidth else 4.0)
    sizes = [next_fast_len(round(2 * half / spacing) + 1, real=True) for half in BOX_HALF_WIDTH]
    steps = [2 * half / (size - 1) for half, size in zip(BOX_HALF_WIDTH, sizes, strict=True)]
    kx, ky = (torch.fft.fftfreq(n, step) for n, step in zip(sizes[:2], steps[:2], strict=True))
    kz = torch.fft.rfftfreq(sizes[2], steps[2])
    k = (kx[:, None, None] ** 2 + ky[None, :, None] ** 2 + kz[None, None, :] ** 2).sqrt() * wavelength
    gain = torch.exp(-0.5 * ((k - 1.0) / bandwidth) ** 2) if bandwidth else torch.exp(-2.0 * k * k)
    white = torch.randn((channels, *sizes), generator=generator)
    field = torch.fft.irfftn(torch.fft.rfftn(white, dim=(1, 2, 3)) * gain, s=sizes, dim=(1, 2, 3))
    # The gain fixes the expected variance (Parseval), so that subjects differ in amplitude as chance has it.
    full = torch.fft.irfftn(gain * gain, s=sizes)[0, 0, 0].clamp(min=1e-12)
    return field / full.sqrt()


def lattice_gradient(lattice: Tensor) -> Tensor:
    """Gradient [3, X, Y, Z] per mm of a lattice field [X, Y, Z], by central differences."""
    steps = [2 * half / (size - 1) for half, size in zip(BOX_HALF_WIDTH, lattice.shape, strict=True)]
    return torch.stack(torch.gradient(lattice, spacing=steps))


def smooth_lattice(lattice: Tensor, sigma: float) -> Tensor:
    """Lattice fields [C, X, Y, Z] convolved with a Gaussian of standard deviation ``sigma`` in mm."""
    for axis, half in enumerate(BOX_HALF_WIDTH, start=1):
        step = 2 * half / (lattice.shape[axis] - 1)
        reach = round(3 * sigma / step)
        weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) * step / sigma) ** 2)
        moved = F.pad(lattice.movedim(axis, -1), (reach, reach, 0, 0), mode="replicate")
        rows = F.conv1d(moved.reshape(-1, 1, moved.shape[-1]), (weights / weights.sum())[None, None])
        lattice = rows.reshape(*moved.shape[:-1], -1).movedim(-1, axis)
    return lattice
