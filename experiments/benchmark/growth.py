"""How time and memory grow with voxels, samples and rank: weighing proposals, and a training step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from experiments.benchmark.inference import SEED, Case
from experiments.benchmark.measure import clock, peak_of, print_table, save
from experiments.benchmark.train import SIR, Step
from scripts.inference.proposals import weigh_proposals

SHAPES = ((16, 16, 16), (32, 32, 32), (48, 56, 64), (80, 96, 112), (144, 160, 192))
MIDDLE = (48, 56, 64)
SAMPLES, RANKS = (32, 64, 128, 256), (0, 5, 10, 20)
PICTURE = Path("docs/images/growth.png")


class Row(NamedTuple):
    """One measurement."""

    work: str  # "weighing" or "training"
    against: str  # "voxels", "samples" or "rank"
    shape: tuple[int, ...]
    samples: int
    rank: int
    seconds: float
    peak_bytes: int | None

    @property
    def value(self) -> int:
        """What is varied."""
        return {"voxels": math.prod(self.shape), "samples": self.samples, "rank": self.rank}[self.against]


def weighing(against: str, shape: Sequence[int], samples: int = 32, rank: int = 10) -> Row:
    """Weigh proposals of a fresh network for two images of noise: no voxel of these can be skipped."""
    moving, fixed = torch.rand(2, 1, 1, *shape, generator=torch.Generator().manual_seed(0))
    case = Case(moving, fixed, rank)
    seconds: list[float] = []

    def weigh() -> None:
        start = clock()
        weigh_proposals(case.ours.gaussian, case.target, case.pair, samples, SEED)
        seconds.append(clock() - start)

    peak = peak_of(weigh)  # what is prepared once a pair (L packed, images arranged) is in the memory, not in the time
    for _ in range(1 if math.prod(shape) > 10**6 else 3):
        weigh()
    return Row("weighing", against, tuple(shape), samples, rank, min(seconds[1:]), peak)


def training(shape: Sequence[int]) -> Row:
    """One SIR step; the network, its gradient and the optimizer's state included in the memory."""
    seconds: list[float] = []
    peak = peak_of(lambda: seconds.append(sum(Step(tuple(shape)).step(SIR).values())))
    return Row("training", "voxels", tuple(shape), 16, 10, seconds[0], peak)


def measure(shapes: Sequence[Sequence[int]] = SHAPES, middle: Sequence[int] = MIDDLE) -> list[Row]:
    """All rows, small ones first."""
    weighing("voxels", shapes[0])  # compiles
    training(shapes[0])
    rows = [weighing("voxels", shape) for shape in shapes]
    rows += [weighing("samples", middle, samples=count) for count in SAMPLES]
    rows += [weighing("rank", middle, rank=rank) for rank in RANKS]
    return rows + [training(shape) for shape in shapes]


def show(rows: Sequence[Row]) -> None:
    """Print the table: per voxel and sample, a linear cost is a constant."""
    print_table(
        f"Growth ({torch.get_num_threads()} thread(s))",
        ["work, against", "voxels", "samples", "rank", "s", "ns a voxel and sample", "MiB", "bytes a voxel"],
        [
            [
                f"{row.work}, {row.against}",
                "x".join(map(str, row.shape)),
                row.samples,
                row.rank,
                f"{row.seconds:.3f}",
                f"{1e9 * row.seconds / math.prod(row.shape) / row.samples:.1f}",
                "–" if row.peak_bytes is None else f"{row.peak_bytes / 2**20:.0f}",
                "–" if row.peak_bytes is None else f"{row.peak_bytes / math.prod(row.shape):.0f}",
            ]
            for row in rows
        ],
    )


def draw(rows: Sequence[Row], path: Path = PICTURE) -> Path:
    """Time against voxels, samples and rank, and memory against voxels; a dotted line is proportional growth.

    Memory does not grow with samples or rank: proposals are weighed in chunks that take their turns in it.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = {"voxels": "image voxels", "samples": "samples", "rank": "rank of R"}
    panels = [("voxels", "seconds"), ("voxels", "peak memory, MiB"), ("samples", "seconds"), ("rank", "seconds")]
    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4), layout="constrained")
    for axis, (against, quantity) in zip(axes, panels, strict=True):
        for work, color in (("weighing", "tab:blue"), ("training", "tab:orange")):
            chosen = [row for row in rows if (row.against, row.work) == (against, work)]
            if not chosen:
                continue
            x = [row.value for row in chosen]
            seconds = [row.seconds for row in chosen]
            memory = [math.nan if row.peak_bytes is None else max(row.peak_bytes / 2**20, 0.1) for row in chosen]
            y = seconds if quantity == "seconds" else memory
            axis.plot(x, y, "o-", color=color, label="32 proposals weighed" if work == "weighing" else "SIR step")
            if against != "rank":
                axis.plot(x, [y[-1] * value / x[-1] for value in x], ":", color="gray", linewidth=1)
        axis.set_xlabel(names[against])
        axis.set_ylabel(quantity)
        axis.grid(alpha=0.3)
        if against == "voxels":
            axis.set_xscale("log")
            axis.set_yscale("log")
        else:
            axis.set_ylim(bottom=0)
    axes[0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def run() -> dict[str, Any]:
    """Measure, print, draw docs/images/growth.png, write output/benchmark/growth.json."""
    rows = measure()
    show(rows)
    result = {"rows": [row._asdict() for row in rows]}
    print(f"\nWritten to {draw(rows)} and {save('growth', result)}")
    return result
