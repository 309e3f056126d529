"""The small r x r matrix that carries a low-rank update: M = I + SᵀS with S = LᵀR.

With Σ = R Rᵀ + (L Lᵀ)⁻¹ everything about Σ⁻¹ and det Σ needs only L, S and M (Woodbury, matrix determinant lemma).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from scripts.gaussian import backends

_BLOCK = 1 << 18
"""Dimensions summed at a time in float64; a float32 sum over 1.6 million products would lose half its digits."""


def inner_products(
    a: Tensor,  # (N, B, D)
    b: Tensor,  # (M, B, D)
) -> Tensor:  # (B, N, M)
    """All inner products of two sets of long vectors, summed in float64."""
    fast = None if recorded(a, b) or a.dtype != b.dtype else backends.sums(a.device, a.dtype)
    if fast is not None:
        return fast.inner_products(a, b)
    a, b = a.transpose(0, 1), b.permute(1, 2, 0)
    total = torch.zeros((a.shape[0], a.shape[1], b.shape[2]), device=a.device, dtype=torch.float64)
    for start in range(0, a.shape[2], _BLOCK):
        block = slice(start, start + _BLOCK)
        total = total + a[:, :, block].double() @ b[:, block].double()
    return total


def squared_norms(
    a: Tensor,  # (N, B, D)
) -> Tensor:  # (N, B)
    """Squared lengths of long vectors, summed in float64."""
    fast = None if recorded(a) else backends.sums(a.device, a.dtype)
    if fast is None:
        return a.square().sum(dim=2, dtype=torch.float64)
    alone = a.reshape(1, -1, a.shape[2])  # each vector as a batch element of its own
    return fast.inner_products(alone, alone).reshape(a.shape[:2])


def recorded(*tensors: Tensor) -> bool:
    """Whether operations on these are recorded for a gradient."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def capacitance(
    gram: Tensor,  # G = SᵀS, (B, r, r), float64
) -> tuple[Tensor, Tensor]:  # (B, r, r) and (B,)
    """M⁻¹ and log det M of M = I + G."""
    return _InverseAndLogDet.apply(gram + torch.eye(gram.shape[-1], device=gram.device, dtype=gram.dtype))


class _InverseAndLogDet(torch.autograd.Function):
    """Inverse and log-determinant of a symmetric M ≥ I through its eigenvalues (decision 6).

    The backward is that of the inverse itself. Differentiating the eigenvectors would divide by differences of
    eigenvalues, which are all zero for a fresh network (R = 0, M = I).
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        values = values.clamp_min(1.0)  # M ≥ I; anything below is rounding
        inverse = (vectors / values[..., None, :]) @ vectors.mT
        ctx.save_for_backward(inverse)
        return inverse, values.log().sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_inverse: Tensor, grad_log_det: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        # dM⁻¹ = −M⁻¹ dM M⁻¹;  d log det M = tr(M⁻¹ dM)
        return grad_log_det[..., None, None] * inverse - inverse @ grad_inverse @ inverse
