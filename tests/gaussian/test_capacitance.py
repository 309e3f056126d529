from __future__ import annotations

import numpy as np
import pytest
import torch

from scripts.gaussian import backends
from scripts.gaussian.capacitance import inner_products, squared_norms


def vectors(count: int, batch: int, size: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, batch, size, generator=generator, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [1, 7, 4096, 9001])
@pytest.mark.parametrize("batch", [1, 2])
def test_sums_in_float64(size, batch, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(backends, "sums", lambda device, dtype: None)
    a, b = vectors(3, batch, size, 0), vectors(4, batch, size, 1)
    a += 100.0  # sums that float32 could not hold
    exact = np.einsum("nbd,mbd->bnm", a.double().numpy(), b.double().numpy())
    result = inner_products(a, b)
    assert result.dtype == torch.float64
    np.testing.assert_allclose(result, exact, rtol=1e-9, atol=1e-9 * size)
    lengths = squared_norms(a)
    assert lengths.dtype == torch.float64
    # Squares in float32 (torch's, without the compiled loop) have its rounding.
    np.testing.assert_allclose(lengths, a.double().square().sum(2), rtol=1e-12 if compiled else 1e-6)


def test_a_vector_s_sums_do_not_depend_on_the_others_nor_on_threads():
    a, b, before = vectors(5, 1, 20_000, 0), vectors(3, 1, 20_000, 1), torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append((inner_products(a, b), squared_norms(a)))
            results.append((torch.cat([inner_products(one[None], b) for one in a], dim=1), squared_norms(a)))
    finally:
        torch.set_num_threads(before)
    for products, lengths in results:
        assert torch.equal(products, results[0][0])
        assert torch.equal(lengths, results[0][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_go_to_both(dtype):
    a, b = vectors(2, 1, 50, 0, dtype).requires_grad_(), vectors(3, 1, 50, 1, dtype).requires_grad_()
    (inner_products(a, b).sum() + squared_norms(a).sum()).backward()
    torch.testing.assert_close(a.grad, b.detach().sum(0, keepdim=True).expand(2, -1, -1) + 2 * a.detach())
    torch.testing.assert_close(b.grad, a.detach().sum(0, keepdim=True).expand(3, -1, -1))
