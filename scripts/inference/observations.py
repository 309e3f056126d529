"""What is known about a displacement at a few places, in a form that is linear in the field: H z = y + error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.inference.errors import ObservationError
from scripts.registration.spline import neighbors


@dataclass(frozen=True, eq=False)
class Observations:
    """m numbers: the displacement u at a place, along a direction, with a Gaussian error.

    The displacement is the cubic B-spline whose control points the field z holds (decision 7), so each number is
    linear in z: y_i = d_iᵀ u(x_i) + e_i with u(x) = Σ_j b_j(x) z_j, and H is a matrix with 3·64 entries a row. Whether
    the errors are small or large beside the field's own uncertainty, and whether places coincide, does not matter.

    Attributes:
        places: x_i in field voxels, (m, 3).
        directions: d_i, (m, 3); in the units that y has by the field's.
        values: y_i, (m,).
        std: standard deviations of the errors, (m,), positive.

    All are float64 on the CPU.

    Raises:
        ObservationError: for shapes that do not fit, numbers that are not finite, errors that are not positive, or no
            observations at all.
    """

    places: Tensor
    directions: Tensor
    values: Tensor
    std: Tensor

    def __post_init__(self) -> None:
        count = len(self.values)
        shapes = {"places": (count, 3), "directions": (count, 3), "values": (count,), "std": (count,)}
        for name, shape in shapes.items():
            value: Tensor = getattr(self, name)
            if tuple(value.shape) != shape or count == 0:
                raise ObservationError(
                    f"{name} must have shape {shape} with at least one row, got {tuple(value.shape)}"
                )
            if value.dtype != torch.float64 or not bool(torch.isfinite(value).all()):
                raise ObservationError(f"{name} must be finite float64 numbers")
        if not bool((self.std > 0).all()):
            raise ObservationError(f"standard deviations must be positive, got {float(self.std.min()):g}")

    def __len__(self) -> int:
        return len(self.values)

    def has_rows_of(self, other: Observations) -> bool:
        """Whether H and s are the same, so that only the values differ."""
        return all(torch.equal(getattr(self, name), getattr(other, name)) for name in ("places", "directions", "std"))

    @staticmethod
    def join(parts: Sequence[Observations]) -> Observations:
        """All of them together."""
        names = ("places", "directions", "values", "std")
        return Observations(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def apply(self, fields: Tensor) -> Tensor:
        """H z of fields [N, 3, x, y, z]; shape (N, m), float64."""
        indices, weights = self._spline(fields.shape[2:])
        indices, weights = indices.to(fields.device), weights.to(fields.device)
        values = fields.flatten(2)[:, :, indices].double()  # (N, 3, m, 64)
        return torch.einsum("ncmk,mk,mc->nm", values, weights, self.directions.to(fields.device))

    def rows(self, grid: Sequence[int], like: Tensor) -> Tensor:
        """The rows of H as fields, shape [m, 3, x, y, z], with the dtype and on the device of `like`."""
        indices, weights = self._spline(grid)
        entries = self.directions[:, :, None] * weights[:, None]  # (m, 3, 64)
        size = int(torch.Size(grid).numel())
        out = torch.zeros(len(self), 3, size, dtype=like.dtype, device=like.device)
        # scatter_add: at the grid's ends a control point occurs several times.
        index = indices[:, None].expand_as(entries).to(like.device)
        out.scatter_add_(2, index, entries.to(like.device, like.dtype))
        return out.reshape(len(self), 3, *grid)

    def _spline(self, grid: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Which of the grid's control points (raster order), and their weights, each of shape (m, 64)."""
        (i, wi), (j, wj), (k, wk) = (neighbors(self.places[:, axis], size) for axis, size in enumerate(grid))
        _, ny, nz = grid
        indices = (i[:, :, None, None] * ny + j[:, None, :, None]) * nz + k[:, None, None, :]
        return indices.flatten(1), torch.einsum("mi,mj,mk->mijk", wi, wj, wk).flatten(1)
