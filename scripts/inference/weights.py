"""From log-weights to a posterior: normalization, effective sample size, Pareto k̂ and resampling.

log α = log p(I_f | Z) + log p(Z) − log q(Z) for each proposal Z. All functions take log-weights with the proposals in
the first axis, shape (N, *batch), and work in float64.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from scripts.inference.errors import WeightError

KHAT_LIMIT = 0.7
"""Above it, importance sampling estimates converge too slowly to be trusted (Vehtari et al., 2024)."""


def normalize(
    log_weights: Tensor,  # (N, *batch)
    temperature: float | Tensor = 1.0,
    scale: float | Tensor = 1.0,
    log_evidence: Tensor | None = None,  # (N, *batch)
) -> Tensor:  # (N, *batch)
    """w = softmax(T · log α / σ_α + log-evidence) over the proposals (decision 10); sums to one for each batch element.

    Args:
        scale: σ_α, the spread of log α that counts as one unit.
        log_evidence: further evidence about each proposal, which is not tempered; None for none.

    Raises:
        WeightError: if there are no proposals, a NaN or +inf among them, or no finite weight at all; for a scale that
            is not positive, as that of a network that was not trained with SIR.
    """
    log_weights = log_weights.double()
    _check(log_weights)
    scale = torch.as_tensor(scale, dtype=torch.float64, device=log_weights.device)
    if not bool((scale.isfinite() & (scale > 0)).all()):
        raise WeightError(f"the scale must be positive and finite, got {scale.tolist()}")
    logs = tempered(log_weights, temperature, scale)
    if log_evidence is not None:
        logs = logs + log_evidence.double()
        _check(logs)
    return torch.softmax(logs, dim=0)


def tempered(log_weights: Tensor, temperature: float | Tensor, scale: float | Tensor) -> Tensor:
    """T · log α / σ_α. A proposal that explains nothing, log α = −inf, stays one at T = 0, where the product is NaN."""
    nothing = log_weights.isneginf()
    temperature = torch.as_tensor(temperature, dtype=torch.float64, device=log_weights.device)
    # Taken out before the product: what is masked after it would still make the temperature's gradient NaN.
    return (temperature * log_weights.masked_fill(nothing, 0.0) / scale).masked_fill(nothing, -math.inf)


def effective_sample_size(
    weights: Tensor,  # (N, *batch), normalized
) -> Tensor:  # (*batch)
    """1 / Σ w²: N for equal weights, 1 where a single sample carries everything."""
    return weights.double().square().sum(0).reciprocal()


def resample(
    weights: Tensor,  # (N,), normalized
    count: int,
    generator: torch.Generator | None = None,
) -> Tensor:  # (count,) int64
    """Indices drawn with replacement with probability w (multinomial, decision 11); unbiased: E[#i] = count · w_i."""
    if count < 1:
        raise WeightError(f"the number of resampled fields must be positive, got {count}")
    if weights.ndim != 1:
        raise WeightError(f"weights must have shape (N,), got {tuple(weights.shape)}")
    # Through the cumulative distribution, in float64: torch.multinomial rounds small weights on some devices.
    cumulative = weights.double().cumsum(0)
    uniform = torch.rand(count, dtype=torch.float64, device=weights.device, generator=generator) * cumulative[-1]
    return torch.searchsorted(cumulative, uniform, right=True).clamp_max(weights.shape[0] - 1)


def systematic(
    weights: Tensor,  # (N,), normalized
    count: int,
) -> Tensor:  # (count,) int64
    """Indices at the middles of `count` equal steps of the cumulative weights: each count · w_i times, within one."""
    where = (torch.arange(count, dtype=torch.float64, device=weights.device) + 0.5) / count
    cumulative = weights.double().cumsum(0)
    return torch.searchsorted(cumulative, where * cumulative[-1], right=True).clamp_max(weights.shape[0] - 1)


def pareto_khat(
    log_weights: Tensor,  # (N,)
) -> float:
    """Shape k̂ of a generalized Pareto distribution fitted to the largest weights.

    Below 0.5 the weights have finite variance; above 0.7 (`KHAT_LIMIT`) their sums should not be trusted. The tail is
    the largest min(N/5, 3√N) weights, the fit is the empirical Bayes estimate of Zhang and Stephens (2009) with the
    weak prior towards 0.5 of Vehtari et al. (2024).

    Returns:
        k̂; infinite where the tail has fewer than 5 different weights to fit.
    """
    log_weights = log_weights.double().flatten()
    _check(log_weights)
    count = log_weights.numel()
    tail_length = math.floor(min(0.2 * count, 3.0 * math.sqrt(count)))
    ordered = (log_weights - log_weights.max()).sort().values
    if tail_length < 5 or count <= tail_length:
        return math.inf
    cutoff = ordered[-tail_length - 1].clamp_min(math.log(torch.finfo(torch.float64).tiny))
    excess = ordered[-tail_length:].exp() - cutoff.exp()
    excess = excess[excess > 0]
    if excess.numel() < 5:
        return math.inf
    return _fit_generalized_pareto(excess)


def _fit_generalized_pareto(
    excess: Tensor,  # (n,) sorted, positive
) -> float:
    """Posterior mean of the shape over a grid of the profile likelihood in b = −k/σ (Zhang and Stephens, 2009)."""
    n = excess.numel()
    points = 30 + int(math.sqrt(n))
    grid = torch.arange(1, points + 1, dtype=torch.float64)
    quartile = excess[int(n / 4 + 0.5) - 1]
    b = (1.0 - torch.sqrt(points / (grid - 0.5))) / (3.0 * quartile) + 1.0 / excess[-1]
    # For given b the likelihood is largest at k = mean log(1 − b x).
    shape = torch.log1p(-b[:, None] * excess).mean(1)
    profile = n * (torch.log(-b / shape) - shape - 1.0)
    weights = torch.softmax(profile, dim=0)
    b_mean = (b * weights).sum()
    khat = float(torch.log1p(-b_mean * excess).mean())
    # Ten imaginary observations at 0.5 steady short tails.
    return (n * khat + 10 * 0.5) / (n + 10)


def _check(log_weights: Tensor) -> None:
    if log_weights.numel() == 0:
        raise WeightError("there are no proposals to weight")
    nans, infs = int(log_weights.isnan().sum()), int((log_weights == math.inf).sum())
    if nans or infs:
        raise WeightError(
            f"{nans} of {log_weights.numel()} log-weights are NaN and {infs} are +inf; "
            "look for NaN in the images or an overflow in the network"
        )
    if bool(log_weights.isneginf().all(0).any()):
        raise WeightError("all log-weights are -inf: no proposal explains the images at all")
