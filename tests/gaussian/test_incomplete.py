"""The incomplete factor of a precision against its definition, dense algebra and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from scripts.gaussian import Stencil, StructuredGaussian, incomplete
from scripts.gaussian.errors import NotPositiveDefiniteError, ShapeError
from scripts.gaussian.incomplete import incomplete_cholesky
from scripts.gaussian.stencil import PRECEDING

FACES = [PRECEDING.index(offset) for offset in ((-1, 0, 0), (0, -1, 0), (0, 0, -1))]


def laplacian(stiffness: float) -> torch.Tensor:
    couplings = torch.zeros(13)
    couplings[FACES] = -stiffness
    return couplings


def blocks(shape, seed=0, ridge=0.1, stiffness=1.0):
    """P_vv of a random positive semidefinite W, a Laplacian and a ridge, [X, Y, Z, 3, 3]."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(*shape, 3, 3))
    own = root @ np.swapaxes(root, -1, -2) + ridge * np.eye(3)
    for axis in range(3):
        degree = np.full(shape[axis], 2.0) - (np.arange(shape[axis]) == 0) - (np.arange(shape[axis]) == shape[axis] - 1)
        sides = [1, 1, 1]
        sides[axis] = -1
        own += stiffness * degree.reshape(sides)[..., None, None] * np.eye(3)
    return torch.from_numpy(own)


def dense(own, couplings):
    """P as a matrix, dimensions by voxel with channels innermost."""
    shape = own.shape[:3]
    number = np.arange(np.prod(shape)).reshape(shape)
    out = np.zeros((3 * number.size, 3 * number.size))
    for voxel in np.ndindex(*shape):
        v = 3 * number[voxel]
        out[v : v + 3, v : v + 3] = own[voxel].numpy()
        for offset, value in zip(PRECEDING, couplings.tolist(), strict=True):
            other = tuple(np.add(voxel, offset))
            if value and min(other) >= 0 and all(np.less(other, shape)):
                u = 3 * number[other]
                out[v : v + 3, u : u + 3] = out[u : u + 3, v : v + 3] = value * np.eye(3)
    return out


def factor_matrix(entries):
    """L as a matrix, from the stencil's table."""
    shape = entries.shape[1:]
    number = np.arange(np.prod(shape)).reshape(shape)
    out = np.zeros((3 * number.size, 3 * number.size))
    for channel, (offset, row, column) in enumerate(Stencil("full").table):
        for voxel in np.ndindex(*shape):
            other = tuple(np.add(voxel, offset))
            if min(other) >= 0 and all(np.less(other, shape)):
                out[3 * number[voxel] + row, 3 * number[other] + column] = entries[(channel, *voxel)]
    return out


@pytest.fixture(params=["numba", "torch"])
def backend(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(incomplete, "compiled", lambda name: None)
    return request.param


def test_it_is_the_exact_factor_where_all_voxels_are_neighbors(backend):
    own, couplings = blocks((2, 2, 2)), laplacian(1.0)
    expected = np.linalg.cholesky(dense(own, couplings))
    np.testing.assert_allclose(factor_matrix(incomplete_cholesky(own, couplings)), expected, atol=2e-6)


def test_the_product_is_the_precision_wherever_the_pattern_has_entries(backend):
    shape = (4, 3, 5)
    own, couplings = blocks(shape, seed=3), laplacian(0.7)
    factor = factor_matrix(incomplete_cholesky(own, couplings))
    product, given = factor @ factor.T, dense(own, couplings)
    pattern = (dense(torch.ones(*shape, 3, 3), torch.ones(13)) + np.kron(np.eye(60), np.ones((3, 3)))) != 0
    neighbors = np.kron(pattern[::3, ::3], np.ones((3, 3))) != 0
    np.testing.assert_allclose(product[neighbors], given[neighbors], atol=1e-5)
    assert np.abs(product - given)[~neighbors].max() > 1e-3  # what was dropped


def test_without_couplings_each_voxel_has_its_own_factor(backend):
    own = blocks((3, 4, 2), seed=1)
    entries = incomplete_cholesky(own, torch.zeros(13))
    expected = torch.linalg.cholesky(own)
    torch.testing.assert_close(entries[:3].permute(1, 2, 3, 0), expected.diagonal(dim1=-2, dim2=-1).float())
    assert not entries[6:].any()


def test_variances_are_nearly_those_of_the_precision():
    shape = (6, 7, 5)
    own, couplings = blocks(shape, seed=2, ridge=0.3), laplacian(1.0)
    entries = incomplete_cholesky(own, couplings)[None]
    samples = StructuredGaussian(torch.zeros(1, 3, *shape), entries).sample(4000, seed=1)[:, 0]
    exact = np.diag(np.linalg.inv(dense(own, couplings))).reshape(*shape, 3)
    ratio = samples.var(0).permute(1, 2, 3, 0).numpy() / exact
    assert abs(ratio.mean() - 1) < 0.03
    assert ratio.std() < 0.06  # of which sampling alone has √(2/4000) = 0.022


def test_what_is_not_positive_definite_is_refused_with_counts(backend):
    own = blocks((3, 3, 3))
    own[1, 2, 0] = -torch.eye(3, dtype=torch.float64)
    with pytest.raises(NotPositiveDefiniteError, match=r"of 27 voxels, first at \(1, 2, 0\)"):
        incomplete_cholesky(own, laplacian(1.0))


def test_other_shapes_are_refused():
    with pytest.raises(ShapeError, match="own"):
        incomplete_cholesky(torch.ones(2, 2, 2, 3), torch.zeros(13))
