"""What weighing a proposal needs at least, in operations and bytes, against what the machine does in the same run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from experiments.benchmark.inference_table import ONE_PASS
from experiments.benchmark.measure import copy_rate, matmul_rate, print_table


def operations(window: int, rank: int) -> dict[str, float]:
    """Floating-point operations for an image voxel of a proposal, in one pass and around it.

    One pass: spline 21 FMAs (3 channels, 4 controls: along x for a quarter, along z for half, along y for all voxels,
    less the first products), clamping, splitting and addressing 18, seven interpolations of 3, moments and the sums
    along x and y 22, the sums along z 3 a column of the window, the correlation 16. Around it, for 3/8 numbers of the
    field: the hash and Box-Muller about 45 a number, solve 2 · 45 / 3, R and t = Sᵀε 2 r each, sums 5, prior 9.
    """
    one_pass = 2 * 21 + 18 + 7 * 3 + 22 + 3 * window + 16
    around = 3 / 8 * (45 + 2 * 45 / 3 + 4 * rank + 5 + 9)
    return {"one pass": one_pass, "around": around}


def traffic(rank: int, chunk: int) -> dict[str, float]:
    """Bytes for an image voxel of a proposal that must come from or go to memory beyond the core's own caches.

    One pass reads the moving image as pairs (8), the fixed image (4), its means (8) and weights (4), and the field
    (3/8 float32 a voxel). Around it the field is written as noise, read for log q twice, read and written by the solve,
    the low rank and the mean, and read by the prior; L (45 numbers a field voxel), R and S are read once a chunk.
    """
    field = 3 / 8 * 4
    return {"one pass": 8 + 4 + 8 + 4 + field, "around": 10 * field + (45 / 8 * 4 + 2 * rank * field) / chunk}


def measure(shape: Sequence[int], window: int, rank: int, chunk: int, result: dict[str, Any]) -> dict[str, Any]:
    """The machine's rates now, and the time that both limits would allow, beside the measured one.

    Args:
        result: of `inference.compare`.
    """
    flops, copied, voxels = matmul_rate(), copy_rate(256), math.prod(shape)
    parts = {name: seconds for name, seconds in result["split"].items() if name != "summary"}
    measured = {"one pass": parts[ONE_PASS], "around": sum(parts.values()) - parts[ONE_PASS]}
    need, move = operations(window, rank), traffic(rank, chunk)
    rows = {}
    for name, seconds in measured.items():
        arithmetic, memory = voxels * need[name] / flops, voxels * move[name] / copied
        rows[name] = {
            "operations": need[name],
            "bytes": move[name],
            "arithmetic_ms": 1e3 * arithmetic,
            "memory_ms": 1e3 * memory,
            "measured_ms": 1e3 * seconds,
            "of_the_roof": max(arithmetic, memory) / max(seconds, 1e-12),
        }
    return {"matmul_gflops": flops / 1e9, "copy_gb_s": copied / 1e9, "parts": rows}


def show(result: dict[str, Any]) -> None:
    """Print it."""
    print_table(
        f"Roofline of a proposal (matrix product {result['matmul_gflops']:.0f} Gflop/s, copy "
        f"{result['copy_gb_s']:.0f} GB/s in this run; every voxel counted, also those that are skipped)",
        ["part", "flop a voxel", "bytes a voxel", "arithmetic, ms", "memory, ms", "measured, ms", "of the roof"],
        [
            [
                name,
                f"{row['operations']:.0f}",
                f"{row['bytes']:.0f}",
                f"{row['arithmetic_ms']:.2f}",
                f"{row['memory_ms']:.2f}",
                f"{row['measured_ms']:.2f}",
                f"{row['of_the_roof']:.0%}",
            ]
            for name, row in result["parts"].items()
        ],
    )
