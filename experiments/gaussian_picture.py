"""`python -m experiments.gaussian_picture`: a picture of displacement fields drawn from structured Gaussians.

Four covariances with the same marginal standard deviation, the paper's D, LD, C and LC, so that the picture shows what
the structure adds: from jitter that means nothing to deformations that could be anatomy.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from scripts.gaussian import Stencil, StructuredGaussian
from scripts.gaussian.stencil import CHANNELS

GRID = (40, 48, 56)
STD = 0.8  # image voxels
SAMPLES = 64


def smooth_entries(correlation: float) -> Tensor:
    """L of a field whose neighbors correlate like this: a first-order autoregression along each axis, multiplied out.

    (1 − a S_x)(1 − a S_y)(1 − a S_z) with S the shift to the predecessor has the coefficient (−a)^(number of shifts).
    """
    stencil = Stencil("voxel")
    entries = torch.zeros(1, stencil.num_channels, *GRID)
    entries[:, :CHANNELS] = 1.0
    for channel, entry in enumerate(stencil.table):
        if entry.offset != (0, 0, 0) and all(step <= 0 for step in entry.offset):
            entries[:, channel] = (-correlation) ** -sum(entry.offset)
    return entries


def bumps(rank: int) -> Tensor:
    """R: a few smooth patterns of deformation, shape (1, rank, 3, *GRID)."""
    generator = torch.Generator().manual_seed(1)
    axes = torch.meshgrid(*(torch.linspace(0, 1, n) for n in GRID), indexing="ij")
    fields = []
    for _ in range(rank):
        centre = 0.1 + 0.8 * torch.rand(3, generator=generator)
        direction = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
        bump = torch.exp(-sum((axis - c) ** 2 for axis, c in zip(axes, centre, strict=True)) / (2 * 0.13**2))
        fields.append(direction[:, None, None, None] * bump)
    return torch.stack(fields)[None]


def with_std(entries: Tensor, factor: Tensor | None, structured: float) -> StructuredGaussian:
    """Scale L and R to a mean marginal variance of STD², the share `structured` of it from L."""
    mean = torch.zeros(1, CHANNELS, *GRID)
    from_l = StructuredGaussian(mean, entries).marginal_variance(32)[0].mean()
    entries = entries * (from_l / (structured * STD**2)).sqrt()
    if factor is not None:
        from_r = factor.square().sum(1).mean()
        factor = factor * ((1 - structured) * STD**2 / from_r).sqrt()
    return StructuredGaussian(mean, entries, factor)


def draw_grid(axes: plt.Axes, field: Tensor, title: str) -> None:
    """A coronal slice: a grid deformed by the field (3, X, Y, Z), colored by the displacement's length."""
    middle = field.shape[3] // 2
    shift = field[:, :, :, middle]
    length = shift.square().sum(0).sqrt()
    x, y = torch.meshgrid(*(torch.arange(n, dtype=torch.float32) for n in length.shape), indexing="ij")
    axes.imshow(length.T, cmap="magma", vmin=0, vmax=4 * STD, origin="lower")
    for lines_x, lines_y in ((x + shift[0], y + shift[1]), ((x + shift[0]).T, (y + shift[1]).T)):
        axes.plot(lines_x[:, ::1], lines_y[:, ::1], color="white", linewidth=0.35, alpha=0.7)
    axes.set(title=title, xticks=[], yticks=[], xlim=(-1, length.shape[0]), ylim=(-1, length.shape[1]))


def main(path: Path = Path("output/samples.png")) -> None:
    """Draw, draw again in a picture, and say where it is."""
    diagonal = torch.ones(1, CHANNELS, *GRID)
    variants = {
        "D: independent voxels": with_std(diagonal, None, 1.0),
        "LD: + 20 low-rank patterns": with_std(diagonal, bumps(20), 0.25),
        "C: neighbors in L": with_std(smooth_entries(0.9), None, 1.0),
        "LC: both": with_std(smooth_entries(0.9), bumps(20), 0.5),
    }
    figure, rows = plt.subplots(2, len(variants), figsize=(3.1 * len(variants), 7.2))
    dimensions = CHANNELS * math.prod(GRID)
    print(f"Four Gaussians over {dimensions:,} dimensions, {SAMPLES} samples of each:")
    for column, (title, gaussian) in zip(rows.T, variants.items(), strict=True):
        gaussian.sample(SAMPLES)  # compiles on the first run
        start = time.perf_counter()
        samples = gaussian.sample(SAMPLES)
        seconds = time.perf_counter() - start
        log_density = gaussian.log_prob_from_noise(gaussian.noise(SAMPLES))
        error = (gaussian.log_prob(samples[:4]) - log_density[:4]).abs().max()
        print(
            f"  {title:28s} {1e3 * seconds:7.1f} ms   standard deviation {float(samples.std()):.2f} voxels   "
            f"entropy {float(gaussian.entropy()):12,.0f} nats   log q by both ways agrees to {float(error):.0e}"
        )
        for axes, sample, name in zip(column, samples[:2, 0], ("sample 1", "sample 2"), strict=True):
            draw_grid(axes, sample, f"{title}\n{name}")
    figure.suptitle(f"The same standard deviation ({STD:g} voxel) in every picture; only the structure differs", y=0.99)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\nThe picture is in {path}")


if __name__ == "__main__":
    main()
