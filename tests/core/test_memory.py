"""How much memory is left, of the machine and of the container."""

from collections import namedtuple

import pytest
import torch

from scripts.core import memory
from scripts.core.memory import free_bytes

GIB = 2**30
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with 64 GiB left."""
    available = namedtuple("available", "available")(64 * GIB)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: available)


def write(path, **files):
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (path / name.replace("__", ".")).write_text(f"{content}\n")


def belongs_to(root, *lines):
    write(root / "proc/self", cgroup="\n".join(lines))


def test_without_control_groups_the_machine_alone_counts(tmp_path):
    assert free_bytes(CPU, tmp_path) == 64 * GIB


class TestVersion2:
    def test_what_a_container_sees_of_itself(self, tmp_path):
        """Its own group is the root of what it sees."""
        belongs_to(tmp_path, "0::/")
        statistics = f"anon 5\nfile 9\ninactive_file {2 * GIB}\nactive_file {GIB}"
        write(tmp_path / "sys/fs/cgroup", memory__max=8 * GIB, memory__current=5 * GIB, memory__stat=statistics)
        assert free_bytes(CPU, tmp_path) == 5 * GIB  # 8 − (5 − 2)

    def test_the_narrowest_of_the_groups_above_counts(self, tmp_path):
        belongs_to(tmp_path, "1:name=systemd:/a", "0::/a/b/c")
        top = tmp_path / "sys/fs/cgroup"
        write(top / "a", memory__max=10 * GIB, memory__current=9 * GIB, memory__stat="inactive_file 0")
        write(top / "a/b", memory__max=4 * GIB, memory__current=2 * GIB, memory__stat="inactive_file 0")
        write(top / "a/b/c", memory__max="max", memory__current=GIB, memory__stat="inactive_file 0")
        write(top / "other", memory__max=1, memory__current=1, memory__stat="inactive_file 0")
        assert free_bytes(CPU, tmp_path) == GIB

    @pytest.mark.parametrize("limit", ["max", 500 * GIB])
    def test_a_limit_beyond_the_machine_is_none(self, tmp_path, limit):
        belongs_to(tmp_path, "0::/a")
        write(tmp_path / "sys/fs/cgroup/a", memory__max=limit, memory__current=GIB, memory__stat="inactive_file 0")
        assert free_bytes(CPU, tmp_path) == 64 * GIB

    def test_beyond_the_limit_nothing_is_left(self, tmp_path):
        belongs_to(tmp_path, "0::/a")
        write(tmp_path / "sys/fs/cgroup/a", memory__max=GIB, memory__current=2 * GIB, memory__stat="inactive_file 0")
        assert free_bytes(CPU, tmp_path) == 0


class TestVersion1:
    def test_the_limit_of_the_memory_controller(self, tmp_path):
        belongs_to(tmp_path, "5:cpu,cpuacct:/x", "4:memory:/docker/1", "0::/")
        top = tmp_path / "sys/fs/cgroup/memory"
        write(top, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=GIB)
        write(top / "docker/1", memory__limit_in_bytes=3 * GIB, memory__usage_in_bytes=2 * GIB)
        assert free_bytes(CPU, tmp_path) == GIB
        write(top / "docker/1", memory__stat=f"inactive_file 7\ntotal_inactive_file {GIB // 2}")
        assert free_bytes(CPU, tmp_path) == 1.5 * GIB

    def test_a_container_that_is_told_its_path_on_the_host(self, tmp_path):
        """Its own group is mounted as the root, and no folder has the path's name."""
        belongs_to(tmp_path, "4:memory:/docker/1")
        write(tmp_path / "sys/fs/cgroup/memory", memory__limit_in_bytes=3 * GIB, memory__usage_in_bytes=GIB)
        assert free_bytes(CPU, tmp_path) == 2 * GIB


@pytest.mark.parametrize("lines", [["nonsense"], ["0::/../elsewhere"], [""]])
def test_what_cannot_be_understood_is_left_out(tmp_path, lines):
    belongs_to(tmp_path, *lines)
    write(tmp_path / "sys/fs/elsewhere", memory__max=GIB, memory__current=0, memory__stat="")
    write(tmp_path / "sys/fs/cgroup", memory__max="?", memory__current=0, memory__stat="")
    assert free_bytes(CPU, tmp_path) == 64 * GIB


def test_this_machine_has_memory_left():
    left = free_bytes(CPU)
    assert left is not None
    assert 0 < left <= 64 * GIB


def test_of_other_devices_nothing_is_known():
    assert free_bytes(torch.device("meta")) is None
