"""Landmark files: CSV and Slicer's markups, in LPS and RAS, and what is wrong with them in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.evidence.landmarks import Landmarks, read_landmarks
from scripts.evidence.point_files import read_markups
from scripts.registration.space import PairSpace

FIXED = np.array([[10.0, -20, 30], [1, 2, 3], [-4, 5, -6]])
MOVING = FIXED + np.array([[1, 0, 2], [-1, 3, 0], [0.5, 0.25, -2]])
HEADER = "fixed_x,fixed_y,fixed_z,moving_x,moving_y,moving_z"


def markups(path, points, system="LPS", labels=None, **extra):
    sign = np.array([-1, -1, 1]) if system == "LPS" else np.ones(3)
    labels = labels or [f"F-{i + 1}" for i in range(len(points))]
    control = [
        {"id": str(i + 1), "label": label, "position": (np.array(p) * sign).tolist(), "positionStatus": "defined"}
        for i, (label, p) in enumerate(zip(labels, points, strict=True))
    ]
    markup = {
        "type": "Fiducial",
        "coordinateSystem": system,
        "coordinateUnits": "mm",
        "controlPoints": control,
        **extra,
    }
    schema = "https://raw.githubusercontent.com/slicer/slicer/master/Modules/Loadable/Markups/Resources/Schema/markups-schema-v1.0.3.json#"
    path.write_text(json.dumps({"@schema": schema, "markups": [markup]}))
    return path


@pytest.mark.parametrize("systems", [("LPS", "LPS"), ("RAS", "RAS"), ("LPS", "RAS")])
def test_markups_in_lps_and_ras_are_the_same_points(tmp_path, systems):
    files = [
        markups(tmp_path / f"{i}.mrk.json", p, s) for i, (p, s) in enumerate(zip((FIXED, MOVING), systems, strict=True))
    ]
    for given in (files, ",".join(map(str, files))):
        marks = read_landmarks(given, std=2.0)
        np.testing.assert_allclose(marks.fixed, FIXED)
        np.testing.assert_allclose(marks.moving, MOVING)
        assert marks.names == ["F-1", "F-2", "F-3"]
        assert marks.std.tolist() == [2.0] * 3


def test_the_formats_documented_example_is_read(tmp_path):
    """As in Slicer's documentation: no status, no units; LPS."""
    content = {"markups": [{"type": "Fiducial", "coordinateSystem": "LPS", "controlPoints": [
        {"label": "F-1", "position": [-53.5, -73.25, 1.0]}]}]}  # fmt: skip
    (tmp_path / "a.mrk.json").write_text(json.dumps(content))
    names, points = read_markups(tmp_path / "a.mrk.json")
    assert names == ["F-1"]
    assert points.tolist() == [[53.5, 73.25, 1.0]]


def test_the_same_labels_in_another_order_are_matched_by_label(tmp_path):
    fixed = markups(tmp_path / "f.mrk.json", FIXED, labels=["a", "b", "c"])
    moving = markups(tmp_path / "m.mrk.json", MOVING[[2, 0, 1]], labels=["c", "a", "b"])
    np.testing.assert_allclose(read_landmarks([fixed, moving]).moving, MOVING)
    other = markups(tmp_path / "o.mrk.json", MOVING, labels=["M-1", "M-2", "M-3"])
    np.testing.assert_allclose(read_landmarks([fixed, other]).moving, MOVING)


def test_points_that_are_not_placed_are_left_out(tmp_path):
    fixed, moving = (markups(tmp_path / f"{n}.mrk.json", p) for n, p in (("f", FIXED), ("m", MOVING)))
    content = json.loads(moving.read_text())
    content["markups"][0]["controlPoints"][1] |= {"positionStatus": "undefined", "position": [0, 0, 0]}
    moving.write_text(json.dumps(content))
    np.testing.assert_allclose(read_landmarks([fixed, moving]).fixed, FIXED[[0, 2]])


@pytest.mark.parametrize("space", ["RAS", "LPS", "lps"])
def test_csv_in_both_conventions(tmp_path, space):
    sign = np.tile([-1, -1, 1] if space.upper() == "LPS" else [1, 1, 1], 2)
    rows = [",".join(map(str, row)) for row in np.hstack([FIXED, MOVING]) * sign]
    (tmp_path / "l, a.csv").write_text(
        "\n".join([f"{HEADER},std,name", rows[0] + ",0.5,tip", rows[1] + ",,", rows[2] + ",3,"])
    )
    marks = read_landmarks(str(tmp_path / "l, a.csv"), space, std=1.5)
    np.testing.assert_allclose(marks.fixed, FIXED)
    np.testing.assert_allclose(marks.moving, MOVING)
    assert marks.std.tolist() == [0.5, 1.5, 3.0]
    assert marks.names == ["tip", "2", "3"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("x,y,z\n1,2,3\n", "no column fixed_x"),
        (HEADER + "\n", "no points"),
        (HEADER + "\n1,2,3,4,5,here\n", "line 2"),
        (HEADER + "\n1,2,3,4,5\n", "line 2"),
        (HEADER + "\n1,2,3,4,5,nan\n", "finite"),
        (HEADER + ",std\n1,2,3,4,5,6,-1\n", "std positive"),
    ],
)
def test_wrong_csv_files_are_named_in_one_line(tmp_path, content, words):
    path = tmp_path / "l.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        read_landmarks(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("{not json", "not a JSON file"),
        ('{"a": 1}', "no 'markups'"),
        ('{"markups": []}', "no 'markups'"),
        ('{"markups": [{"coordinateSystem": "LPS", "controlPoints": []}]}', "no points"),
        ('{"markups": [{"coordinateSystem": "IJK", "controlPoints": []}]}', "LPS or RAS"),
        ('{"markups": [{"coordinateUnits": "um", "controlPoints": []}]}', "must be mm"),
        ('{"markups": [{"controlPoints": [{"position": [1, 2]}]}]}', "three finite numbers"),
        ('{"markups": [{"controlPoints": [{"position": "here"}]}]}', "three numbers"),
        ('{"markups": [{"controlPoints": [5]}]}', "expected an object"),
    ],
)
def test_wrong_markups_are_named_in_one_line(tmp_path, content, words):
    path = tmp_path / "m.mrk.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=words) as caught:
        read_markups(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_lists_that_do_not_correspond_are_refused(tmp_path):
    fixed = markups(tmp_path / "f.mrk.json", FIXED)
    moving = markups(tmp_path / "m.mrk.json", MOVING[:2])
    with pytest.raises(DataError, match=r"3 points, .* has 2"):
        read_landmarks([fixed, moving])
    with pytest.raises(DataError, match=r"two \.mrk\.json"):
        read_landmarks(str(fixed))
    with pytest.raises(DataError, match="two"):
        read_landmarks([fixed, fixed, moving])


def test_observations_are_the_points_under_alignment_and_oblique_axes():
    """What a field leaves of the distance to the moving points is the observations' residual, in mm of that space."""
    turn = np.array([[0.9, 0.1, 0.3, 4], [-0.2, 1.1, 0, -3], [0.1, 0.05, 0.8, 2], [0, 0, 0, 1]])
    work = Grid((24, 20, 16), np.array([[0, -2.0, 0.1, 20], [2, 0, 0, -24], [0, 0.1, 3, -20], [0, 0, 0, 1]]))
    space = PairSpace(work, work, work, turn, 2)
    field = torch.randn(1, 3, 12, 10, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fixed = np.array([[1.0, 2, 3], [-4, 5, -6], [7, -3, 2]])
    moved = space.align(fixed + space.displacement_at(field[0].numpy(), fixed))
    error = np.array([[0.5, -1, 2], [0, 0, 0], [1, 1, 1]])
    marks = Landmarks(["a", "b", "c"], fixed, moved + error, np.array([1.0, 2, 3]))
    seen = marks.observations(space)
    np.testing.assert_allclose((seen.values - seen.apply(field)[0]).reshape(3, 3), error, atol=1e-9)
    assert seen.std.tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    np.testing.assert_allclose(marks.distances(field[0].numpy(), space), np.linalg.norm(error, axis=1), atol=1e-9)


def test_points_outside_are_named():
    grid = Grid((8, 8, 8), np.diag([2.0, 2, 2, 1]))
    marks = Landmarks(["in", "out"], np.array([[1.0, 1, 1], [50, 1, 1]]), np.zeros((2, 3)), np.ones(2))
    with pytest.raises(DataError, match=r"out .* outside of the brain's box"):
        marks.observations(PairSpace(grid, grid, grid))


def test_detail_that_all_fields_share_is_no_news_about_the_field():
    """Marks that are exactly where field and detail take them say just what the field is there."""
    work = Grid((16, 16, 16), np.diag([2.0, 2.0, 2.0, 1.0]))
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(1, 3, 8, 8, 8, generator=generator, dtype=torch.float64)
    detail = torch.randn(3, 16, 16, 16, generator=generator)
    alignment = np.eye(4)
    alignment[:3, :3] *= 1.1
    space = PairSpace(work, work, work, alignment, detail=detail)
    fixed = np.array([[10.0, 12, 14], [5.5, 20.25, 17]])
    moving = space.align(fixed + space.displacement_at(z[0].numpy(), fixed))
    marks = Landmarks(["a", "b"], fixed, moving, np.ones(2))
    observations = marks.observations(space)
    torch.testing.assert_close(observations.apply(z)[0], observations.values, atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(marks.distances(z[0].numpy(), space), 0, atol=1e-5)
