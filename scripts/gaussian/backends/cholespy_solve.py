"""Triangular solves with the stock cholespy package, for cross-checking on small grids.

cholespy factorizes a symmetric matrix and solves with it; it cannot be given a factor. So L⁻ᵀb is obtained as the
solution of (L Lᵀ)x = Lb, and L⁻¹b as Lᵀ(L Lᵀ)⁻¹b. The factorization is repeated for every L, fills in, and grows far
faster than linearly with the grid.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cholespy
import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from scripts.gaussian.backends import torch_products
from scripts.gaussian.errors import BackendError, FactorizationError
from scripts.gaussian.sparse import coordinates, from_columns, to_columns
from scripts.gaussian.stencil import CHANNELS, Stencil

MAX_CUDA_COLUMNS = 128
"""Right-hand sides that cholespy accepts at once on CUDA."""


class Packed(NamedTuple):
    """L and one factorized L Lᵀ per batch element."""

    entries: Tensor  # (B, C, X, Y, Z)
    solvers: tuple[Any, ...]


def pack(stencil: Stencil, entries: Tensor, transpose: bool) -> Packed:
    """Factorize L Lᵀ; `entries` has shape (B, C, X, Y, Z). The same for both values of `transpose`.

    Raises:
        BackendError: if the matrix is too large for cholespy's 32-bit indices.
        FactorizationError: if L is nearly singular.
    """
    entries = entries.detach()
    solver = cholespy.CholeskySolverD if entries.dtype == torch.float64 else cholespy.CholeskySolverF
    solvers = []
    for number, element in enumerate(entries):
        rows, columns, values = (t.cpu().numpy() for t in coordinates(stencil, element))
        size = CHANNELS * element[0].numel()
        factor = scipy.sparse.csr_matrix((values.astype(np.float64), (rows, columns)), shape=(size, size))
        product = (factor @ factor.T).tocoo()
        if max(size, product.nnz) >= 2**31:
            raise BackendError(f"cholespy has 32-bit indices; L Lᵀ has {product.nnz} entries. Use numba or torch")
        arrays = (product.row.astype(np.int32), product.col.astype(np.int32), product.data)
        # The solver works where the arrays are.
        on_device = [torch.from_numpy(a).to(entries.device) if entries.is_cuda else a for a in arrays]
        try:
            solvers.append(solver(size, *on_device, cholespy.MatrixType.COO))
        except ValueError as error:
            diagonal = element[:CHANNELS]
            extremes = float(diagonal.min()), float(diagonal.max())
            raise FactorizationError(number, len(entries), *extremes) from error
    return Packed(entries, tuple(solvers))


def solve(stencil: Stencil, packed: Packed, x: Tensor, transpose: bool, overwrite: bool = False) -> Tensor:
    """L⁻ᵀx or L⁻¹x; shapes as in `numba_solve.solve`. `overwrite` has no effect here."""
    x = x.detach()
    right = torch_products.multiply(stencil, packed.entries, x, transpose=False) if transpose else x
    out = torch.empty_like(x)
    width = MAX_CUDA_COLUMNS if x.is_cuda else max(1, x.shape[0])
    for b, solver in enumerate(packed.solvers):
        for start in range(0, x.shape[0], width):
            columns = to_columns(right[start : start + width, b]).contiguous()
            solution = torch.empty_like(columns)
            if x.is_cuda:
                solver.solve(columns, solution)
            else:
                solver.solve(columns.numpy(), solution.numpy())
            out[start : start + width, b] = from_columns(solution, tuple(x.shape[-3:]))
    return out if transpose else torch_products.multiply(stencil, packed.entries, out, transpose=True)
