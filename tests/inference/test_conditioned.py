"""Conditioning on linear observations against dense algebra in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from scripts.gaussian.errors import OutOfMemoryError, ShapeError
from scripts.inference import conditioned as conditioning
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.errors import ObservationError
from scripts.inference.observations import Observations
from scripts.registration.spline import evaluate
from tests.gaussian.conftest import VARIANTS, random_gaussian
from tests.gaussian.dense import DenseGaussian, unvec, vec

GRID = (3, 4, 5)
STD = (0.3, 0.05, 1.0, 2.0, 0.3)


def observations(count: int = 5, std: tuple[float, ...] = STD, seed: int = 5) -> Observations:
    """Places inside, at and beyond the grid's ends; the first two coincide."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(count, 3, generator=generator, dtype=torch.float64) * (torch.tensor(GRID) + 1.0) - 1.0
    places[1] = places[0]
    directions = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    values = 3 * torch.randn(count, generator=generator, dtype=torch.float64)
    return Observations(places, directions, values, torch.tensor(std[:count], dtype=torch.float64))


def dense_rows(seen: Observations, grid=GRID) -> Tensor:
    """H, (m, 3V): the spline of every unit field, evaluated on a grid of one point."""
    size = 3 * math.prod(grid)
    units = unvec(torch.eye(size, dtype=torch.float64), grid)
    rows = []
    for place, direction in zip(seen.places, seen.directions, strict=True):
        value = evaluate(units, [coordinate[None] for coordinate in place])[:, :, 0, 0, 0]  # (3V, 3)
        rows.append(value @ direction)
    return torch.stack(rows)


class DenseConditioned:
    """mean + ΣHᵀG⁻¹(y − Hμ) and Σ − ΣHᵀG⁻¹HΣ, G = HΣHᵀ + diag s², as in the textbooks."""

    def __init__(self, gaussian, seen: Observations) -> None:
        dense = DenseGaussian(
            gaussian.stencil, gaussian.mean[0], gaussian.stencil_parameters[0], gaussian.cov_factor[0]
        )
        h = dense_rows(seen, tuple(gaussian.mean.shape[-3:]))
        self.dense, self.h = dense, h
        self.g = h @ dense.covariance @ h.T + torch.diag(seen.std**2)
        gain = dense.covariance @ h.T @ torch.linalg.inv(self.g)
        self.mean = dense.mean + gain @ (seen.values - h @ dense.mean)
        self.covariance = dense.covariance - gain @ h @ dense.covariance
        self.evidence = MultivariateNormal(h @ dense.mean, self.g).log_prob(seen.values)

    def log_prob(self, fields: Tensor) -> Tensor:
        covariance = (self.covariance + self.covariance.T) / 2
        return MultivariateNormal(self.mean, covariance, validate_args=False).log_prob(vec(fields).T)


@pytest.fixture(params=VARIANTS)
def pair(request) -> tuple[ConditionedGaussian, DenseConditioned]:
    gaussian = random_gaussian(request.param, 1, GRID)
    return ConditionedGaussian(gaussian, observations()), DenseConditioned(gaussian, observations())


def close(got, wanted, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(wanted), rtol=tolerance, atol=tolerance)


def test_rows_and_application_are_the_spline():
    seen = observations()
    h = dense_rows(seen)
    close(vec(seen.rows(GRID, torch.zeros(0, dtype=torch.float64))).T, h)
    fields = torch.randn(4, 3, *GRID, dtype=torch.float64)
    close(seen.apply(fields), vec(fields).T @ h.T)


def test_mean_is_the_dense_one(pair):
    conditioned, dense = pair
    close(vec(conditioned.mean)[:, 0], dense.mean)


def test_the_noises_linear_map_has_the_dense_covariance(pair, monkeypatch):
    """Sampling is linear in the noise: with unit noise in every place, the columns' products are the covariance."""
    conditioned, dense = pair
    size, rank, seen = conditioned.dimensions, conditioned.rank, len(conditioned.observations)
    total = size + rank + seen
    unit = torch.eye(total, dtype=torch.float64)
    structured = unit[:, :size].reshape(total, 1, 3, *GRID)
    low_rank = unit[:, None, size : size + rank]
    base = type(conditioned).__mro__[1]
    monkeypatch.setattr(base, "noise", lambda *_, **__: conditioning.Noise(structured.clone(), low_rank.clone()))
    monkeypatch.setattr(conditioning, "standard_normal", lambda *_, **__: unit[:, size + rank :])
    columns = vec((conditioned.rsample(noise=conditioned.noise(total), overwrite=True) - conditioned.mean)[:, 0])
    close(columns @ columns.T, dense.covariance)


def test_densities_are_the_dense_ones(pair):
    conditioned, dense = pair
    fields = conditioned.mean + torch.randn(3, 1, 3, *GRID, dtype=torch.float64)
    close(conditioned.log_prob(fields)[:, 0], dense.log_prob(fields[:, 0]))
    close(conditioned.log_prob(fields[0]), dense.log_prob(fields[0]))
    noise = conditioned.noise(4, seed=3)
    sample = conditioned.rsample(noise=noise)
    close(conditioned.log_prob_from_noise(noise)[:, 0], dense.log_prob(sample[:, 0]))
    close(conditioned.log_det()[0], torch.linalg.slogdet(dense.covariance)[1])
    close(conditioned.entropy()[0], MultivariateNormal(dense.mean, dense.covariance, validate_args=False).entropy())


def test_the_evidence_is_the_dense_one(pair):
    conditioned, dense = pair
    close(conditioned.log_evidence(), float(dense.evidence))
    difference = conditioned.observations.values - dense.h @ dense.dense.mean
    close(conditioned.surprise(), float(difference @ torch.linalg.inv(dense.g) @ difference))


def test_bayes_rule_holds_for_every_sample(pair):
    """log q(z | y) = log q(z) + log N(y; Hz, s²) − log N(y; Hμ, HΣHᵀ + s²): what makes the landmarks' terms cancel."""
    conditioned, _ = pair
    noise = conditioned.noise(6, seed=1)
    z = conditioned.rsample(noise=noise)
    bayes = conditioned.proposal.log_prob(z) + conditioned.log_observations(noise) - conditioned.log_evidence()
    close(conditioned.log_prob(z), bayes)


def test_sample_moments_lie_within_their_standard_errors(pair):
    conditioned, dense = pair
    count = 4000
    z = vec(conditioned.sample(count, seed=11)[:, 0])
    variance = dense.covariance.diagonal()
    # 5 standard errors: one of 180 numbers exceeds them with a probability of 1e-4
    assert ((z.mean(1) - dense.mean).abs() < 5 * (variance / count).sqrt()).all()
    assert ((z.var(1) / variance - 1).abs() < 5 * math.sqrt(2 / (count - 1))).all()
    seen = dense.h @ z
    expected = dense.h @ dense.covariance @ dense.h.T
    error = ((expected.diagonal()[:, None] * expected.diagonal() + expected**2) / count).sqrt()
    assert ((torch.cov(seen) - expected).abs() < 5 * error).all()


def test_marginal_variance_is_the_dense_one_within_its_error(pair):
    conditioned, dense = pair
    variance, error = conditioned.marginal_variance(256)
    difference = (vec(variance)[:, 0] - dense.covariance.diagonal()).abs()
    assert (difference <= 5 * vec(error)[:, 0] + 1e-9).all()


def test_samples_do_not_depend_on_their_company(pair):
    conditioned, _ = pair
    many = conditioned.sample(8, seed=2)
    close(conditioned.sample(indices=[5, 2], seed=2), many[[5, 2]], 1e-12)


def test_single_precision_and_a_sharp_observation():
    """An error of a thousandth: the samples pass through the point, in float32 too."""
    gaussian = random_gaussian("LC", 1, (8, 9, 10), torch.float32)
    place = torch.tensor([[3.2, 4.1, 5.7]] * 3, dtype=torch.float64)
    values = torch.tensor([4.0, -3.0, 2.0], dtype=torch.float64)
    seen = Observations(place, torch.eye(3, dtype=torch.float64), values, torch.full((3,), 1e-3, dtype=torch.float64))
    conditioned = ConditionedGaussian(gaussian, seen)
    at_place = seen.apply(conditioned.sample(20, seed=0)[:, 0])
    assert (at_place - values).abs().max() < 6e-3
    assert (seen.apply(gaussian.sample(20, seed=0)[:, 0]) - values).abs().min(1).values.max() > 0.5


def test_vague_observations_change_nothing():
    gaussian = random_gaussian("LC", 1, GRID)
    conditioned = ConditionedGaussian(gaussian, observations(std=(1e9,) * 5))
    close(conditioned.sample(3, seed=4), gaussian.sample(3, seed=4), 1e-7)


def test_joined_observations_are_all_of_them():
    seen = observations()
    parts = [
        Observations(seen.places[part], seen.directions[part], seen.values[part], seen.std[part])
        for part in (slice(0, 2), slice(2, 5))
    ]
    close(Observations.join(parts).values, seen.values)
    close(Observations.join(parts).places, seen.places)


def test_what_is_no_observation_is_named():
    seen = observations()
    with pytest.raises(ObservationError, match="positive"):
        Observations(seen.places, seen.directions, seen.values, 0 * seen.std)
    with pytest.raises(ObservationError, match="finite"):
        Observations(seen.places, seen.directions, seen.values * math.nan, seen.std)
    with pytest.raises(ObservationError, match="shape"):
        Observations(seen.places[:2], seen.directions, seen.values, seen.std)
    with pytest.raises(ObservationError, match="at least one"):
        Observations(seen.places[:0], seen.directions[:0], seen.values[:0], seen.std[:0])


def test_a_batch_and_too_little_memory_are_named(monkeypatch):
    with pytest.raises(ShapeError, match="one pair"):
        ConditionedGaussian(random_gaussian("LC", 2, GRID), observations())
    monkeypatch.setattr(conditioning, "free_bytes", lambda _: 100)
    with pytest.raises(OutOfMemoryError, match="conditioning on 5 numbers"):
        ConditionedGaussian(random_gaussian("LC", 1, GRID), observations())
