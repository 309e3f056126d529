"""From the field grid to the image grid by a uniform cubic B-spline (decision 7).

The field's values are the spline's control points, so the dense field is twice continuously differentiable and, as
B-splines are averages, never larger than the control points. Beyond the grid's ends the last one is repeated.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from scipy.ndimage import spline_filter
from torch import Tensor

from scripts.registration.errors import OptionError, ShapeError, check_volume


def upsample(field: Tensor, factor: int = 2, shape: Sequence[int] | None = None) -> Tensor:
    """Evaluate the spline at every image voxel.

    A field voxel covers factor³ image voxels, centers aligned: image voxel i lies at (i + ½)/factor − ½ of the field
    grid. The values are not rescaled: a field in image voxels stays one.

    Args:
        field: control points, shape [B, C, x, y, z].
        factor: image voxels along the edge of a field voxel.
        shape: the image's grid (X, Y, Z) if its sizes are no multiples of the factor; its last field voxels then reach
            over the image's end. None for (factor·x, factor·y, factor·z).

    Returns:
        The field on the image grid, shape [B, C, X, Y, Z].

    Raises:
        ShapeError: for a field that is no [B, C, x, y, z], or an image grid that it does not cover exactly.
        OptionError: for a factor below 1.
    """
    sizes = image_grid(field, factor, shape)
    pairs = zip(field.shape[2:], sizes, strict=True)
    return _along_axes(field, [_interpolation(n, size, factor, field.dtype, field.device) for n, size in pairs])


def image_grid(field: Tensor, factor: int, shape: Sequence[int] | None = None) -> tuple[int, ...]:
    """The image grid (X, Y, Z) of a field; arguments and errors as those of :func:`upsample`."""
    check_volume("field", field)
    if factor < 1:
        raise OptionError("factor", "at least 1", factor)
    grid = tuple(field.shape[2:])
    sizes = tuple(factor * n for n in grid) if shape is None else tuple(shape)
    if len(sizes) != 3 or any(-(-size // factor) != n for size, n in zip(sizes, grid, strict=True)):
        raise ShapeError(
            "field", f"[B, C, x, y, z] with x = ceil(X / {factor}) for the image grid {sizes}", field.shape
        )
    return sizes


@functools.lru_cache(maxsize=8)
def phases(factor: int) -> tuple[Tensor, Tensor]:
    """The spline's weights on an image grid, [factor, 4] float32, and their starts, [factor] int64.

    Image voxel factor·κ + p takes the controls κ + starts[p] … + 3.
    """
    with torch.inference_mode(False):
        position = (torch.arange(factor, dtype=torch.float64) + 0.5) / factor - 0.5
        first = position.floor()
        return _cubic(position - first).float(), first.long() - 1


def evaluate(field: Tensor, positions: Sequence[Tensor], degree: int = 3) -> Tensor:
    """Evaluate the spline on another grid whose axes are parallel to the field's: [B, C, x, y, z] to [B, C, X, Y, Z].

    Args:
        positions: for each axis, where on it, in field voxels; shapes (X,), (Y,), (Z,).
        degree: 3, or 1 for linear interpolation between the values.
    """
    check_volume("field", field)
    weights = [_weights(where.double().cpu(), n, degree) for where, n in zip(positions, field.shape[2:], strict=True)]
    return _along_axes(field, [weight.to(field.device, field.dtype) for weight in weights])


def _along_axes(field: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """(Wx ⊗ Wy ⊗ Wz) field, an axis at a time; field [B, C, x, y, z], weights [X, x], [Y, y], [Z, z]."""
    along_x, along_y, along_z = weights
    batch, channels, x, y, z = field.shape
    # Products with the dense W are 6 times as fast as strided sums and 20 times as fast as convolutions (40×48×56 to
    # 80×96×112 on a CPU); the gradient is the product with Wᵀ. No half precision: it would move voxels.
    with torch.autocast(field.device.type, enabled=False):
        out = torch.matmul(along_x, field.reshape(batch * channels, x, y * z))
        out = torch.matmul(along_y, out.reshape(-1, y, z))
        out = out.reshape(-1, z) @ along_z.T
    return out.reshape(batch, channels, *(weight.shape[0] for weight in weights))


@functools.lru_cache(maxsize=32)
def _interpolation(controls: int, size: int, factor: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """W of one axis of an image grid, shape [size, controls]."""
    with torch.inference_mode(False):  # a cached inference tensor could not serve a later training step
        position = (torch.arange(size, dtype=torch.float64) + 0.5) / factor - 0.5
        return _weights(position, controls).to(device, dtype)


def neighbors(position: Tensor, controls: int, degree: int = 3) -> tuple[Tensor, Tensor]:
    """Which of an axis' control points make the values at positions (n,), float64, in field voxels; as in `evaluate`.

    Returns:
        Their indices (n, 4 | 2), some may occur twice at the ends, and their weights, which add up to 1, float64.
    """
    first = position.floor()
    t = position - first
    if degree == 1:
        pieces, offsets = torch.stack([1 - t, t], dim=1), torch.arange(2)
    else:
        pieces, offsets = _cubic(t), torch.arange(-1, 3)
    return (first.long()[:, None] + offsets).clamp(0, controls - 1), pieces


def _weights(position: Tensor, controls: int, degree: int = 3) -> Tensor:
    """W of one axis: value_i = Σ_j W_ij control_j, a few neighbors a row; position (n,), W [n, controls], float64."""
    columns, pieces = neighbors(position, controls, degree)
    return torch.zeros(len(position), controls, dtype=torch.float64).scatter_add_(1, columns, pieces)


def _cubic(t: Tensor) -> Tensor:
    """The four cubic B-spline pieces over [j, j + 1), of the controls j − 1 … j + 2; t (n,) to [n, 4]."""
    pieces = ((1 - t) ** 3, 3 * t**3 - 6 * t**2 + 4, -3 * t**3 + 3 * t**2 + 3 * t + 1, t**3)
    return torch.stack(pieces, dim=1) / 6


def on_work_grid(control_points: Tensor, factor: int, shape: tuple[int, ...]) -> Tensor:
    """The spline of control points on the field grid, [3, x, y, z], as one with control points on the work grid.

    Those are [3, X, Y, Z]; a field voxel has `factor` work voxels along its edge. Both splines take the same values at
    all work voxels, those at the border too. Between them the two differ by 3 % of the field where its control points
    are independent noise, and by far less where it is smooth.
    """
    values = upsample(control_points[None], factor, shape)[0]
    parts = [part.double().cpu().numpy() for part in values]
    # Of SciPy's ways to go on beyond the border, "reflect" puts the last control point there again, as our spline does.
    filtered = [torch.from_numpy(spline_filter(part, order=3, mode="reflect")) for part in parts]
    return torch.stack(filtered).to(control_points)
