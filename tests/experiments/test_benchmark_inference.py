from __future__ import annotations

import json

import pytest
import torch

from experiments.benchmark import measure, plain_torch, roofline
from experiments.benchmark.__main__ import BENCHMARKS, main
from experiments.benchmark.inference import SEED, Case, brains, compare, register, summary_of_plain, weigh
from experiments.benchmark.inference_table import ONE_PASS, PLAIN_PASS, show
from scripts.inference.proposals import spread_of, weigh_proposals
from scripts.registration.local_correlation import local_ncc
from scripts.registration.spline import upsample
from scripts.registration.warp import warp
from tests.registration.conftest import brain_like, smooth

AROUND = ["noise", "log q", "solve", "low rank", "prior"]
PARTS, PLAIN_PARTS = [*AROUND, ONE_PASS], [*AROUND, *PLAIN_PASS]


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(*brains((16, 24, 32)), rank=3)


def test_the_reference_s_log_weights_are_ours(case):
    ours, seconds = weigh(case.ours, range(6))
    plain, plain_seconds = weigh(case.plain, range(6))
    assert (ours.dtype, ours.shape) == (torch.float64, (6,))
    assert float((plain - ours).abs().max()) < 1e-3 * spread_of(ours)
    assert sorted(seconds) == sorted(PARTS)
    assert sorted(plain_seconds) == sorted(PLAIN_PARTS)


def test_the_parts_make_the_weights_of_the_pipeline(case):
    expected = weigh_proposals(case.ours.gaussian, case.target, case.pair, 5, SEED).log_weights
    for batch in (1, 2, 32):
        log_weights, _ = weigh(case.ours._replace(batch=batch), range(5))
        torch.testing.assert_close(log_weights, expected, rtol=1e-9, atol=0)


def test_clocking_the_solve_leaves_the_gaussian_as_it_was(case):
    solve = case.ours.gaussian.cholesky.solve
    weigh(case.ours, range(2))
    assert case.ours.gaussian.cholesky.solve == solve


def test_the_reference_s_summary_is_ours(case):
    done = register(case, num_proposals=12, num_samples=9)
    assert sum(done.counts) == 9
    assert len(done.indices) > 1
    _, mean, variance = summary_of_plain(case, done.indices, done.counts)
    torch.testing.assert_close(mean, done.moments.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(variance, done.moments.variance, rtol=1e-3, atol=1e-5)


class TestPlainTorch:
    """Each step against the one that it stands for, which has tests against SciPy and SimpleITK of its own."""

    def test_spline(self):
        field = smooth(2, 3, 3, 4, 5)
        torch.testing.assert_close(plain_torch.upsample(field), upsample(field))

    def test_a_constant_field_stays_constant(self):
        torch.testing.assert_close(
            plain_torch.upsample(torch.full((1, 3, 2, 3, 4), 7.0)), torch.full((1, 3, 4, 6, 8), 7.0)
        )

    def test_warp(self):
        image, ddf = brain_like(6, 7, 8), 2 * smooth(3, 3, 6, 7, 8, seed=1)
        torch.testing.assert_close(plain_torch.warp(image, ddf), warp(image, ddf), rtol=0, atol=1e-5)

    def test_pooling_by_axes_is_pooling(self):
        volume = brain_like(6, 7, 8)
        whole = torch.nn.functional.avg_pool3d(volume, 5, stride=1, padding=2, count_include_pad=False)
        torch.testing.assert_close(plain_torch._pool(volume, 5), whole)

    @pytest.mark.parametrize("window", [3, 5])
    def test_correlation_up_to_the_border(self, window):
        fixed, warped = brain_like(6, 7, 8), torch.cat([brain_like(6, 7, 8, seed=seed) for seed in (1, 2)])
        correlation = plain_torch.LocalCorrelation.with_fixed(fixed, window, 1e-5)
        expected = local_ncc(fixed, warped, window).sum(dim=(1, 2, 3, 4), dtype=torch.float64)
        torch.testing.assert_close(correlation(warped), expected, rtol=1e-4, atol=0)

    def test_diffusion_energy_by_hand(self):
        z = torch.zeros(2, 3, 3, 3, 3)
        z[1, 0, 1, 1, 1] = 2.0  # a voxel with six neighbors: ½ · 6 · 2²
        assert plain_torch.diffusion_energy(z).tolist() == [0.0, 12.0]

    def test_moments_by_hand(self):
        # 1, 1, 1 and 5: mean 2, variance 12 / 3
        fields = [torch.full((1, 3, 2, 2, 2), value) for value in (1.0, 5.0)]
        mean, variance = plain_torch.moments(fields, [3, 1])
        torch.testing.assert_close(mean, torch.full((1, 3, 4, 4, 4), 2.0))
        torch.testing.assert_close(variance, torch.full((1, 3, 4, 4, 4), 4.0))


def test_result_is_complete_and_plain(case, capsys):
    result = compare(case, num_proposals=10, num_samples=5, num_reference=3, repeats=1)
    assert sorted(result["split"]) == sorted([*PARTS, "summary"])
    assert sorted(result["reference_split"]) == sorted([*PLAIN_PARTS, "summary"])
    reference = 10 * sum(result["reference_split"][part] for part in PLAIN_PARTS)
    reference += result["different_samples"] * result["reference_split"]["summary"]
    assert result["reference_seconds"] == pytest.approx(reference)
    assert result["times_faster"] == pytest.approx(reference / result["seconds"])
    assert result["proposals_a_second"] == pytest.approx(10 / result["seconds"])
    assert result["largest_difference"] < 1e-3 * result["spread"]
    json.dumps(result)
    bars = show({**result, "peak_gib": 3.5}, 5, 3)
    assert [bar["reached"] for bar in bars[1:]] == [True, False]
    printed = capsys.readouterr().out
    assert "extrapolated from 3 of the same proposals" in printed
    assert all(part in printed for part in [*PARTS, *PLAIN_PARTS])


def test_roofline_by_hand(monkeypatch, capsys):
    # 1 Tflop/s and 1 GB/s: memory is the limit, 25.5 bytes a voxel of 1000.
    monkeypatch.setattr(roofline, "matmul_rate", lambda: 1e12)
    monkeypatch.setattr(roofline, "copy_rate", lambda megabytes: 1e9)
    split = {ONE_PASS: 51e-6, "noise": 1e-6, "prior": 2e-6, "summary": 7.0}
    result = roofline.measure((10, 10, 10), 5, 10, 32, {"split": split})
    row = result["parts"]["one pass"]
    assert row["memory_ms"] == pytest.approx(25.5e-3)
    assert row["of_the_roof"] == pytest.approx(0.5)
    assert result["parts"]["around"]["measured_ms"] == pytest.approx(3e-3)
    roofline.show(result)
    assert "50%" in capsys.readouterr().out


def test_one_thread_is_clocked_by_the_time_it_had(monkeypatch):
    monkeypatch.setattr(measure.time, "process_time", lambda: 1.0)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: 2.0)
    for threads, seconds in ((1, 1.0), (2, 2.0)):
        monkeypatch.setattr(measure.torch, "get_num_threads", lambda n=threads: n)
        assert measure.clock() == seconds


@pytest.mark.parametrize(
    "wrong", [["solve", "--paper"], ["train", "--proposals", "9"], ["inference", "--proposals", "1"]]
)
def test_options_that_do_not_belong_are_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(wrong)
    assert "is for" in capsys.readouterr().err


def test_it_is_one_of_all():
    assert "inference" in BENCHMARKS
