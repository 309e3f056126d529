"""Detail beyond the model's resolution: splines on two grids, and what the steps find."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import map_coordinates

from scripts.inference.detail import detail_target, find_detail
from scripts.posterior.folds import fold_percentage
from scripts.registration.local_correlation import NCCLikelihood, local_ncc
from scripts.registration.prior import DiffusionPrior, FoldPrior
from scripts.registration.spline import on_work_grid, upsample
from scripts.registration.target import Target
from scripts.registration.transform import VelocityTransform
from scripts.registration.warp import warp
from tests.registration.conftest import brain_like

WORK = (24, 16, 20)
TARGET = Target(NCCLikelihood(5), DiffusionPrior(1.0))


def noise(*shape, seed=0, size=1.0):
    return size * torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed))


def spline_at(points, where):
    return np.stack([map_coordinates(part, where, order=3, prefilter=False, mode="nearest") for part in points.numpy()])


def test_a_spline_of_the_field_grid_becomes_one_of_the_work_grid():
    coarse = noise(*(size // 2 for size in WORK)).double()
    fine = on_work_grid(coarse, 2, WORK)
    assert fine.shape == (3, *WORK)
    # The same at the work grid's voxels; between them, nearly so.
    inside = np.indices(WORK)[:, 4:-4, 4:-4, 4:-4].reshape(3, -1)
    for shift, tolerance in ((0.0, 1e-6), (0.37, 0.04)):
        where = inside + shift
        expected = spline_at(coarse, (where + 0.5) / 2 - 0.5)
        assert np.abs(spline_at(fine, where) - expected).max() < tolerance * np.abs(expected).max()


@pytest.fixture(scope="module")
def pair():
    """Images of twice the work grid's resolution; the moving one is warped back by a field with detail in it."""
    shape = tuple(2 * size for size in WORK)
    moving = brain_like(*shape)
    ddf = upsample(noise(*WORK, size=0.9)[None], 2, shape)
    return warp(moving, ddf), moving


def total(coarse, detail):
    """The whole displacement on the images' grid, in their voxels."""
    shape = tuple(2 * size for size in WORK)
    return upsample(2 * (on_work_grid(coarse, 2, WORK) + detail)[None], 2, shape)


def test_the_steps_find_detail_without_folds(pair):
    fixed, moving = pair
    coarse = torch.zeros(3, *(size // 2 for size in WORK))
    done = []
    found = find_detail(coarse, fixed, moving, 12, target=TARGET, progress=done.append)
    assert done == list(range(1, 13))
    assert found.gain > 0
    assert found.control_points.shape == (3, *WORK)
    ddf = total(coarse, found.control_points)
    before, after = (float(local_ncc(fixed, image, 9).mean()) for image in (moving, warp(moving, ddf)))
    assert 1 - after < 0.7 * (1 - before)
    assert float(fold_percentage(ddf)[0]) == 0


def test_the_gain_is_that_of_the_log_posterior(pair):
    fixed, moving = pair
    coarse = noise(*(size // 2 for size in WORK), size=0.2)
    found = find_detail(coarse, fixed, moving, 5, target=TARGET)
    target = detail_target(TARGET)
    prepared = target.prepare(moving, fixed)[0]
    start = 2 * on_work_grid(coarse, 2, WORK)[None]
    end = start + 2 * found.control_points[None]
    gain = float(target(prepared, end)[0] - target(prepared, start)[0])
    assert found.gain == pytest.approx(gain, rel=1e-3)


def test_where_the_mask_is_empty_nothing_is_found(pair):
    fixed, moving = pair
    coarse = torch.zeros(3, *(size // 2 for size in WORK))
    found = find_detail(coarse, fixed, moving, 3, target=TARGET, mask=torch.zeros_like(fixed))
    assert not found.control_points.any()
    assert found.gain == 0


def test_the_posterior_at_the_images_resolution_is_the_models_own():
    target = detail_target(Target(NCCLikelihood(5, 0.7), FoldPrior(2.0), None, VelocityTransform()))
    assert target.likelihood.settings() == NCCLikelihood(9, 0.7).settings()
    assert target.prior.settings() == FoldPrior(2.0).settings()
    assert target.transform.settings() == {"kind": "displacement", "factor": 2}
