from __future__ import annotations

import math

import pytest
import torch

from scripts.gaussian import Stencil, StructuredGaussian, distribution
from scripts.gaussian.errors import GaussianError, NonFiniteError, OutOfMemoryError, ShapeError
from scripts.gaussian.noise import fold
from tests.gaussian.conftest import RTOL, VARIANTS, random_entries, random_gaussian
from tests.gaussian.dense import DenseGaussian, dense_cholesky, unvec, vec


def dense_elements(gaussian: StructuredGaussian) -> list[DenseGaussian]:
    return [
        DenseGaussian(
            gaussian.stencil,
            gaussian.mean[b].cpu().double(),
            gaussian.stencil_parameters[b].cpu().double(),
            gaussian.cov_factor[b].cpu().double(),
        )
        for b in range(gaussian.batch_shape[0])
    ]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("grid", [(3, 4, 5), (1, 5, 7), (3, 4, 9), (6, 6, 6)])
@pytest.mark.parametrize("variant", VARIANTS)
class TestAgainstDense:
    def test_log_prob(self, variant, grid, dtype, device):
        gaussian = random_gaussian(variant, 2, grid, dtype, device)
        value = torch.randn(4, 2, 3, *grid, dtype=torch.float64).to(device, dtype)
        result = gaussian.log_prob(value)
        assert result.dtype == torch.float64
        for b, dense in enumerate(dense_elements(gaussian)):
            expected = dense.log_prob(value[:, b].cpu().double())
            torch.testing.assert_close(result[:, b].cpu(), expected, rtol=RTOL[dtype], atol=0)

    def test_log_prob_from_noise_equals_that_of_the_sample(self, variant, grid, dtype, device):
        gaussian = random_gaussian(variant, 2, grid, dtype, device)
        noise = gaussian.noise(6, seed=4)
        sample = gaussian.rsample(noise=noise)
        result = gaussian.log_prob_from_noise(noise).cpu()
        torch.testing.assert_close(result, gaussian.log_prob(sample).cpu(), rtol=RTOL[dtype], atol=0)
        for b, dense in enumerate(dense_elements(gaussian)):
            expected = dense.log_prob(sample[:, b].cpu().double())
            torch.testing.assert_close(result[:, b], expected, rtol=RTOL[dtype], atol=0)

    def test_sample_is_the_linear_map_of_its_noise(self, variant, grid, dtype, device, backend):
        if backend == "numba" and device == "cuda":
            pytest.skip("numba runs on the CPU")
        gaussian = random_gaussian(variant, 2, grid, dtype, device, backend)
        noise = gaussian.noise(3, seed=1)
        sample = gaussian.rsample(noise=noise).cpu().double()
        for b, dense in enumerate(dense_elements(gaussian)):
            expected = dense.mean[:, None] + dense.R @ noise.low_rank[:, b].cpu().double().T
            expected = expected + torch.linalg.solve(dense.L.T, vec(noise.structured[:, b].cpu().double()))
            torch.testing.assert_close(sample[:, b], unvec(expected, grid), rtol=RTOL[dtype], atol=RTOL[dtype])

    def test_entropy_and_log_det(self, variant, grid, dtype, device):
        gaussian = random_gaussian(variant, 2, grid, dtype, device)
        for b, dense in enumerate(dense_elements(gaussian)):
            size = dense.covariance.shape[0]
            log_det = torch.linalg.slogdet(dense.covariance).logabsdet
            torch.testing.assert_close(gaussian.log_det()[b].cpu(), log_det, rtol=RTOL[dtype], atol=RTOL[dtype] * size)
            torch.testing.assert_close(gaussian.entropy()[b].cpu(), dense.normal.entropy(), rtol=RTOL[dtype], atol=1e-9)


@pytest.mark.parametrize("variant", VARIANTS)
class TestGradients:
    def functions(self, gaussian: StructuredGaussian, value: torch.Tensor) -> dict[str, torch.Tensor]:
        noise = gaussian.noise(2, seed=0)
        return {
            "log_prob": gaussian.log_prob(value).sum(),
            "log_prob_from_noise": gaussian.log_prob_from_noise(noise).sum(),
            "entropy": gaussian.entropy().sum(),
            "rsample": gaussian.rsample(noise=noise).square().sum(),
        }

    @pytest.mark.parametrize("name", ["log_prob", "log_prob_from_noise", "entropy", "rsample"])
    def test_gradients_equal_those_of_the_dense_path(self, variant, name):
        gaussian = random_gaussian(variant, 1, (2, 3, 3), requires_grad=True)
        value = torch.randn(2, 1, 3, 2, 3, 3, dtype=torch.float64)
        parameters = [gaussian.mean, gaussian.stencil_parameters, gaussian.cov_factor]
        result = torch.autograd.grad(
            self.functions(gaussian, value)[name], parameters, allow_unused=True, materialize_grads=True
        )
        dense = DenseGaussian(
            gaussian.stencil, gaussian.mean[0], gaussian.stencil_parameters[0], gaussian.cov_factor[0]
        )
        noise = gaussian.noise(2, seed=0)
        sample = dense.mean[:, None] + dense.R @ noise.low_rank[:, 0].T
        sample = sample + torch.linalg.solve(dense.L.T, vec(noise.structured[:, 0]))
        expected = {
            "log_prob": lambda: dense.log_prob(value[:, 0]).sum(),
            "log_prob_from_noise": lambda: dense.normal.log_prob(sample.T).sum(),
            "entropy": lambda: dense.normal.entropy(),
            "rsample": lambda: sample.square().sum(),
        }[name]()
        reference = torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True)
        for got, wanted in zip(result, reference, strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-9)

    @pytest.mark.parametrize("name", ["log_prob", "log_prob_from_noise", "entropy", "rsample"])
    def test_gradcheck(self, variant, name):
        start = random_gaussian(variant, 1, (1, 2, 2))
        value = torch.randn(1, 1, 3, 1, 2, 2, dtype=torch.float64)

        def apply(mean, entries, factor):
            return self.functions(StructuredGaussian(mean, entries, factor, validate=False), value)[name]

        inputs = [p.clone().requires_grad_() for p in (start.mean, start.stencil_parameters, start.cov_factor)]
        assert torch.autograd.gradcheck(apply, inputs)


def test_gradient_is_finite_where_the_capacitance_has_equal_eigenvalues():
    # A fresh network has R = 0, so M = I: differentiating eigenvectors would give NaN.
    entries = random_entries(Stencil("voxel"), 1, (3, 3, 3))
    factor = torch.zeros(1, 4, 3, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    gaussian = StructuredGaussian(torch.zeros(1, 3, 3, 3, 3, dtype=torch.float64), entries, factor)
    (gaussian.log_prob(torch.ones(1, 3, 3, 3, 3, dtype=torch.float64)) + gaussian.entropy()).sum().backward()
    assert torch.isfinite(factor.grad).all()


class TestSampling:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_moments_lie_inside_the_central_limit_bound(self, variant):
        gaussian = random_gaussian(variant, 1, (2, 2, 3))
        n = 10_000
        samples = vec(gaussian.sample(n, seed=9)[:, 0])  # (D, n)
        dense = dense_elements(gaussian)[0]
        variance = dense.covariance.diagonal()
        # Five standard errors: of a mean σ/√n, of a covariance √((σ_i²σ_j² + σ_ij²)/n).
        assert ((samples.mean(1) - dense.mean).abs() < 5 * (variance / n).sqrt()).all()
        bound = 5 * ((variance[:, None] * variance + dense.covariance.square()) / n).sqrt()
        assert ((torch.cov(samples) - dense.covariance).abs() < bound).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_same_seed_gives_the_same_sample_alone_or_in_any_chunk(self, variant, dtype):
        gaussian = random_gaussian(variant, 1, (3, 4, 9), dtype)
        together = gaussian.sample(70, seed=5)
        for chunk in (1, 8, 33):
            parts = [gaussian.sample(indices=range(s, min(s + chunk, 70)), seed=5) for s in range(0, 70, chunk)]
            torch.testing.assert_close(torch.cat(parts), together, rtol=0, atol=1e-6)
        assert not torch.equal(together, gaussian.sample(70, seed=6))

    def test_a_sample_redrawn_with_gradients_is_the_sample(self):
        gaussian = random_gaussian("LC", 1, (3, 4, 9), torch.float32, requires_grad=True)
        drawn = gaussian.sample(40, seed=2)
        redrawn = gaussian.rsample(indices=[31, 5], seed=2)
        assert redrawn.requires_grad
        torch.testing.assert_close(redrawn, drawn[[31, 5]], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_batch_equals_the_loop_over_it(self, variant):
        gaussian = random_gaussian(variant, 3)
        together = gaussian.sample(4, seed=8)
        value = torch.randn(4, 3, *gaussian.event_shape, dtype=torch.float64)
        for b in range(3):
            alone = StructuredGaussian(
                gaussian.mean[b : b + 1], gaussian.stencil_parameters[b : b + 1], gaussian.cov_factor[b : b + 1]
            )
            torch.testing.assert_close(alone.sample(4, seed=fold(8, b)), together[:, b : b + 1])
            torch.testing.assert_close(alone.log_prob(value[:, b : b + 1]), gaussian.log_prob(value)[:, b : b + 1])

    def test_elements_of_a_batch_have_independent_noise(self):
        structured, low_rank = random_gaussian("LC", 2).noise(2)
        assert not torch.equal(structured[:, 0], structured[:, 1])
        assert not torch.equal(low_rank[:, 0], low_rank[:, 1])

    @pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
    def test_any_batch_shape(self, batch):
        grid = (2, 3, 4)
        entries = random_entries(Stencil("voxel"), math.prod(batch), grid).reshape(*batch, 45, *grid)
        gaussian = StructuredGaussian(
            torch.zeros(*batch, 3, *grid, dtype=torch.float64), entries, torch.ones(*batch, 2, 3, *grid).double()
        )
        sample = gaussian.rsample(5)
        assert sample.shape == (5, *batch, 3, *grid)
        assert gaussian.log_prob(sample).shape == (5, *batch)
        assert gaussian.log_prob(sample[0]).shape == gaussian.entropy().shape == batch
        assert gaussian.marginal_variance()[0].shape == (*batch, 3, *grid)

    def test_given_noise_is_kept_unless_it_may_be_overwritten(self):
        gaussian = random_gaussian("LC", 1, (3, 4, 8), torch.float32)
        noise = gaussian.noise(3)
        before = noise.structured.clone()
        expected = gaussian.rsample(noise=noise)
        assert torch.equal(noise.structured, before)
        with torch.no_grad():
            result = gaussian.rsample(noise=noise, overwrite=True)
        assert torch.equal(result, expected)
        assert result.data_ptr() == noise.structured.data_ptr()


class TestVariance:
    @pytest.mark.parametrize("variant", ["D", "LD"])
    def test_exact_where_l_is_diagonal(self, variant):
        gaussian = random_gaussian(variant)
        variance, error = gaussian.marginal_variance()
        assert not error.any()
        for b, dense in enumerate(dense_elements(gaussian)):
            torch.testing.assert_close(variance[b], unvec(dense.covariance.diagonal()[:, None], (3, 4, 5))[0])

    @pytest.mark.parametrize("variant", ["C", "LC", "LC full"])
    def test_estimate_lies_inside_its_stated_error(self, variant):
        gaussian = random_gaussian(variant)
        variance, error = gaussian.marginal_variance(num_probes=400)
        truth = torch.stack([unvec(d.covariance.diagonal()[:, None], (3, 4, 5))[0] for d in dense_elements(gaussian)])
        z = (variance - truth) / error
        # 360 correlated dimensions: root mean square near 1, none beyond 5.
        assert z.abs().max() < 5
        assert 0.7 < z.square().mean().sqrt() < 1.4

    def test_better_than_the_plain_sample_variance(self):
        gaussian = random_gaussian("C", 1, (4, 5, 6))
        truth = unvec(dense_elements(gaussian)[0].covariance.diagonal()[:, None], (4, 5, 6))
        error = (gaussian.marginal_variance(64)[0] - truth).square().mean().sqrt()
        plain = ((gaussian.sample(64) - gaussian.mean).square().mean(0) - truth).square().mean().sqrt()
        assert error < 0.5 * plain


class TestBadInput:
    def test_shapes_say_expected_and_got(self):
        mean, entries = torch.zeros(1, 3, 4, 4, 4), torch.ones(1, 3, 4, 4, 4)
        with pytest.raises(ShapeError, match=r"mean must have shape \(\*batch, 3, X, Y, Z\), got \(1, 2, 4, 4, 4\)"):
            StructuredGaussian(mean[:, :2], entries)
        with pytest.raises(ShapeError, match=r"\(1, 3 \| 45 \| 123, 4, 4, 4\), got \(1, 3, 4, 4, 3\)"):
            StructuredGaussian(mean, entries[..., :3])
        with pytest.raises(ShapeError, match=r"cov_factor must have shape \(1, r, 3, 4, 4, 4\)"):
            StructuredGaussian(mean, entries, torch.zeros(1, 3, 4, 4, 4))
        gaussian = StructuredGaussian(mean, entries)
        with pytest.raises(ShapeError, match=r"value must have shape \(N, 1, 3, 4, 4, 4\), got \(2, 1, 3, 4, 4, 5\)"):
            gaussian.log_prob(torch.zeros(2, 1, 3, 4, 4, 5))

    @pytest.mark.parametrize("name", ["mean", "cov_factor"])
    def test_nan_is_named_and_counted(self, name):
        parts = {"mean": torch.zeros(1, 3, 2, 2, 2), "cov_factor": torch.zeros(1, 2, 3, 2, 2, 2)}
        parts[name].view(-1)[:5] = float("nan")
        with pytest.raises(NonFiniteError, match=f"{name} has 5 NaN"):
            StructuredGaussian(parts["mean"], torch.ones(1, 3, 2, 2, 2), parts["cov_factor"])

    def test_too_much_noise_for_memory_says_how_much(self, monkeypatch):
        monkeypatch.setattr(distribution, "free_bytes", lambda _: 2**20)
        gaussian = StructuredGaussian(torch.zeros(1, 3, 16, 16, 16), torch.ones(1, 3, 16, 16, 16))
        with pytest.raises(
            OutOfMemoryError, match=r"1000 samples of \(3, 16, 16, 16\) needs 0.05 GiB, but only 0.00 GiB"
        ):
            gaussian.sample(1000)

    def test_samples_must_be_asked_for_one_way(self):
        gaussian = random_gaussian("D")
        with pytest.raises(GaussianError, match="either"):
            gaussian.sample(3, indices=[1])

    def test_rank_zero_is_no_low_rank_part(self):
        gaussian = random_gaussian("C")
        assert gaussian.rank == 0
        without = StructuredGaussian(gaussian.mean, gaussian.stencil_parameters)
        assert torch.equal(without.sample(2), gaussian.sample(2))
        assert torch.equal(without.entropy(), gaussian.entropy())


def test_constant_counts_dimensions_not_voxels():
    # The standard normal at its mean: −½ · 3V · log 2π.
    gaussian = StructuredGaussian(torch.zeros(1, 3, 2, 3, 4), torch.ones(1, 3, 2, 3, 4))
    assert gaussian.log_prob(torch.zeros(1, 3, 2, 3, 4)).item() == pytest.approx(-0.5 * 72 * math.log(2 * math.pi))


def test_dense_reference_is_what_it_says():
    # Two voxels along the last axis, only the coupling of channel 0 with its predecessor: L[3, 0] = 0.5.
    stencil = Stencil("voxel")
    entries = torch.zeros(45, 1, 1, 2)
    entries[:3] = 1.0
    channel = [(e.offset, e.row_channel, e.col_channel) for e in stencil.table].index(((0, 0, -1), 0, 0))
    entries[channel, 0, 0, 1] = 0.5
    expected = torch.eye(6)
    expected[3, 0] = 0.5
    assert torch.equal(dense_cholesky(stencil, entries), expected)
