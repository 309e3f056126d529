"""How steeply the likelihood of images falls when a voxel moves: its Gauss-Newton curvature."""

from __future__ import annotations

import torch
from torch import Tensor

from scripts.registration.local_correlation import EPS, SIGMA, box_sum, fixed_statistics

WINDOW = 5
"""For likelihoods that look at single voxels."""


def curvature_weights(fixed: Tensor, warped: Tensor, window: int = WINDOW, sigma: float = SIGMA) -> Tensor:
    """w of the curvature w ∇m ∇mᵀ of every voxel, [1, 1, X, Y, Z], of two images of that shape.

    Within a window, 1 − ncc² is the residual of the best line through intensities, min over a, b of
    mean (f − a m − b)² / var f. A displacement d changes m by ∇m·d, so at fixed a and b the second derivative of the
    negative log-likelihood (1/σ²) Σ (1 − ncc²) is (2/σ²) a²/var f ∇m ∇mᵀ with a = cov(f, m)/var m, and
    a²/var f = ncc²/var m. A voxel lies in as many windows as one has voxels; w is the mean over them.

    It looks at local correlation whatever the likelihood: it asks how well intensities follow each other, not which.
    """
    f = fixed_statistics(fixed, window)
    count = box_sum(torch.ones_like(fixed, dtype=torch.float64), window)
    m = warped.double()
    mean = box_sum(m, window) / count
    variance = (box_sum(m * m, window) / count - mean * mean).clamp_min(0)
    covariance = box_sum(m * fixed.double(), window) / count - mean * f.mean
    ncc = covariance.square() / ((f.variance + EPS) * (variance + EPS))
    return (2 / sigma**2 * box_sum(ncc / (variance + EPS) / count, window)).float()
