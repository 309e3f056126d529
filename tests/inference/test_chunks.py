import logging

import pytest
import torch

from scripts.gaussian.errors import OutOfMemoryError
from scripts.inference.chunks import chunk_that_fits, out_of_memory, run_in_chunks


def test_chunks_cover_everything_once():
    assert list(run_in_chunks(7, 3, list)) == [
        (range(3), [0, 1, 2]),
        (range(3, 6), [3, 4, 5]),
        (range(6, 7), [6]),
    ]
    assert list(run_in_chunks(0, 3, list)) == []
    with pytest.raises(ValueError, match="positive"):
        list(run_in_chunks(3, 0, list))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_halves_the_chunk_says_so_and_goes_on(error, caplog):
    tried = []

    def work(part):
        tried.append(len(part))
        if len(part) > 2:
            raise error
        return list(part)

    with caplog.at_level(logging.WARNING):
        done = [i for _, values in run_in_chunks(9, 8, work) for i in values]
    assert done == list(range(9))
    assert tried == [8, 4, 2, 2, 2, 2, 1]
    assert [record.message for record in caplog.records] == [
        "out of memory with 8 samples at a time: going on with 4",
        "out of memory with 4 samples at a time: going on with 2",
    ]


def test_a_single_one_that_does_not_fit_and_other_errors_are_raised():
    def too_large(part):
        raise MemoryError("1 TiB")

    def broken(part):
        raise RuntimeError("shapes do not match")

    with pytest.raises(MemoryError, match="1 TiB"):
        list(run_in_chunks(4, 4, too_large))
    with pytest.raises(RuntimeError, match="shapes"):
        list(run_in_chunks(4, 4, broken))


def test_a_real_allocation_that_fails_counts_as_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50)
    assert out_of_memory(caught.value)
    assert out_of_memory(OutOfMemoryError("samples", 10, 5))
    assert not out_of_memory(RuntimeError("shapes"))


@pytest.mark.parametrize(
    ("name", "expectations"),
    [("cuda", [(100, 32), (1, 12), (0, 1)]), ("cpu", [(100, 32), (1, 32), (0.25, 13), (0, 1)])],
)
def test_the_chunk_follows_what_is_free(monkeypatch, name, expectations):
    device = torch.device(name)
    voxels = 80 * 96 * 112
    for gib, expected in expectations:
        monkeypatch.setattr("scripts.inference.chunks.free_bytes", lambda device, gib=gib: int(gib * 2**30))
        assert chunk_that_fits(voxels, device) == expected
    monkeypatch.setattr("scripts.inference.chunks.free_bytes", lambda device: None)
    assert chunk_that_fits(voxels, device, largest=5) == 5
