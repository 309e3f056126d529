"""Warping: look up, for every voxel of the fixed image's grid, the place in the moving image that it comes from.

Conventions are those of `monai.networks.blocks.Warp` (pull-back, voxel units, component a along array axis a), with
these differences. A zero field is the identity exactly and an integer shift moves voxels exactly; MONAI's Warp is off
by 10⁻⁵ of the intensity range there, and takes several times as long. One image serves any number of fields. Halfway
between two voxels, the nearest is the upper one, as ITK and SciPy have it; MONAI takes the even one.

Outside of the image its border voxels are repeated: that adds no edge that a similarity could hold on to.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from scripts.registration.backends import compiled
from scripts.registration.errors import check_partner, check_volume


def warp(image: Tensor, ddf: Tensor) -> Tensor:
    """Warp intensities by trilinear interpolation.

    Args:
        image: the moving image, shape [B, C, X, Y, Z], or [1, C, X, Y, Z] for all fields.
        ddf: displacement in voxels, shape [B, 3, X, Y, Z].

    Returns:
        The warped image, shape [B, C, X, Y, Z]: warped(i) = image(i + ddf(i)); without metadata.

    Raises:
        ShapeError: when the shapes do not match.
    """
    image, ddf = _checked(image, ddf)
    fast = compiled("numba_warp", image, ddf)
    if fast is None or (torch.is_grad_enabled() and image.requires_grad):
        return _grid_sample(image, ddf)
    return _LinearWarp.apply(image, ddf, fast)


def warp_labels(labels: Tensor, ddf: Tensor) -> Tensor:
    """Warp a label map, or anything else that must not be mixed, by its nearest voxel; shapes and errors as in `warp`.

    No one-hot volume is made; the codes are copied, whatever their dtype, which is kept. Not differentiable.
    """
    labels, ddf = _checked(labels, ddf)
    fast = compiled("numba_warp", ddf)
    with torch.no_grad():
        return fast.nearest(labels, ddf) if fast else _gather(labels, ddf)


def _checked(image: Tensor, ddf: Tensor) -> tuple[Tensor, Tensor]:
    """The arguments as plain tensors: on the fixed image's grid, the moving image's affine would be wrong."""
    check_volume("ddf", ddf, 3)
    check_partner("image", image, ddf)
    return image.as_subclass(Tensor), ddf.as_subclass(Tensor)


class _LinearWarp(torch.autograd.Function):
    """Trilinear interpolation by the compiled loops; gradient for the field only."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, ddf: Tensor, fast: Any) -> Tensor:
        ctx.save_for_backward(image, ddf)
        ctx.fast = fast
        return fast.linear(image, ddf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        image, ddf = ctx.saved_tensors
        return None, ctx.fast.linear_backward(image, ddf, grad), None


def _grid_sample(image: Tensor, ddf: Tensor) -> Tensor:
    """Trilinear interpolation by torch, on any device, with all gradients."""
    grid = image.shape[2:]
    # grid_sample scales coordinates by 2/size and back. With a power of two that is exact for whole voxels; with any
    # other size a zero field would not be the identity.
    sizes = [1 << (n - 1).bit_length() for n in grid]
    image = F.pad(image, [0, sizes[2] - grid[2], 0, sizes[1] - grid[1], 0, sizes[0] - grid[0]], mode="replicate")
    centers, scale = _normalized_grid(tuple(grid), tuple(sizes), ddf.dtype, ddf.device)
    coordinates = torch.addcmul(centers, ddf, scale)  # [B, 3, X, Y, Z]
    # grid_sample counts axes from the last. Turning the image (a view) instead of the field saves a copy of the field.
    return F.grid_sample(
        image.permute(0, 1, 4, 3, 2).to(ddf.dtype).expand(ddf.shape[0], -1, -1, -1, -1),
        coordinates.permute(0, 2, 3, 4, 1),
        padding_mode="border",
        align_corners=False,
    )


@functools.lru_cache(maxsize=4)
def _normalized_grid(
    grid: tuple[int, ...], sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where voxels lie in grid_sample's coordinates, (2i + 1)/size − 1, [3, X, Y, Z], and 2/size, [3, 1, 1, 1]."""
    with torch.inference_mode(False):  # see spline._interpolation
        axes = [(2 * torch.arange(n, dtype=torch.float64) + 1) / size - 1 for n, size in zip(grid, sizes, strict=True)]
        centers = torch.stack(torch.meshgrid(*axes, indexing="ij"))
        scale = 2 / torch.tensor(sizes, dtype=torch.float64).reshape(3, 1, 1, 1)
        return centers.to(device, dtype), scale.to(device, dtype)


def _gather(labels: Tensor, ddf: Tensor) -> Tensor:
    """Nearest voxels by torch, on any device."""
    index = torch.zeros((), dtype=torch.int64, device=ddf.device)
    for axis, size in enumerate(ddf.shape[2:]):
        along = torch.arange(size, device=ddf.device, dtype=ddf.dtype)
        along = along.reshape([-1 if a == axis else 1 for a in range(3)])
        voxel = (ddf[:, axis] + along + 0.5).floor_().nan_to_num_(0.0).clamp_(0, size - 1)
        index = index * size + voxel.long()  # [B, X, Y, Z]
    batch, channels = ddf.shape[0], labels.shape[1]
    flat = labels.flatten(2).expand(batch, -1, -1)
    index = index.reshape(batch, 1, -1).expand(-1, channels, -1)
    return flat.gather(2, index).reshape(batch, channels, *ddf.shape[2:])
