from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import BSpline
from scipy.ndimage import map_coordinates

from scripts.registration.errors import OptionError, ShapeError
from scripts.registration.spline import evaluate, on_work_grid, upsample
from tests.registration.conftest import noise


def scipy_axis(values, factor, size, axis):
    """One axis by SciPy's own B-spline: repeated controls, uniform knots, evaluated at the voxel centers."""
    margin = 4
    controls = np.pad(values, [(margin, margin) if a == axis else (0, 0) for a in range(values.ndim)], mode="edge")
    count = controls.shape[axis]
    # The cubic basis function that peaks at control j has the knots j - 2 ... j + 2.
    spline = BSpline(np.arange(-2, count + 2), np.moveaxis(controls, axis, 0), 3)
    return np.moveaxis(spline((np.arange(size) + 0.5) / factor - 0.5 + margin), 0, axis)


@pytest.mark.parametrize(
    ("grid", "factor", "shape"),
    [
        ((4, 5, 6), 2, None),
        ((1, 2, 3), 2, None),
        ((4, 5, 6), 3, None),
        ((4, 5, 6), 1, None),
        ((4, 5, 6), 2, (7, 10, 11)),
    ],
)
def test_agrees_with_scipy(grid, factor, shape, device):
    field = noise(2, 3, *grid)
    expected = field.numpy()
    for axis, size in enumerate(shape or [factor * n for n in grid]):
        expected = scipy_axis(expected, factor, size, axis + 2)
    result = upsample(field.to(device), factor, shape).cpu()
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, atol=1e-12)
    np.testing.assert_allclose(upsample(field.float().to(device), factor, shape).cpu(), expected, atol=2e-6)


def test_a_constant_field_stays_constant(device):
    field = torch.full((1, 3, 5, 6, 7), 1.75, device=device)
    torch.testing.assert_close(upsample(field).cpu(), torch.full((1, 3, 10, 12, 14), 1.75), rtol=0, atol=1e-6)


def test_a_zero_field_stays_zero_exactly(device):
    assert not upsample(torch.zeros(1, 3, 5, 6, 7, device=device)).any()


def test_a_linear_field_stays_linear_inside(device):
    # Field voxel j has its center at image coordinate 2j + ½, so u(i) = i becomes itself.
    x = 2 * torch.arange(10, dtype=torch.float64) + 0.5
    field = x.reshape(1, 1, -1, 1, 1).expand(1, 1, 10, 4, 4)
    image = upsample(field.to(device)).cpu()[0, 0, :, 3, 3]
    torch.testing.assert_close(image[4:-4], torch.arange(20, dtype=torch.float64)[4:-4])


def test_second_derivatives_are_continuous():
    # Sampled h apart, a C² function's second difference changes by O(h) between neighbors; a jump would stay.
    field = noise(1, 1, 8, 1, 1)
    jumps = []
    for factor in (16, 32, 64):
        line = upsample(field, factor)[0, 0, :, 0, 0]
        jumps.append(float((line.diff(n=2) * factor**2).diff().abs().max()))
    assert jumps[1] == pytest.approx(jumps[0] / 2, rel=0.1)
    assert jumps[2] == pytest.approx(jumps[1] / 2, rel=0.1)


def test_gradient():
    field = noise(1, 2, 3, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: upsample(z, 2, (5, 4, 8)), field)


def test_a_batch_equals_the_loop_over_it(device):
    field = noise(3, 3, 4, 5, 6, dtype=torch.float32).to(device)
    torch.testing.assert_close(upsample(field), torch.cat([upsample(one[None]) for one in field]))


def test_training_after_inference_mode():
    with torch.inference_mode():
        upsample(torch.zeros(1, 1, 3, 3, 11))
    field = torch.zeros(1, 1, 3, 3, 11, requires_grad=True)
    upsample(field).sum().backward()
    torch.testing.assert_close(field.grad.sum(), torch.tensor(6.0 * 6 * 22))


def test_half_precision_is_not_used_under_autocast():
    field = noise(1, 3, 4, 4, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(upsample(field), upsample(field).float())


def test_refuses_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"expected field of shape \[B, C, X, Y, Z\], got \(3, 4, 4, 4\)"):
        upsample(torch.zeros(3, 4, 4, 4))
    with pytest.raises(ShapeError, match=r"image grid \(9, 8, 8\)"):
        upsample(torch.zeros(1, 3, 4, 4, 4), 2, (9, 8, 8))
    with pytest.raises(OptionError, match="factor"):
        upsample(torch.zeros(1, 3, 4, 4, 4), 0)


class TestEvaluate:
    """The same spline at other places."""

    def test_agrees_with_upsample_on_the_image_grid(self):
        field = torch.randn(2, 3, 4, 5, 6, dtype=torch.float64)
        positions = [(torch.arange(2 * n) + 0.5) / 2 - 0.5 for n in (4, 5, 6)]
        torch.testing.assert_close(evaluate(field, positions), upsample(field, 2))

    @pytest.mark.parametrize(("degree", "order"), [(3, 3), (1, 1)])
    def test_agrees_with_scipy_anywhere(self, degree, order):
        field = torch.randn(1, 1, 4, 5, 6, dtype=torch.float64)
        positions = [torch.linspace(-2.2, n + 1.7, 7, dtype=torch.float64) for n in (4, 5, 6)]
        at = np.stack(np.meshgrid(*(where.numpy() for where in positions), indexing="ij"))
        expected = map_coordinates(field[0, 0].numpy(), at, order=order, prefilter=False, mode="nearest")
        np.testing.assert_allclose(evaluate(field, positions, degree)[0, 0].numpy(), expected, atol=1e-12)


class TestOnWorkGrid:
    """The same values at every work voxel, those at the border among them."""

    @pytest.mark.parametrize(
        ("grid", "factor", "shape", "tolerance"),
        [
            ((6, 7, 8), 2, (12, 14, 16), 1e-11),
            ((6, 7, 8), 2, (12, 13, 15), 1e-11),
            ((5, 4, 6), 3, (15, 12, 16), 1e-11),
            # SciPy's filter starts its recursion at the border by an approximation that is poor for few voxels.
            ((6, 7, 8), 1, (6, 7, 8), 1e-6),
            ((1, 2, 3), 2, (1, 4, 5), 5e-5),
        ],
    )
    def test_takes_the_values_of_the_field(self, grid, factor, shape, tolerance):
        field = noise(3, *grid)
        points = on_work_grid(field, factor, shape)
        expected = upsample(field[None], factor, shape)
        torch.testing.assert_close(upsample(points[None], 1), expected, rtol=0, atol=tolerance)

    def test_keeps_the_precision_of_the_field(self):
        field = noise(3, 12, 13, 14, dtype=torch.float32)
        points = on_work_grid(field, 2, (24, 26, 28))
        assert points.dtype == torch.float32
        torch.testing.assert_close(upsample(points[None], 1), upsample(field[None], 2), rtol=0, atol=5e-6)
