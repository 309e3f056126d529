"""Tiny pairs with a known answer, models with a known proposal, and results made up of plain numbers."""

import torch
from monai.data import MetaTensor
from torch import nn

from scripts.evaluation.calibration import binary_entropy
from scripts.evaluation.pair_report import LabeledPair
from scripts.evaluation.pair_result import CURVES, FRACTIONS, PAIR_SCORES, STRUCTURE_SCORES, PairResult
from scripts.evaluation.ribbon import label_ribbons
from scripts.inference.model import Model
from scripts.inference.objectives import MeanObjective, SIRObjective
from scripts.networks import ProposalLayout
from scripts.networks.ensemble import EnsembleLayout
from scripts.posterior.sampler import Sampler
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.target import Target

GRID = (12, 14, 16)  # of the field
SHAPE = (24, 28, 32)  # of the image
LABELS = (3, 22)
SHIFT = 2
FEW = {"num_proposals": 40, "num_samples": 24, "progress": False}


def blobs(shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """A box of smooth texture and two boxes in it as labels, all moved along the first axis; each [1, X, Y, Z]."""
    noise = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(0))
    image = torch.nn.functional.avg_pool3d(noise, 3, stride=1, padding=1)
    image = (image - image.min()) / (image.max() - image.min())
    inside = torch.zeros_like(image)
    inside[:, 3:21, 3:25, 3:29] = 1
    label = torch.zeros(1, *SHAPE, dtype=torch.int32)
    label[:, 6:12, 7:14, 8:20] = LABELS[0]
    label[:, 12:18, 14:22, 10:22] = LABELS[1]
    return (image * inside).roll(shift, 1), label.roll(shift, 1)


def shifted_item(edges: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> dict:
    """A moving scan that is the fixed one, SHIFT voxels further along the first axis, as a dataset gives them."""
    item = {"fixed_name": "a", "moving_name": "b"}
    for role, shift in (("fixed", 0), ("moving", SHIFT)):
        for key, volume in zip((role, f"{role}_label"), blobs(shift), strict=True):
            item[key] = MetaTensor(volume, affine=torch.diag(torch.tensor([*edges, 1.0])))
    return item


def shifted_pair(**options) -> LabeledPair:
    """The same, ready to be evaluated: the right field is known."""
    return LabeledPair.of_item(shifted_item(**options))


def constant_field(shift: float) -> torch.Tensor:
    """The displacement `shift` along the first axis, [1, 3, x, y, z]."""
    field = torch.zeros(1, 3, *GRID)
    field[:, 0] = shift
    return field


class Always(nn.Module):
    """A network whose raw output is the same for all pairs, as are its weights."""

    stride = 4

    def __init__(self, layout, raw):
        super().__init__()
        self.layout, self.raw = layout, nn.Parameter(raw)

    def forward(self, pair):
        del pair
        return self.raw


def sampler_of(shift: float, std: float, wide: float = 0.0, **settings) -> Sampler:
    """Samples jitter by `std` voxels at every field voxel about a constant shift, and by a common `wide` voxels."""
    layout = ProposalLayout("none", 1 if wide else 0, initial_std=std)
    parts = [constant_field(shift), torch.zeros(1, 3, *GRID), *([constant_field(wide)] if wide else [])]
    target = Target(NCCLikelihood(5))
    model = Model(Always(layout, torch.cat(parts, dim=1)), SIRObjective(target, layout))
    return Sampler(model, {**FEW, **settings})


def ensemble_of(*shifts: float, **settings) -> Sampler:
    """Members that each say another constant shift."""
    layout, target = EnsembleLayout(len(shifts)), Target(NCCLikelihood(5))
    raw = torch.cat([constant_field(shift) for shift in shifts], dim=1)
    return Sampler(Model(Always(layout, raw), MeanObjective(target, layout)), {**FEW, **settings})


def made_up(fixed: str, moving: str, labels: tuple[int, ...] = LABELS, seed: int = 0, **scores) -> PairResult:
    """A result with random numbers, or the given ones for single scores."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(count: int) -> list[float]:
        return torch.rand(count, generator=generator, dtype=torch.float64).tolist()

    structures = {name: scores.get(name, numbers(len(labels))) for name in STRUCTURE_SCORES}
    pair = dict(zip(PAIR_SCORES, numbers(len(PAIR_SCORES)), strict=True))
    curves = {name: numbers(10 if name.startswith("rel") else len(FRACTIONS)) for name in CURVES}
    return PairResult(fixed, moving, tuple(labels), structures, pair, curves)


def label_entropies(maps, truth, labels, radius=3):
    """Mean label entropy of each structure in its ribbon, [S], of equally weighted label maps [K, X, Y, Z]."""
    ribbons = label_ribbons(truth, labels, radius)
    shares = [ribbon.select((maps == label).double().mean(0)) for label, ribbon in zip(labels, ribbons, strict=True)]
    return torch.stack([binary_entropy(share).mean() for share in shares])
