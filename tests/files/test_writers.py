"""Several files at a time: all there at the end, or the error."""

import pytest

from scripts.files.writers import Writers


def write_all(*jobs):
    with Writers() as write:
        for job, *arguments in jobs:
            write(job, *arguments)


def test_all_files_are_there_at_the_end(tmp_path):
    write_all(*[((tmp_path / f"{number}.txt").write_text, str(number)) for number in range(9)])
    assert {path.read_text() for path in tmp_path.iterdir()} == {str(number) for number in range(9)}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_of_one_is_raised_after_the_others_have_ended(error, tmp_path):
    def fail():
        raise error("stop")

    with pytest.raises(error, match="stop"):
        write_all((fail,), ((tmp_path / "other.txt").write_text, "whole"))
    assert (tmp_path / "other.txt").read_text() == "whole"
