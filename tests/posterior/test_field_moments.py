"""Running moments against all fields at once."""

import pytest
import torch

from scripts.posterior.field_moments import FieldMoments


def test_counts_stand_for_repeated_fields():
    fields = torch.randn(5, 3, 4, 5, 6, generator=torch.Generator().manual_seed(0)) + 20.0
    counts = [3, 1, 4, 1, 2]
    moments = FieldMoments()
    for field, count in zip(fields, counts, strict=True):
        moments.add(field.clone(), count)
    repeated = fields.repeat_interleave(torch.tensor(counts), dim=0).double()
    assert moments.weight == 11
    torch.testing.assert_close(moments.mean.double(), repeated.mean(0), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(moments.variance.double(), repeated.var(0), rtol=1e-4, atol=1e-5)


def test_one_field_has_no_variance():
    moments = FieldMoments()
    moments.add(torch.full((3, 2, 2, 2), 1.5))
    assert (moments.mean == 1.5).all()
    assert (moments.variance == 0).all()


def test_small_spread_on_a_large_displacement_survives_float32():
    moments = FieldMoments()
    for value in (100.0, 100.25):
        moments.add(torch.full((3, 1, 1, 1), value))
    torch.testing.assert_close(moments.variance, torch.full((3, 1, 1, 1), 0.03125))


def test_refuses_what_it_cannot_add():
    moments = FieldMoments()
    with pytest.raises(ValueError, match="at least one field"):
        _ = moments.mean
    with pytest.raises(ValueError, match="positive weight"):
        moments.add(torch.zeros(3, 2, 2, 2), 0)
    moments.add(torch.zeros(3, 2, 2, 2))
    with pytest.raises(ValueError, match="shape"):
        moments.add(torch.zeros(3, 2, 2, 1))
