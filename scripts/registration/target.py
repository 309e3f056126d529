"""The posterior that is to be sampled: how well a field explains a pair of images, and how plausible it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from scripts.core.described import Described, make
from scripts.registration import one_pass
from scripts.registration.errors import ShapeError, check_volume
from scripts.registration.label_overlap import OverlapLikelihood
from scripts.registration.local_correlation import NCCLikelihood
from scripts.registration.parts import Likelihood, Prior, Transform
from scripts.registration.prior import DiffusionPrior
from scripts.registration.transform import DisplacementTransform
from scripts.registration.warp import warp

ON_IMAGE_GRID = 2
"""Fields that are on the image grid at a time, on a CPU and without gradients: buffers of two images are used again and
again, those of 32 come anew from the system each time, which took a third of the whole time."""


PARTS: dict[str, type[Described]] = {
    "likelihood": Likelihood, "prior": Prior, "mean_prior": Prior, "transform": Transform, "overlap": OverlapLikelihood,
}  # fmt: skip
"""What a posterior is made of, by the names of `Target`'s arguments."""


class Pair(NamedTuple):
    """One pair of images, ready for many fields."""

    moving: Tensor  # [1, 1, X, Y, Z]
    fixed: Any  # what the likelihood precomputed of the fixed image
    mask: Tensor | None = None  # weights of the fixed image's voxels, [1, 1, X, Y, Z]
    labels: tuple[Tensor, Tensor] | None = None  # moving and fixed label map, [1, 1, X, Y, Z], in training only
    structures: tuple[int, ...] = ()  # whose overlap counts in this step
    arranged: list[Any] | None = None  # for fields without gradients, see `one_pass`; a list, to be filled on first use

    @property
    def shape(self) -> torch.Size:
        """The image grid (X, Y, Z)."""
        return self.moving.shape[2:]


class Target(nn.Module):
    """log p(I_f | I_m ∘ Z) + log p(Z), up to a constant: the numerator of the importance weights.

    Args:
        likelihood: of the images: `NCCLikelihood` (the paper's, decision 8) or another.
        prior: of the sampled field, on the field grid (decision 9).
        mean_prior: additional prior of the proposal's mean. It is the same for all samples of a pair and cancels in
            the weights; None for none.
        transform: what a sampled field means: a displacement, or a velocity.
        overlap: additional likelihood of label maps, where a pair has them: for training only; None for none.
    """

    def __init__(
        self,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        mean_prior: Prior | None = None,
        transform: Transform | None = None,
        overlap: OverlapLikelihood | None = None,
    ) -> None:
        super().__init__()
        self.likelihood = likelihood if likelihood is not None else NCCLikelihood()
        self.prior = prior if prior is not None else DiffusionPrior(1.0)
        self.mean_prior = mean_prior
        self.transform = transform if transform is not None else DisplacementTransform()
        self.overlap = overlap

    def settings(self) -> dict[str, Any]:
        """What :func:`make_target` needs, as plain data.

        Raises:
            DataError: for a part that cannot be stored.
        """
        parts: dict[str, Described | None] = {name: getattr(self, name) for name in PARTS}
        return {name: None if part is None else part.settings() for name, part in parts.items()}

    def prepare(
        self,
        moving: Tensor,
        fixed: Tensor,
        mask: Tensor | None = None,
        labels: tuple[Tensor, Tensor] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> list[Pair]:
        """Precompute what all fields of a pair share; all tensors have the shape [B, 1, X, Y, Z].

        Args:
            mask: weights of the fixed images' voxels.
            labels: label maps of the moving and the fixed images; for `overlap`.
            seeds: B seeds of the choice of structures; None for 0, 1, …

        Returns:
            One `Pair` for each element of the batch: they have samples and weights of their own.

        Raises:
            ShapeError: for another shape.
        """
        check_volume("moving", moving, 1)
        moving_label, fixed_label = (None if self.overlap is None else labels) or (None, None)
        given = {
            "moving": moving, "fixed": fixed, "mask": mask, "moving_label": moving_label, "fixed_label": fixed_label,
        }  # fmt: skip
        # MONAI's metadata would be copied in every operation.
        plain = {name: volume.as_subclass(Tensor) for name, volume in given.items() if volume is not None}
        for name, volume in plain.items():
            if volume.shape != moving.shape:
                raise ShapeError(name, str(list(moving.shape)), volume.shape)
        pairs = []
        for b in range(len(moving)):
            part = {name: volume[b : b + 1] for name, volume in plain.items()}
            pair = Pair(part["moving"], self.likelihood.precompute(part["fixed"]), part.get("mask"), arranged=[])
            if self.overlap is not None and "moving_label" in part:
                structures = tuple(self.overlap.choose(b if seeds is None else seeds[b]))
                pair = pair._replace(labels=(part["moving_label"], part["fixed_label"]), structures=structures)
            pairs.append(pair)
        return pairs

    def log_likelihood(self, pair: Pair, z: Tensor) -> Tensor:
        """log p(I_f | I_m ∘ Z) of fields [N, 3, x, y, z]; shape [N], float64.

        Without gradients on a CPU the fields go through the image in one pass, see `scripts.registration.one_pass`.
        """
        if torch.is_grad_enabled() and (z.requires_grad or pair.moving.requires_grad):
            return self._step_by_step(pair, z)
        labels = self.overlap is not None and pair.labels is not None
        if not labels and one_pass.serves(self.transform, self.likelihood, pair, z):
            return one_pass.log_likelihood(self.transform, self.likelihood, pair, z)
        few = z.split(ON_IMAGE_GRID) if z.device.type == "cpu" and len(z) else [z]
        return torch.cat([self._step_by_step(pair, part) for part in few])

    def _step_by_step(self, pair: Pair, z: Tensor) -> Tensor:
        """Displacements, warped images, correlations: what takes gradients and any device, likelihood and transform."""
        ddf = self.transform(z, pair.shape)  # [N, 3, X, Y, Z]
        value = self.likelihood(pair.fixed, warp(pair.moving, ddf), pair.mask)
        if self.overlap is not None and pair.labels is not None:
            moving_label, fixed_label = pair.labels
            value = value + self.overlap(fixed_label, moving_label, ddf, pair.structures)
        return value

    def log_prior(self, z: Tensor) -> Tensor:
        """log p(Z) of fields [N, 3, x, y, z]; shape [N], float64."""
        return self.prior(z)

    def forward(self, pair: Pair, z: Tensor) -> Tensor:
        """log p(I_f | I_m ∘ Z) + log p(Z) of fields [N, 3, x, y, z]; shape [N], float64."""
        return self.log_likelihood(pair, z) + self.log_prior(z)

    def log_mean_prior(self, mean: Tensor) -> Tensor:
        """Log-prior of the proposal's mean [B, 3, x, y, z] beyond that of the samples; shape [B], float64."""
        if self.mean_prior is None:
            return mean.new_zeros(mean.shape[0], dtype=torch.float64)
        return self.mean_prior(mean)


def make_target(settings: Mapping[str, Mapping[str, Any] | None]) -> Target:
    """The posterior of these settings, see `Target.settings`.

    Raises:
        DataError: for parts that are not known here.
    """
    made = {name: make(settings[name] or {}, part) for name, part in PARTS.items() if settings.get(name)}
    return Target(**made)  # type: ignore[arg-type]
