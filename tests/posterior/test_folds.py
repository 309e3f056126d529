"""Jacobian determinants against linear maps, NumPy and SimpleITK."""

import numpy as np
import pytest
import SimpleITK as sitk  # noqa: N813
import torch

from scripts.posterior.folds import fold_percentage, jacobian_determinant


def linear_field(matrix, shape):
    """u(x) = (A − I) x, so that x + u(x) = A x; shape [1, 3, X, Y, Z]."""
    grid = torch.stack(torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij"))
    return torch.einsum("ij,jxyz->ixyz", matrix - torch.eye(3, dtype=torch.float64), grid)[None]


def random_field(*shape, scale=0.4):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_zero_field_changes_no_volume():
    assert torch.equal(jacobian_determinant(torch.zeros(2, 3, 4, 5, 6)), torch.ones(2, 4, 5, 6))
    assert fold_percentage(torch.zeros(2, 3, 4, 5, 6)).tolist() == [0.0, 0.0]


def test_a_linear_map_has_its_determinant_everywhere():
    matrix = torch.tensor([[1.2, 0.3, -0.1], [0.0, 0.9, 0.4], [0.2, -0.5, 1.1]], dtype=torch.float64)
    det = jacobian_determinant(linear_field(matrix, (5, 17, 7)))  # exact at the border, too: differences are exact
    # 1.2 (0.9·1.1 + 0.4·0.5) − 0.3 (0·1.1 − 0.4·0.2) + (−0.1)(0·(−0.5) − 0.9·0.2) = 1.428 + 0.024 + 0.018 = 1.47
    torch.testing.assert_close(det, torch.full_like(det, 1.47), rtol=1e-12, atol=0)


def test_a_mirrored_axis_folds_everywhere_and_a_collapsed_one_counts_as_folded():
    mirrored = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64))
    collapsed = torch.diag(torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64))
    assert fold_percentage(linear_field(mirrored, (4, 5, 6))).tolist() == [100.0]
    assert fold_percentage(linear_field(collapsed, (4, 5, 6))).tolist() == [100.0]  # det = 0


def test_hand_counted_folds():
    # Along x of 10 voxels, u_x is −3 at x = 5 and 0 elsewhere. Central differences: −1.5 at x = 4 and +1.5 at x = 6,
    # so det = 1 − 1.5 < 0 at x = 4 only: one layer of ten.
    ddf = torch.zeros(1, 3, 10, 4, 4)
    ddf[:, 0, 5] = -3
    assert fold_percentage(ddf).tolist() == [10.0]


def test_agrees_with_numpy_gradients():
    ddf = random_field(2, 3, 11, 6, 7)
    expected = []
    for field in ddf.numpy():
        jacobian = np.stack([np.stack(np.gradient(component)) for component in field])  # [i, j, X, Y, Z]
        expected.append(np.linalg.det(np.moveaxis(jacobian, (0, 1), (-2, -1)) + np.eye(3)))
    det = jacobian_determinant(ddf)
    torch.testing.assert_close(det, torch.from_numpy(np.stack(expected)), rtol=1e-9, atol=1e-9)
    assert fold_percentage(ddf).tolist() == [100 * float((np.stack(expected)[b] <= 0).mean()) for b in range(2)]


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (2.0, 0.8, 1.5)])
def test_agrees_with_simpleitk_in_the_interior_whatever_the_spacing(spacing):
    ddf = random_field(1, 3, 8, 9, 10)
    # SimpleITK's arrays are [Z, Y, X, component] and its vectors in mm.
    image = sitk.GetImageFromArray((ddf[0] * torch.tensor(spacing).view(3, 1, 1, 1)).permute(3, 2, 1, 0).numpy(), True)
    image.SetSpacing(spacing)
    expected = torch.from_numpy(sitk.GetArrayFromImage(sitk.DisplacementFieldJacobianDeterminant(image)))
    inside = (slice(1, -1),) * 3  # on the border SimpleITK repeats the edge, which halves the difference
    torch.testing.assert_close(
        jacobian_determinant(ddf)[0][inside], expected.permute(2, 1, 0)[inside].double(), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("size", [2, 3, 8, 9, 16, 17])
def test_slabs_leave_no_seams(size):
    ddf = random_field(1, 3, size, 4, 5)
    other = ddf.permute(0, 1, 3, 2, 4)[:, [1, 0, 2]]  # the same field with x and y exchanged: other slabs
    torch.testing.assert_close(jacobian_determinant(ddf), jacobian_determinant(other).transpose(1, 2))


def test_a_field_with_nan_is_refused_with_counts():
    ddf = torch.zeros(1, 3, 4, 4, 4)
    ddf[0, 0, 1, 1, 1:3] = torch.nan
    with pytest.raises(ValueError, match="expected finite displacements, got 2 values"):
        fold_percentage(ddf)


def test_huge_but_finite_displacements_are_accepted():
    assert fold_percentage(torch.full((1, 3, 4, 4, 4), 3e38)).tolist() == [0.0]  # their sum overflows, they don't


@pytest.mark.parametrize("shape", [(3, 4, 4, 4), (1, 2, 4, 4, 4), (1, 3, 4, 4, 1)])
def test_wrong_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected a displacement field of shape \[B, 3, X, Y, Z\]"):
        jacobian_determinant(torch.zeros(shape))


def test_integer_fields_are_refused():
    with pytest.raises(ValueError, match=r"floating-point displacements, got torch\.int64"):
        jacobian_determinant(torch.zeros(1, 3, 4, 4, 4, dtype=torch.int64))
