"""L as an operator: products, triangular solves and the log-determinant, each with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scripts.gaussian import backends
from scripts.gaussian.capacitance import recorded
from scripts.gaussian.errors import NearlySingularError, NonPositiveDiagonalError, ShapeError, check_finite
from scripts.gaussian.stencil import CHANNELS, Stencil


class StencilCholesky:
    """The sparse lower triangular L of a batch of structured precisions L Lᵀ.

    Args:
        stencil: the pattern of L.
        entries: entries of L, shape (B, C, X, Y, Z); see `Stencil.table` for the meaning of the channels. Entries that
            point outside the grid are ignored.
        backend: who does the triangular solves, see `scripts.gaussian.backends`; None for the fastest.
        validate: look for NaN and non-positive diagonals first (a pass over L and, on CUDA, a synchronization).

    Raises:
        ShapeError, NonFiniteError, NonPositiveDiagonalError: for entries that are no such L.
        BackendError: for a backend that cannot be used.
    """

    def __init__(self, stencil: Stencil, entries: Tensor, backend: str | None = None, validate: bool = True) -> None:
        if entries.ndim != 5 or entries.shape[1] != stencil.num_channels:
            raise ShapeError("entries", f"(B, {stencil.num_channels}, X, Y, Z)", entries.shape)
        self.stencil = stencil
        self.entries = entries
        self._solver = backends.solver(entries.device, backend)
        self._products = backends.products(entries.device)
        self._packed: dict[bool, Any] = {}
        if validate and entries.numel():
            check_finite("stencil_parameters", entries.detach())
            smallest = float(self.diagonal.detach().min())
            if smallest <= 0:
                raise NonPositiveDiagonalError(int((self.diagonal <= 0).sum()), self.diagonal.numel(), smallest)

    @property
    def diagonal(self) -> Tensor:
        """Shape (B, 3, X, Y, Z)."""
        return self.entries[:, :CHANNELS]

    def multiply(self, x: Tensor, transpose: bool = False) -> Tensor:
        """Lx, or Lᵀx; x and the result have shape (N, B, 3, X, Y, Z)."""
        self._check(x)
        if self.stencil.is_diagonal:
            return self.diagonal * x
        return _Multiply.apply(self.entries, x, self, transpose)

    def solve(self, x: Tensor, transpose: bool = False, overwrite: bool = False) -> Tensor:
        """L⁻¹x, or L⁻ᵀx; x and the result have shape (N, B, 3, X, Y, Z).

        Args:
            transpose: solve with Lᵀ, as sampling does.
            overwrite: x is not needed any more and may be used for the result (only where no gradient is wanted).

        Raises:
            NearlySingularError: if a right-hand side overflowed (checked on the CPU).
        """
        self._check(x)
        if self.stencil.is_diagonal:
            out = x / self.diagonal
        else:
            overwrite = overwrite and not recorded(x, self.entries)
            out = _Solve.apply(self.entries, x, self, transpose, overwrite)
        self._check_solution(out.detach(), transpose)
        return out

    def log_det(self) -> Tensor:
        """log det L, shape (B,), float64: a sum over millions of terms loses digits in float32."""
        return self.diagonal.log().sum(dim=(1, 2, 3, 4), dtype=torch.float64)

    def row_norms(self) -> Tensor:
        """The diagonal of L Lᵀ, shape (B, 3, X, Y, Z): Σ_q L[p, q]² over the entries inside the grid."""
        inside = torch.ones_like(self.diagonal)[None]
        squared = StencilCholesky(self.stencil, self.entries.detach().square(), validate=False)
        return squared.multiply(inside)[0]

    # What the autograd functions below need: the same operations without a graph.

    def _multiply(self, x: Tensor, transpose: bool) -> Tensor:
        return self._products.multiply(self.stencil, self.entries.detach(), x, transpose)

    def _outer(self, rows: Tensor, columns: Tensor, sign: int = 1) -> Tensor:
        return self._products.outer(self.stencil, rows, columns, sign)

    def _solve(self, x: Tensor, transpose: bool, overwrite: bool = False) -> Tensor:
        if transpose not in self._packed:
            self._packed[transpose] = self._solver.pack(self.stencil, self.entries, transpose)
        return self._solver.solve(self.stencil, self._packed[transpose], x, transpose, overwrite)

    def _check(self, x: Tensor) -> None:
        batch, _, *grid = self.entries.shape
        if x.ndim != 6 or list(x.shape[1:]) != [batch, CHANNELS, *grid]:
            raise ShapeError("x", f"(N, {batch}, {CHANNELS}, {', '.join(map(str, grid))})", x.shape)

    def _check_solution(self, out: Tensor, transpose: bool) -> None:
        if out.device.type != "cpu" or out.numel() == 0:
            return  # a synchronization in the hot loop; callers on a GPU look at their log-densities instead
        if self.stencil.is_diagonal:
            healthy = bool(torch.isfinite(out.sum(dtype=torch.float64)))
        else:
            # Every voxel takes in its predecessor of the sweep, and 0 * inf is NaN: whatever went wrong on the way
            # has arrived in the sweep's last voxel.
            end = 0 if transpose else -1
            healthy = bool(torch.isfinite(out[..., end, end, end]).all())
        if not healthy:
            bad = ~torch.isfinite(out)
            samples = int(bad.flatten(2).any(2).sum())
            where = bad.any(0).any(0).any(0).nonzero()
            voxel = tuple(where[-1 if transpose else 0].tolist())
            raise NearlySingularError(samples, out.shape[0] * out.shape[1], voxel, float(self.diagonal.detach().min()))


class _Multiply(torch.autograd.Function):
    """y = Lx or Lᵀx."""

    @staticmethod
    def forward(ctx: Any, entries: Tensor, x: Tensor, operator: StencilCholesky, transpose: bool) -> Tensor:
        ctx.operator, ctx.transpose = operator, transpose
        ctx.save_for_backward(x)
        return operator._multiply(x, transpose)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        operator, transpose = ctx.operator, ctx.transpose
        grad_entries = grad_x = None
        if ctx.needs_input_grad[0]:
            # gᵀ dL x has ∂/∂L_pq = g_p x_q;  gᵀ dLᵀ x has x_p g_q.
            grad_entries = operator._outer(x, grad) if transpose else operator._outer(grad, x)
        if ctx.needs_input_grad[1]:
            grad_x = operator._multiply(grad, not transpose)
        return grad_entries, grad_x, None, None


class _Solve(torch.autograd.Function):
    """y = L⁻¹x or L⁻ᵀx."""

    @staticmethod
    def forward(
        ctx: Any, entries: Tensor, x: Tensor, operator: StencilCholesky, transpose: bool, overwrite: bool
    ) -> Tensor:
        ctx.operator, ctx.transpose = operator, transpose
        y = operator._solve(x, transpose, overwrite)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        operator, transpose = ctx.operator, ctx.transpose
        # L y = x  =>  dy = L⁻¹(dx − dL y). With h = L⁻ᵀg:  gᵀdy = hᵀdx − hᵀ dL y, so ∂/∂L_pq = −h_p y_q.
        # Lᵀy = x  =>  with h = L⁻¹g: ∂/∂L_pq = −y_p h_q.
        h = operator._solve(grad, not transpose)
        grad_entries = None
        if ctx.needs_input_grad[0]:
            grad_entries = operator._outer(*((y, h) if transpose else (h, y)), sign=-1)
        return grad_entries, h, None, None, None
