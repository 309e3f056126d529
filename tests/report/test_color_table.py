"""The color table that Slicer reads."""

from __future__ import annotations

from scripts.posterior.result import StructureVolume
from scripts.report.colors import write_color_table


def test_lines_are_number_name_color_and_names_have_no_blanks(tmp_path):
    volumes = [
        StructureVolume(300, "my own  tumor", 1.0, 0.5, 2.0),
        StructureVolume(14, "Left-Hippocampus", 1.0, 0.5, 2.0),
    ]
    write_color_table(volumes, tmp_path / "labels.ctbl")
    lines = (tmp_path / "labels.ctbl").read_text().splitlines()
    assert lines[0].startswith("# Color table file")
    rows = [line.split() for line in lines if not line.startswith("#")]
    assert [len(row) for row in rows] == [6, 6, 6]
    assert rows[0] == ["0", "Background", "0", "0", "0", "0"]
    assert rows[1] == ["14", "Left-Hippocampus", "220", "216", "20", "255"]
    assert rows[2][:2] == ["300", "my_own_tumor"]
    assert all(0 <= int(part) <= 255 for part in rows[2][2:])
