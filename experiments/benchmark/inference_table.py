"""The table of `experiments.benchmark.inference`: what each part takes, by us and by plain torch, and the bars."""

from __future__ import annotations

from typing import Any

import torch

from experiments.benchmark.measure import print_table, print_verdicts, verdict

ONE_PASS = "spline, warp, NCC"
PLAIN_PASS = ("spline", "warp", "NCC")
"""What plain torch does one after the other and we do in one pass."""


def show(result: dict[str, Any], times_faster: float, gibibytes: float) -> list[dict[str, Any]]:
    """Print the tables; returns the bars.

    Args:
        result: of `inference.compare`, with `peak_gib`.
        times_faster: bar.
        gibibytes: bar.
    """
    threads = torch.get_num_threads()
    on = "one core, processor time" if threads == 1 else f"{threads} threads"
    ours, plain = result["split"], dict(result["reference_split"])
    plain[ONE_PASS] = sum(plain[name] for name in PLAIN_PASS)
    rows = []
    for name, seconds in ours.items():
        times = result["different_samples"] if name == "summary" else result["proposals"]
        label = f"summary ({times} different fields)" if name == "summary" else name
        share = seconds * times / (result["seconds"] * result["share_of_parts"])
        faster = plain[name] / max(seconds, 1e-9)
        rows.append([label, f"{1e3 * seconds:.2f}", f"{share:.0%}", f"{1e3 * plain[name]:.1f}", f"{faster:.1f}"])
        if name == ONE_PASS:
            rows.extend([f"  {step}", "", "", f"{1e3 * plain[step]:.1f}", ""] for step in PLAIN_PASS)
    print_table(
        f"{result['proposals']} proposals, {result['samples']} kept, {on}: {result['seconds']:.1f} s, "
        f"{result['proposals_a_second']:.1f} proposals a second",
        ["part", "ms a field", "share", "plain torch, ms", "times faster"],
        rows,
    )
    print(
        f"\nThe parts, measured one by one, add up to {result['share_of_parts']:.0%} of the whole."
        f"\nPlain torch: {result['reference_seconds']:.0f} s, extrapolated from {result['reference_proposals']} of the "
        f"same proposals.\nLog-weights have a spread of {result['spread']:.1f} and differ by at most "
        f"{result['largest_difference']:.2g}, weights by {result['largest_difference_of_weights']:.1g}."
        f"\nPeak memory: {result['peak_gib']:.2f} GiB beyond the interpreter with its packages."
    )
    difference = 1e3 * result["largest_difference"] / result["spread"]
    verdicts = [
        verdict("times faster than plain torch", result["times_faster"], times_faster),
        verdict("log-weights: largest difference, thousandths of their spread", difference, 1, at_least=False),
        verdict("peak memory, GiB", result["peak_gib"], gibibytes, at_least=False),
    ]
    print_verdicts(verdicts)
    return verdicts
