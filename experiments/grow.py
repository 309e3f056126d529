"""`python -m experiments.grow`: weights for images of twice the resolution, from which training goes on.

    python -m experiments.grow experiments/weights/s_lc_10l.pt output/one_mm/start.pt

A network that was trained at 2 mm knows nothing of images at 1 mm. A larger one does from the start what the small one
does, if the small one is its coarse part: its finest level averages blocks of eight voxels, the levels below are those
of the small network, and the mean and R come out of a quarter of the resolution (`coarse_mean`, `factor_level:
quarter`), twice as large, since a voxel is half as long. The fine heads start at nothing (the mean) or as a fresh
network's (L), and channels without a past at random.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from scripts.core.checkpoint import network_state, read, save_atomically
from scripts.networks import ProposalLayout, ProposalNetwork
from scripts.networks.backbone import UNetBackbone

IMAGES = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the small network's weights, write the grown one's."""
    parser = argparse.ArgumentParser(prog="python -m experiments.grow", description=__doc__.split("\n")[0])
    parser.add_argument("weights", type=Path, help="of a displacement network, R at half resolution")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0, help="of the channels that have no past")
    chosen = parser.parse_args(arguments)
    save_atomically(grown(dict(network_state(read(chosen.weights))), chosen.seed), chosen.output)
    print(f"wrote {chosen.output}")


def grown(small: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Weights of a network with one level more that gives the small network's mean and R, upsampled.

    Args:
        small: weights of a :class:`~scripts.networks.ProposalNetwork` with a
            :class:`~scripts.networks.backbone.UNetBackbone` and R at half resolution.

    Returns:
        What of the large network has a past, with the channels beside it. L and σ_α have none and are left out: a
        training that starts from this makes them afresh.
    """
    channels = _channels(small)
    stem, first = small["backbone.stem.conv.weight"], small["backbone.down.0.0.conv.weight"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rank = len(small["factor_head.weight"]) // 3 if "factor_head.weight" in small else 0
        large = ProposalNetwork(
            ProposalLayout(rank=rank), UNetBackbone((channels[0], channels[1], *channels[1:])),
            factor_level="quarter", coarse_mean=True,
        ).state_dict()  # fmt: skip

    # 1 mm: the images pass through, being 0 or brighter. 2 mm: blocks of eight are averaged, then the small stem.
    through, blocks = large["backbone.stem.conv.weight"], large["backbone.down.0.0.conv.weight"]
    old_stem = large["backbone.down.0.1.conv.weight"]
    through[:IMAGES], blocks[:IMAGES], old_stem[: len(stem)] = 0, 0, 0
    for image in range(IMAGES):
        through[image, image, 1, 1, 1] = 1
        blocks[image, image, 1:, 1:, 1:] = 1 / 8  # stride 2, padding 1: taps 1 and 2 are voxels 2i and 2i + 1
    old_stem[: len(stem), :IMAGES] = stem
    # 4 mm: the small network's first level; it has not seen the channels beside its own.
    entry = large["backbone.down.1.0.conv.weight"]
    entry[:, len(stem) :], entry[:, : len(stem)] = 0, first
    for name, value in small.items():
        if name.startswith("backbone.down.") and name != "backbone.down.0.0.conv.weight":
            level, rest = name.removeprefix("backbone.down.").split(".", 1)
            large[f"backbone.down.{int(level) + 1}.{rest}"] = value.clone()
        elif name.startswith("backbone.up."):
            large[name] = value.clone()
    large["mean_head.weight"].zero_()
    large["coarse_mean_head.weight"] = 2 * small["mean_head.weight"]
    if rank:
        large["factor_head.weight"] = 2 * small["factor_head.weight"]
    if "column_scale" in small:
        large["column_scale"] = small["column_scale"].clone()
    return {name: value for name, value in large.items() if not name.startswith(("stencil_head", "weight_scale"))}


def _channels(small: Mapping[str, Tensor]) -> list[int]:
    """Channels of each level of the small network, finest first."""
    levels = sum(name.startswith("backbone.down.") and name.endswith(".0.conv.weight") for name in small)
    if not levels or "mean_head.weight" not in small:
        raise SystemExit("these are no weights of a U-Net of this bundle")
    downs = [len(small[f"backbone.down.{level}.0.conv.weight"]) for level in range(levels)]
    return [len(small["backbone.stem.conv.weight"]), *downs]


if __name__ == "__main__":
    main()
