"""How fast L⁻ᵀ is: against cholespy and SciPy, against the machine's own limits, and how it grows."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import Any

import scipy.sparse
import scipy.sparse.linalg
import torch

from experiments.benchmark.measure import (
    best_time,
    best_times,
    peak_memory,
    print_table,
    print_verdicts,
    save,
    verdict,
)
from scripts.gaussian import Stencil, StencilCholesky
from scripts.gaussian.backends import cholespy_solve
from scripts.gaussian.sparse import coordinates, from_columns, to_columns

PAPER_GRID = (72, 80, 96)
SAMPLES = 64


def make(stencil: Stencil, grid: tuple[int, int, int], samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries of a well-conditioned L, shape (1, C, *grid), and right-hand sides, shape (samples, 1, 3, *grid)."""
    generator = torch.Generator().manual_seed(0)
    entries = 0.05 * torch.randn(1, stencil.num_channels, *grid, generator=generator)
    entries[:, :3] = 4.0
    return entries, torch.randn(samples, 1, 3, *grid, generator=generator)


def flops(stencil: Stencil, grid: tuple[int, int, int], samples: int) -> float:
    """A multiplication and an addition for each entry, voxel and sample."""
    return 2.0 * stencil.num_channels * torch.Size(grid).numel() * samples


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference relative to the largest number."""
    return float((a - b).abs().max() / b.abs().max())


def against_others(side: int, with_cholespy: bool, with_scipy: bool) -> list[dict[str, Any]]:
    """The same matrix and right-hand sides solved by everybody, compared in time and in result."""
    stencil, grid = Stencil("voxel"), (side, side, side)
    entries, x = make(stencil, grid, SAMPLES)
    numba = StencilCholesky(stencil, entries, "numba")
    ours = numba.solve(x, transpose=True)
    rows: list[dict[str, Any]] = [
        {"solver": "numba", "seconds": best_time(lambda: numba.solve(x, transpose=True)), "difference": 0.0}
    ]
    # A new L each time, as for each new pair: packing included.
    packed = best_time(lambda: StencilCholesky(stencil, entries, "numba").solve(x, transpose=True))
    rows.append({"solver": "numba, packing L too", "seconds": packed, "difference": 0.0})
    wavefront = StencilCholesky(stencil, entries, "torch")
    rows.append(
        {
            "solver": "torch wavefront",
            "seconds": best_time(lambda: wavefront.solve(x, transpose=True), repeats=3),
            "difference": difference(wavefront.solve(x, transpose=True), ours),
        }
    )
    if with_scipy:
        triple = (t.numpy() for t in coordinates(stencil, entries[0]))
        row, column, value = triple
        upper = scipy.sparse.csr_matrix((value, (row, column))).T.tocsr()
        right = to_columns(x[:, 0]).numpy()
        seconds = best_time(lambda: scipy.sparse.linalg.spsolve_triangular(upper, right, lower=False), 3, 1)
        solution = scipy.sparse.linalg.spsolve_triangular(upper, right, lower=False)
        result = from_columns(torch.from_numpy(solution), grid)[:, None].float()
        rows.append({"solver": "SciPy spsolve_triangular", "seconds": seconds, "difference": difference(result, ours)})
    if with_cholespy:
        results: list[torch.Tensor] = []

        def factor_and_solve() -> None:
            solver = cholespy_solve.pack(stencil, entries, True)
            results.append(cholespy_solve.solve(stencil, solver, x, True))

        seconds = best_time(factor_and_solve, repeats=1, warmup=0)
        rows.append(
            {"solver": "cholespy, factor and solve", "seconds": seconds, "difference": difference(results[-1], ours)}
        )
    for entry in rows:
        entry.update(grid=f"{side}³", samples=SAMPLES, ratio=entry["seconds"] / rows[0]["seconds"])
    return rows


def at_paper_size() -> dict[str, Any]:
    """Rates of both patterns at the paper's grid, in place as the sampler does it and into new memory."""
    stencils = [Stencil("full"), Stencil("voxel")]
    operators = []
    for stencil in stencils:
        entries, x = make(stencil, PAPER_GRID, SAMPLES)
        operators.append(StencilCholesky(stencil, entries, "numba"))
    in_place = [partial(operator.solve, x, transpose=True, overwrite=True) for operator in operators]
    fresh = [partial(operator.solve, x, transpose=True) for operator in operators]
    a, b = torch.randn(2, 2048, 2048)
    target = torch.empty_like(x)
    reference = [lambda: a @ b, lambda: target.copy_(x)]
    seconds = best_times([*reference, *in_place, *fresh], repeats=8)
    matmul, copy = 2 * 2048**3 / seconds[0], 2 * x.nbytes / seconds[1]
    result: dict[str, Any] = {"matmul_gflops": matmul / 1e9, "copy_gbytes": copy / 1e9}
    for stencil, operator, best, new in zip(stencils, operators, seconds[2:4], seconds[4:], strict=True):
        rate = flops(stencil, PAPER_GRID, SAMPLES) / best
        # Every sample is read and written once; each block of 32 samples reads L once.
        moved = 2 * x.nbytes + operator.entries.nbytes * SAMPLES / 32
        result[stencil.cross_channel] = {
            "seconds": best,
            "seconds_new_memory": new,
            "gflops": rate / 1e9,
            "share_of_matmul": rate / matmul,
            "share_of_copy_bandwidth": moved / best / copy,
        }
    wavefront = StencilCholesky(stencils[0], operators[0].entries, "torch")
    result["torch_wavefront_seconds"] = best_time(partial(wavefront.solve, x, transpose=True), repeats=1, warmup=0)
    return result


def backward(grid: tuple[int, int, int] = (48, 48, 48)) -> list[dict[str, Any]]:
    """Gradient to L and to the right-hand sides, against the forward solve."""
    rows = []
    for stencil in (Stencil("voxel"), Stencil("full")):
        entries, x = make(stencil, grid, SAMPLES)
        operator = StencilCholesky(stencil, entries.requires_grad_(), "numba")
        y = operator.solve(x.requires_grad_(), transpose=True)
        gradient = torch.ones_like(y)
        forward = partial(operator.solve, x, transpose=True)
        backward = partial(torch.autograd.grad, y, (entries, x), gradient, retain_graph=True)
        there, back = best_times([forward, backward], repeats=8)
        rows.append({"pattern": stencil.cross_channel, "forward": there, "backward": back, "ratio": back / there})
    return rows


def growth() -> list[dict[str, Any]]:
    """Time against voxels and against samples, and how far it is from linear."""
    stencil = Stencil("voxel")
    rows: list[dict[str, Any]] = []
    grids = [(16, 40, 48), (32, 40, 48), (64, 40, 48), (64, 80, 96)]
    sweeps: list[tuple[str, list[tuple[tuple[int, int, int], int]]]] = [
        ("voxels", [(grid, SAMPLES) for grid in grids]),
        ("samples", [((36, 40, 48), n) for n in (64, 128, 256, 512)]),
    ]
    for name, cases in sweeps:
        solves, numbers = [], []
        for grid, samples in cases:
            entries, x = make(stencil, grid, samples)
            solves.append(partial(StencilCholesky(stencil, entries, "numba").solve, x, transpose=True, overwrite=True))
            numbers.append(x.numel())
        seconds = best_times(solves, repeats=12)
        for (grid, samples), best, count in zip(cases, seconds, numbers, strict=True):
            rows.append(
                {
                    "against": name,
                    "grid": "x".join(map(str, grid)),
                    "samples": samples,
                    "seconds": best,
                    "nanoseconds_a_number": 1e9 * best / count,
                    "relative_to_linear": (best / count) / (seconds[0] / numbers[0]),
                }
            )
    return rows


def memory() -> dict[str, float]:
    """Peak memory of a solve at the paper's size, as a multiple of the samples and L."""
    program = textwrap.dedent(
        f"""
        import torch
        from experiments.benchmark.solve import make, PAPER_GRID
        from scripts.gaussian import Stencil, StencilCholesky
        for grid, samples in (((4, 4, 8), {SAMPLES}), (PAPER_GRID, {SAMPLES})):
            stencil = Stencil("full")
            entries, x = make(stencil, grid, samples)
            operator = StencilCholesky(stencil, entries, "numba")
            if grid != PAPER_GRID:
                operator.solve(x, transpose=True)  # compiles
                torch.ones(8) @ torch.ones(8)
                import gc; gc.collect()
                del entries, x, operator
                mark()
        operator.solve(x, transpose=True)
        """
    )
    before, peak = peak_memory(program)
    stencil = Stencil("full")
    voxels = torch.Size(PAPER_GRID).numel()
    inputs = 4 * voxels * (stencil.num_channels + 3 * SAMPLES)
    return {"peak_mib": (peak - before) / 2**20, "inputs_mib": inputs / 2**20, "ratio": (peak - before) / inputs}


def run() -> dict[str, Any]:
    """Measure everything, print it, write it to output/benchmark/solve.json."""
    small = against_others(16, with_cholespy=True, with_scipy=True)
    middle = against_others(24, with_cholespy=False, with_scipy=True)
    paper = at_paper_size()
    gradients = backward()
    grown = growth()
    used = memory()

    print_table(
        f"L⁻ᵀ of {SAMPLES} samples, pattern voxel: the same matrices, results compared",
        ["solver", "grid", "ms", "times numba", "largest relative difference"],
        [
            [r["solver"], r["grid"], f"{1e3 * r['seconds']:.2f}", f"{r['ratio']:.1f}", f"{r['difference']:.1e}"]
            for r in small + middle
        ],
    )
    print_table(
        f"72x80x96, {SAMPLES} samples (matrix product: {paper['matmul_gflops']:.0f} Gflop/s, "
        f"copy: {paper['copy_gbytes']:.0f} GB/s)",
        ["pattern", "ms", "ms, new memory", "Gflop/s", "of matrix product", "of copy bandwidth"],
        [
            [
                pattern,
                f"{1e3 * paper[pattern]['seconds']:.0f}",
                f"{1e3 * paper[pattern]['seconds_new_memory']:.0f}",
                f"{paper[pattern]['gflops']:.0f}",
                f"{paper[pattern]['share_of_matmul']:.0%}",
                f"{paper[pattern]['share_of_copy_bandwidth']:.0%}",
            ]
            for pattern in ("full", "voxel")
        ]
        + [["full, torch wavefront", "", f"{1e3 * paper['torch_wavefront_seconds']:.0f}", "", "", ""]],
    )
    print_table(
        "Gradient",
        ["pattern", "forward ms", "backward ms", "ratio"],
        [
            [r["pattern"], f"{1e3 * r['forward']:.1f}", f"{1e3 * r['backward']:.1f}", f"{r['ratio']:.2f}"]
            for r in gradients
        ],
    )
    print_table(
        "Growth (1.00 is linear)",
        ["against", "grid", "samples", "ms", "ns a number", "relative"],
        [
            [
                r["against"],
                r["grid"],
                r["samples"],
                f"{1e3 * r['seconds']:.1f}",
                f"{r['nanoseconds_a_number']:.2f}",
                f"{r['relative_to_linear']:.2f}",
            ]
            for r in grown
        ],
    )
    print(f"\nPeak memory: {used['peak_mib']:.0f} MiB for {used['inputs_mib']:.0f} MiB of samples and L")
    scipy_row = next(r for r in middle if r["solver"].startswith("SciPy"))
    cholespy_row = next(r for r in small if r["solver"].startswith("cholespy"))
    verdicts = [
        verdict("16³: times faster than cholespy", cholespy_row["seconds"] / small[1]["seconds"], 1000),
        verdict("24³: times faster than SciPy", scipy_row["seconds"] / middle[0]["seconds"], 15),
        verdict("72x80x96, full: share of the matrix product's rate", paper["full"]["share_of_matmul"], 0.3),
        verdict("voxel: times faster than full", paper["full"]["seconds"] / paper["voxel"]["seconds"], 2),
        verdict("backward: times forward", max(r["ratio"] for r in gradients), 3, at_least=False),
        verdict("growth: farthest from linear", max(r["relative_to_linear"] for r in grown), 1.2, at_least=False),
        verdict("peak memory: times samples and L", used["ratio"], 2.5, at_least=False),
    ]
    print_verdicts(verdicts)
    result = {
        "against_others": small + middle,
        "paper_size": paper,
        "backward": gradients,
        "growth": grown,
        "memory": used,
        "bars": verdicts,
    }
    print(f"\nWritten to {save('solve', result)}")
    return result
