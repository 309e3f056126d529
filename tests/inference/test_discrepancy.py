"""The local error of a proposal that observations call for."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.distributions import MultivariateNormal

from scripts.gaussian import StructuredGaussian
from scripts.gaussian.cholesky import StencilCholesky
from scripts.inference.conditioned import ConditionedGaussian
from scripts.inference.discrepancy import condition, likeliest
from scripts.inference.observations import Observations
from tests.gaussian.conftest import random_gaussian

GRID = (12, 10, 14)
PLACES = torch.tensor([[3.0, 4, 5], [5, 4, 5], [4, 6, 6]], dtype=torch.float64)


def observations(values, std=0.5) -> Observations:
    """All three components at three places."""
    return Observations(
        PLACES.repeat_interleave(3, 0),
        torch.eye(3, dtype=torch.float64).repeat(3, 1),
        torch.as_tensor(values, dtype=torch.float64).reshape(9),
        torch.full((9,), std, dtype=torch.float64),
    )


def gaussian() -> StructuredGaussian:
    return random_gaussian("LC", 1, GRID)


def off(shift: float) -> Observations:
    """What the proposal's mean says, and so many voxels more in the first component."""
    expected = observations(torch.zeros(9)).apply(gaussian().mean)[0].reshape(3, 3)
    return observations(expected + torch.tensor([shift, 0, 0]))


def test_no_discrepancy_where_the_proposal_has_room():
    given, _, found = condition(gaussian(), off(0.1), [2.0, 3.0])
    assert found is None
    plain = ConditionedGaussian(gaussian(), off(0.1))
    torch.testing.assert_close(given.mean, plain.mean)
    assert condition(gaussian(), off(30.0)).discrepancy is None  # not asked for


def test_a_large_error_is_taken_up_near_the_marks_and_not_far_away():
    seen = off(10.0)
    given, plain, found = condition(gaussian(), seen, [2.0, 3.0])
    assert found is not None
    errors = [float((seen.values - seen.apply(part.mean)[0]).abs().max()) for part in (plain, given)]
    assert errors[0] > 3
    assert errors[1] < 1
    far = (found.shift[0, -1].abs().max() / found.shift[0].abs().max()).item()
    assert far < 0.14  # at least 6 field voxels from every mark, and e⁻² = 0.135
    torch.testing.assert_close(given.proposal.mean[0], gaussian().mean[0] + found.shift)


def test_rows_are_solved_once_and_nothing_else_changes(monkeypatch):
    solved = []
    solve = StencilCholesky.solve

    def counted(self, x, *args, **options):
        if not options.get("transpose"):
            solved.append(len(x))
        return solve(self, x, *args, **options)

    monkeypatch.setattr(StencilCholesky, "solve", counted)
    proposal, seen = gaussian(), off(10.0)
    given, plain, found = condition(proposal, seen, [2.0, 3.0])
    moved = given.around(proposal.mean + 1, off(4.0))  # the same places seen again, with other values
    assert found is not None
    assert solved == [9]
    elsewhere = replace(seen, places=seen.places + 1)
    given.around(proposal.mean, elsewhere)
    assert solved == [9, 9]
    for part in (given, plain, moved):
        shifted = StructuredGaussian(part.proposal.mean, proposal.stencil_parameters, proposal.cov_factor)
        alone = ConditionedGaussian(shifted, part.observations)
        assert torch.equal(part.mean, alone.mean)
        assert part.log_evidence() == alone.log_evidence()
        assert torch.equal(part.sample(3, seed=1), alone.sample(3, seed=1))


def test_amplitude_and_length_have_the_highest_evidence():
    seen, lengths = off(6.0), [2.0, 3.0, 4.5]
    plain = ConditionedGaussian(gaussian(), seen)
    found = likeliest(plain, lengths)
    surprise, spread = plain.surprise_and_spread()
    distance = torch.cdist(seen.places, seen.places)
    along = (seen.directions @ seen.directions.T) / 0.5**2

    def evidence(amplitude: float, length: float) -> float:
        covariance = spread + amplitude**2 * torch.exp(-0.5 * (distance / length) ** 2) * along
        return float(MultivariateNormal(torch.zeros_like(surprise), covariance).log_prob(surprise))

    best = evidence(found.amplitude, found.length)
    assert best > evidence(0.0, 2.0)
    for amplitude in (0.7 * found.amplitude, 1.4 * found.amplitude):
        for length in lengths:
            assert evidence(amplitude, length) < best


def test_the_shift_is_the_expected_discrepancy():
    """b̂ at the marks by dense algebra: κ²K C⁻¹(y − Hμ)."""
    seen = off(6.0)
    plain = ConditionedGaussian(gaussian(), seen)
    found = likeliest(plain, [3.0])
    difference = seen.values - seen.apply(gaussian().mean)[0]
    _, spread = plain.surprise_and_spread()
    kernel = torch.exp(-0.5 * (torch.cdist(seen.places, seen.places) / 3.0) ** 2) * (
        seen.directions @ seen.directions.T
    )
    covariance = spread * 0.5**2 + found.amplitude**2 * kernel
    expected = found.amplitude**2 * kernel @ torch.linalg.solve(covariance, difference)
    at_marks = torch.stack([found.shift[c, x, y, z] for x, y, z in PLACES.long().tolist() for c in range(3)])
    torch.testing.assert_close(at_marks, expected, rtol=1e-9, atol=1e-9)
