"""Means of several sets of samples against the evaluation's moments of each set alone."""

import pytest
import torch

from scripts.evaluation.mean_fields import MeanFields
from scripts.posterior.field_moments import FieldMoments
from scripts.registration.transform import DisplacementTransform, VelocityTransform

TRANSFORMS = [DisplacementTransform(), VelocityTransform(), VelocityTransform(grid="image")]


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_means_are_those_of_the_displacements(transform):
    fields = torch.randn(4, 3, 5, 6, 4, generator=torch.Generator().manual_seed(0))
    shape, counts = (10, 11, 8), torch.tensor([[1, 2, 3, 4], [0, 5, 0, 1]])
    means = MeanFields(transform, shape, counts)
    for position, field in enumerate(fields.split(1)):
        assert torch.equal(means.add(position, field), transform(field, shape))
    for mean, row in zip(means, counts.tolist(), strict=True):
        moments = FieldMoments()
        for field, count in zip(fields.split(1), row, strict=True):
            if count:
                moments.add(transform(field, shape), count)
        torch.testing.assert_close(mean, moments.mean, rtol=0, atol=1e-6)


def test_no_samples_have_no_mean():
    with pytest.raises(ValueError, match="at least one sample"):
        next(iter(MeanFields(DisplacementTransform(), (2, 2, 2), torch.ones(1, 1))))
