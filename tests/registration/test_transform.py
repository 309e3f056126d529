from __future__ import annotations

import pytest
import torch
from scipy.linalg import expm

from scripts.posterior.folds import fold_percentage
from scripts.registration.errors import OptionError, ShapeError
from scripts.registration.spline import upsample
from scripts.registration.transform import DisplacementTransform, VelocityTransform
from scripts.registration.warp import warp
from tests.registration.conftest import noise, smooth

TRANSFORMS = [DisplacementTransform(), VelocityTransform()]


@pytest.mark.parametrize("transform", TRANSFORMS)
class TestBoth:
    def test_a_zero_field_is_the_identity_exactly(self, transform, device):
        ddf = transform(torch.zeros(2, 3, 4, 5, 6, device=device))
        assert ddf.shape == (2, 3, 8, 10, 12)
        assert not ddf.any()

    def test_a_constant_field_is_a_shift_in_image_voxels(self, transform, device):
        ddf = transform(torch.full((1, 3, 4, 5, 6), 1.5, device=device))
        torch.testing.assert_close(ddf, torch.full_like(ddf, 1.5))

    def test_small_fields_are_displacements(self, transform, device):
        z = 1e-4 * smooth(1, 3, 6, 7, 8).to(device)
        torch.testing.assert_close(transform(z), upsample(z), rtol=0, atol=1e-7)

    def test_a_batch_equals_the_loop_over_it(self, transform, device):
        z = smooth(3, 3, 4, 5, 6).to(device)
        torch.testing.assert_close(transform(z), torch.cat([transform(one[None]) for one in z]))

    def test_image_grids_that_are_no_multiple(self, transform):
        assert transform(torch.zeros(1, 3, 4, 5, 6), (7, 10, 11)).shape == (1, 3, 7, 10, 11)

    def test_precision_may_change_between_calls(self, transform):
        for dtype in (torch.float64, torch.float32):
            assert transform(smooth(1, 3, 4, 5, 6, dtype=dtype)).dtype == dtype

    def test_training_after_inference_mode(self, transform):
        with torch.inference_mode():
            transform(torch.zeros(1, 3, 3, 5, 4))
        z = torch.zeros(1, 3, 3, 5, 4, requires_grad=True)
        transform(z).sum().backward()
        assert torch.isfinite(z.grad).all()

    def test_refuses_other_shapes(self, transform):
        with pytest.raises(ShapeError, match=r"expected z of shape \[B, 3, X, Y, Z\]"):
            transform(torch.zeros(1, 2, 4, 4, 4))


class TestVelocity:
    def test_a_linear_velocity_flows_as_the_matrix_exponential(self):
        # dx/dt = A (x − c) has the flow x(1) = c + e^A (x − c)
        matrix = torch.tensor([[0.1, -0.2, 0.0], [0.2, 0.05, 0.0], [0.0, 0.1, -0.1]], dtype=torch.float64)
        size = 12
        axis = 2 * torch.arange(size, dtype=torch.float64) + 0.5 - (2 * size - 1) / 2  # image voxels from the center
        z = torch.einsum("ij,jxyz->ixyz", matrix, torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij")))
        ddf = VelocityTransform(steps=10)(z[None])
        axis = torch.arange(2 * size, dtype=torch.float64) - (2 * size - 1) / 2
        where = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"))
        flow = torch.from_numpy(expm(matrix.numpy())) - torch.eye(3, dtype=torch.float64)
        expected = torch.einsum("ij,jxyz->ixyz", flow, where)[None]
        inside = (..., slice(9, -9), slice(9, -9), slice(9, -9))
        torch.testing.assert_close(ddf[inside], expected[inside], rtol=0, atol=5e-3)

    def test_folds_vanish(self):
        z = 2 * smooth(1, 3, 20, 22, 24)
        assert float(fold_percentage(DisplacementTransform()(z))) > 1
        assert float(fold_percentage(VelocityTransform()(z))) == 0

    def test_the_inverse_undoes_it(self):
        z = 2 * smooth(1, 3, 20, 22, 24, passes=12)
        transform = VelocityTransform()
        forward, backward = transform(z), transform(-z)
        # φ⁻¹(φ(x)) = x + u(x) + v(x + u(x))
        left_over = (forward + warp(backward, forward))[..., 6:-6, 6:-6, 6:-6].norm(dim=1)
        assert float(forward.norm(dim=1).mean()) > 2
        assert float(left_over.mean()) < 0.05

    def test_gradient(self):
        z = 0.3 * noise(1, 3, 2, 3, 2)
        z.requires_grad_()
        assert torch.autograd.gradcheck(VelocityTransform(steps=2), z)


def test_refuses_what_cannot_be_integrated():
    with pytest.raises(OptionError, match="steps"):
        VelocityTransform(steps=0)
