import csv

import numpy as np
import pytest

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.files.points import Points, check_inside, read_points, write_points
from scripts.posterior.calibrated import PointErrors


def test_reads_names_and_turns_lps_to_ras(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("label, X ,y,z\nAC,1,2,3\n,-4,5.5,6e1\n")
    ras, lps = read_points(path), read_points(path, "lps")
    assert ras.names == ["AC", "2"]
    np.testing.assert_array_equal(ras.ras, [[1, 2, 3], [-4, 5.5, 60]])
    np.testing.assert_array_equal(lps.ras, [[-1, -2, 3], [4, -5.5, 60]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n", "columns x, y, z"),
        ("x,y,z\n", "no points"),
        ("x,y,z\n1,2\n", "line 2"),
        ("x,y,z\n1,2,three\n", "line 2"),
        ("x,y,z\n1,2,nan\n", "not finite"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read_points(path)
    with pytest.raises(DataError, match="does not exist"):
        read_points(tmp_path / "none.csv")
    with pytest.raises(DataError, match="RAS or LPS"):
        read_points(path, "SPL")


def test_mean_covariance_and_radius_by_hand(tmp_path):
    """Places (0,0,0) three times and (4,8,0) once: mean (1,2,0), covariance xx 3, xy 6, yy 12."""
    samples = np.array([[[0.0, 0, 0]], [[4.0, 8, 0]]])
    path = tmp_path / "moved.csv"
    write_points(Points(["AC"], np.array([[7.0, 8, 9]]), np.array([False])), samples, [3, 1], path)
    (row,) = csv.DictReader(path.open())
    assert row["name"] == "AC"
    got = {key: float(value) for key, value in row.items() if key != "name"}
    expected = {
        "x_ras": 7, "y_ras": 8, "z_ras": 9, "mean_x_ras": 1, "mean_y_ras": 2, "mean_z_ras": 0, "mean_x_lps": -1,
        "mean_y_lps": -2, "mean_z_lps": 0, "cov_xx_mm2": 3, "cov_xy_mm2": 6, "cov_xz_mm2": 0, "cov_yy_mm2": 12,
        "cov_yz_mm2": 0, "cov_zz_mm2": 0, "radius_95_mm": 45**0.5, "inside": 0,
    }  # fmt: skip
    assert got == pytest.approx(expected, abs=1e-4)


def test_points_outside_of_the_fixed_image_are_marked_and_said(caplog):
    """A box from (0, 0, 0) to (9, 9, 9) mm, with half a voxel around it."""
    points = Points(["in", "edge", "out"], np.array([[5.0, 5, 5], [-0.4, 9.4, 0], [-0.6, 5, 5]]))
    check_inside(points, Grid((10, 10, 10), np.eye(4)), "RAS")
    assert points.inside.tolist() == [True, True, False]
    assert "1 of 3 points lie outside of the fixed image" in caplog.text
    assert "out" in caplog.text


def test_points_that_are_all_outside_are_refused_with_a_hint():
    grid = Grid((10, 10, 10), np.eye(4))
    with pytest.raises(DataError, match=r"no point lies in the fixed image.*--points_space LPS"):
        check_inside(Points(["a"], np.array([[-5.0, -5, 5]])), grid, "RAS")
    with pytest.raises(DataError, match=r"R 0\.\.9.*RAS\)$"):
        check_inside(Points(["a"], np.array([[50.0, 5, 5]])), grid, "RAS")


def test_a_file_that_is_no_text_is_named(tmp_path):
    (tmp_path / "p.csv").write_bytes(b"\xff\xfe\x00x,y,z")
    with pytest.raises(DataError, match="not a CSV file"):
        read_points(tmp_path / "p.csv")


def test_a_calibration_widens_covariance_and_radius(tmp_path):
    samples = np.random.default_rng(0).normal(size=(400, 1, 3))
    rows = []
    for name, errors in (("a", None), ("b", PointErrors(2.0, 0.5))):
        write_points(Points(["p"], np.zeros((1, 3))), samples, [1.0] * 400, tmp_path / f"{name}.csv", errors=errors)
        rows.append(next(csv.DictReader((tmp_path / f"{name}.csv").open())))
    plain, wide = ({key: float(value) for key, value in row.items() if key not in ("name", "inside")} for row in rows)
    assert wide["cov_xx_mm2"] == pytest.approx(4 * plain["cov_xx_mm2"] + 0.25, rel=1e-4)
    assert wide["cov_xy_mm2"] == pytest.approx(4 * plain["cov_xy_mm2"], rel=1e-4)
    assert wide["radius_95_mm"] == pytest.approx((4 * plain["radius_95_mm"] ** 2 + 7.815 * 0.25) ** 0.5, rel=1e-4)
    assert wide["mean_x_ras"] == plain["mean_x_ras"]
