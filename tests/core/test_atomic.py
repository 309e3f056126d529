"""Files are whole or not there, whatever happens in between."""

import subprocess
import sys

import pytest

from scripts.core.atomic import atomic_path, check_writable, write_text, writing
from scripts.core.errors import DataError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_halfway(target, error):
    with atomic_path(target) as part:
        part.write_text("hal")
        raise error


def test_the_file_appears_at_the_end_only(tmp_path):
    target = tmp_path / "new folder" / "ä" / "a.nii.gz"
    with atomic_path(target) as part:
        part.write_bytes(b"whole")
        assert part.parent == target.parent
        assert part.name.endswith("a.nii.gz")  # libraries choose the format by it
        assert not target.exists()
    assert target.read_bytes() == b"whole"
    assert names(target.parent) == ["a.nii.gz"]


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(tmp_path, error):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(error):
        fail_halfway(target, error)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_an_error_leaves_nothing_where_nothing_was(tmp_path):
    with pytest.raises(ValueError, match="stop"):
        fail_halfway(tmp_path / "a.txt", ValueError("stop"))
    assert names(tmp_path) == []


def test_an_old_file_is_replaced(tmp_path):
    target = tmp_path / "a.txt"
    for text in ("first", "second"):
        with atomic_path(str(target)) as part:
            part.write_text(text)
    assert target.read_text() == "second"


def test_two_writers_do_not_share_a_temporary_file(tmp_path):
    with atomic_path(tmp_path / "a.txt") as one, atomic_path(tmp_path / "a.txt") as other:
        assert one != other
        one.write_text("one")
        other.write_text("other")
    assert (tmp_path / "a.txt").read_text() == "one"  # the outer one ends last
    assert names(tmp_path) == ["a.txt"]


def test_a_killed_process_leaves_no_file_under_the_final_name(tmp_path):
    code = (
        "import os, sys; from scripts.core.atomic import atomic_path\n"
        "with atomic_path(sys.argv[1]) as part:\n"
        "    part.write_text('hal'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.txt")], check=False)
    assert done.returncode == -9
    assert not (tmp_path / "a.txt").exists()


def test_forgetting_to_write_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        pass


def test_a_text_is_written_durably_with_plain_line_ends(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("scripts.core.atomic.os.fsync", synced.append)
    write_text(tmp_path / "a.txt", "é\nb\n")
    assert (tmp_path / "a.txt").read_bytes() == "é\nb\n".encode()
    assert len(synced) == 1


def test_a_refusal_of_the_system_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file is a file, not a folder"), writing(tmp_path / "file" / "a.txt"):
        pass


def test_a_folder_that_cannot_be_written_is_found_before_and_not_made(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        with pytest.raises(DataError, match="is a file, not a folder"):
            check_writable(folder)
    check_writable(tmp_path / "new" / "newer")
    assert names(tmp_path) == ["file"]


def test_a_folder_without_permission_is_found_before(tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.core.atomic.os.access", lambda path, _: path != tmp_path)  # root may write anywhere
    with pytest.raises(DataError, match=f"no permission to write in {tmp_path}"):
        check_writable(tmp_path / "new")
