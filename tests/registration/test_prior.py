from __future__ import annotations

import pytest
import torch

from scripts.posterior.folds import jacobian_determinant
from scripts.registration.errors import OptionError, ShapeError
from scripts.registration.prior import (
    DiffusionPrior,
    FoldPrior,
    deformation_gradient,
    diffusion_energy,
)
from tests.registration.conftest import noise, smooth

PRIORS = [DiffusionPrior(2.0), FoldPrior(2.0, smallest=0.9)]


def field(formula, grid=(5, 4, 3), dtype=torch.float64):
    """A field from u(x, y, z), the other components zero."""
    axes = torch.meshgrid(*(torch.arange(n, dtype=dtype) for n in grid), indexing="ij")
    out = torch.zeros(3, *grid, dtype=dtype)
    out[0] = formula(*axes)
    return out


@pytest.mark.parametrize("prior", PRIORS)
def test_a_constant_field_costs_nothing(prior, device):
    assert float(prior(torch.full((3, 4, 5, 6), 3.25, device=device))) == 0


class TestDiffusion:
    def test_linear_ramp(self):
        # slope 2 along x: 4 · 4 · 3 pairs of 2² / 2
        assert float(diffusion_energy(field(lambda x, y, z: 2 * x))) == pytest.approx(0.5 * 4 * (4 * 4 * 3))

    def test_quadratic(self):
        # x² has differences 1, 3, 5, 7 on 4 · 3 lines
        assert float(diffusion_energy(field(lambda x, y, z: x**2))) == pytest.approx(0.5 * (1 + 9 + 25 + 49) * 12)

    def test_conditional_precision_is_six_inside(self):
        # ½ Σ over six neighbors (z_i − z_j)² = ½ · 6 · z_i² around a field of zeros
        z = torch.zeros(3, 3, 3, 3)
        z[1, 1, 1, 1] = 1
        assert float(diffusion_energy(z)) == pytest.approx(6 / 2)

    def test_leading_dimensions_and_precision(self, device):
        z = noise(4, 2, 3, 5, 6, 7).to(device)
        expected = sum(0.5 * z.diff(dim=a).square().sum(dim=(-4, -3, -2, -1)) for a in (-3, -2, -1))
        torch.testing.assert_close(diffusion_energy(z), expected)
        single = diffusion_energy(z.float())
        assert single.shape == (4, 2)
        assert single.dtype == torch.float64
        torch.testing.assert_close(single, expected, rtol=1e-6, atol=0)

    def test_weight(self):
        z = noise(2, 3, 4, 4, 4)
        torch.testing.assert_close(DiffusionPrior(2.5)(z), -2.5 * diffusion_energy(z))

    @pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1, 5), (7, 6, 33)])
    def test_float32_on_the_cpu_equals_float64(self, shape):
        z = noise(2, 4, 3, *shape).float()
        energy = diffusion_energy(z)
        assert (energy.dtype, energy.shape) == (torch.float64, (2, 4))
        torch.testing.assert_close(energy, diffusion_energy(z.double()), rtol=1e-6, atol=0)
        together = diffusion_energy(z.flatten(0, 1)).reshape(2, 4)
        assert torch.equal(together, energy)
        z.requires_grad_()
        diffusion_energy(z).sum().backward()
        exact = z.detach().double().requires_grad_()
        diffusion_energy(exact).sum().backward()
        torch.testing.assert_close(z.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)


class TestFoldPrice:
    def test_by_hand(self):
        # u = s x image voxels per field voxel of 2: det = 1 + s / 2
        cells = 4 * 3 * 2
        for slope, price in ((1.0, 0), (-1.8, 0), (-2.0, 0.05**2), (-3.0, 0.55**2)):
            assert float(-FoldPrior(1.0)(field(lambda x, y, z, s=slope: s * x))) == pytest.approx(cells * price)
        assert float(FoldPrior(3.0)(field(lambda x, y, z: -3 * x))) == pytest.approx(-3 * cells * 0.55**2)

    def test_determinants_are_those_of_the_fold_count(self):
        # The mean of the eight cells around a voxel approximates the central difference there, in a smooth field.
        z = 0.5 * smooth(1, 3, 12, 12, 12, dtype=torch.float64, passes=8)
        cells = torch.linalg.det(deformation_gradient(z, 1).movedim((-5, -4), (-2, -1)))
        around = torch.nn.functional.avg_pool3d(cells, 2, 1)
        torch.testing.assert_close(around, jacobian_determinant(z)[:, 1:-1, 1:-1, 1:-1], rtol=0, atol=0.2)

    def test_it_counts_the_determinants_of_the_cells(self):
        z = noise(2, 3, 5, 4, 6, seed=3)
        determinant = torch.linalg.det(deformation_gradient(z).movedim((-5, -4), (-2, -1)))
        expected = (0.7 - determinant).clamp_min(0).square().sum((-3, -2, -1))
        torch.testing.assert_close(FoldPrior(2.0, smallest=0.7)(z), -2 * expected)


@pytest.mark.parametrize("prior", PRIORS)
def test_gradient(prior):
    z = noise(2, 3, 3, 4, 3, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(prior, z)


@pytest.mark.parametrize("prior", PRIORS)
def test_grids_of_one_voxel_along_an_axis(prior):
    z = noise(3, 1, 4, 4).requires_grad_()
    prior(z).backward()
    assert torch.isfinite(z.grad).all()


def test_refuses_what_does_not_fit():
    with pytest.raises(ShapeError, match=r"expected z of shape \[\*, 3, X, Y, Z\]"):
        diffusion_energy(torch.zeros(2, 4, 4, 4))
    with pytest.raises(OptionError, match="expected weight to be finite and not negative, got -1"):
        DiffusionPrior(-1)
