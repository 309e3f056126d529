import math

import numpy as np
import pytest
import torch

from scripts.core.grid import Grid
from scripts.posterior.field_summary import FieldAccumulator
from scripts.registration.space import PairSpace

GRID = Grid((12, 10, 8), np.array([[0.0, -2, 0, 0], [2.0, 0, 0, 0], [0, 0, 3.0, 0], [0, 0, 0, 1]]))
SPACE = PairSpace(GRID, GRID, GRID)


def accumulate(fields, weights):
    accumulator = FieldAccumulator(SPACE)
    for field, weight in zip(fields, weights, strict=True):
        accumulator.add(field, weight)
    return accumulator.summary()


def test_moments_of_constant_fields_by_hand():
    """Two shifts along the first array axis, which is the second world axis here: 1 and 4 voxels of 2 mm, 3 to 1."""
    fields = [torch.zeros(3, 6, 5, 4) for _ in range(2)]
    fields[0][0], fields[1][0] = 1.0, 4.0
    summary = accumulate(fields, [3, 1])
    assert torch.allclose(summary.mean[0], torch.tensor(1.75))
    # mm: 2, 2, 2, 8 have the mean 3.5 and the unbiased variance (3·1.5² + 4.5²)/3 = 9
    torch.testing.assert_close(summary.std, torch.full(GRID.shape, 3.0))
    torch.testing.assert_close(summary.std_axes[1], torch.full(GRID.shape, 3.0))
    assert summary.std_axes[0].abs().max() == summary.std_axes[2].abs().max() == 0
    assert summary.log_jacobian.abs().max() < 1e-5
    assert summary.fold_percent == 0


def test_moments_agree_with_torch_for_random_fields():
    fields = torch.randn(5, 3, 6, 5, 4, generator=torch.Generator().manual_seed(0))
    summary = accumulate(fields, [1] * 5)
    dense = SPACE.displacement(fields)
    torch.testing.assert_close(SPACE.to_fixed(summary.std_axes[None])[0], dense.std(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(summary.mean, fields.mean(0))
    torch.testing.assert_close(summary.std, dense.var(0).sum(0).sqrt(), atol=1e-5, rtol=1e-4)


def test_a_stretch_has_its_jacobian_and_a_mirror_folds():
    places = 2 * torch.arange(6.0) + 0.5  # of the control points, in voxels
    stretch, mirror = torch.zeros(3, 6, 5, 4), torch.zeros(3, 6, 5, 4)
    stretch[0] = (0.25 * places)[:, None, None]
    mirror[0] = (-2 * places)[:, None, None]
    inner = (slice(4, -4), slice(None), slice(None))  # away from the ends, where the last control point is repeated
    summary = accumulate([stretch], [1])
    torch.testing.assert_close(summary.log_jacobian[inner], torch.full((4, 10, 8), math.log(1.25)), atol=1e-5, rtol=0)
    both = accumulate([stretch, mirror], [3, 1])
    torch.testing.assert_close(both.fold_probability[inner], torch.full((4, 10, 8), 0.25))
    assert both.fold_percent == pytest.approx(100 * float(both.fold_probability.mean()), rel=1e-5)


def test_no_field_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        FieldAccumulator(SPACE).summary()
