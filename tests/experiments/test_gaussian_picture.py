from __future__ import annotations

from PIL import Image

from experiments import gaussian_picture


def test_covariances_have_the_stated_standard_deviation():
    gaussian = gaussian_picture.with_std(gaussian_picture.smooth_entries(0.9), gaussian_picture.bumps(3), 0.5)
    assert abs(float(gaussian.marginal_variance()[0].mean().sqrt()) - gaussian_picture.STD) < 0.1 * gaussian_picture.STD


def test_neighbors_correlate_as_asked():
    # A first-order autoregression: neighbors along an axis have the correlation 0.9 once away from the border.
    gaussian = gaussian_picture.with_std(gaussian_picture.smooth_entries(0.9), None, 1.0)
    z = gaussian.sample(64)[:, 0, 0, 10:-10, 10:-10, 10:-10].flatten(1)
    a = gaussian.sample(64)[:, 0, 0, 10:-10, 10:-10, 11:-9].flatten(1)
    correlation = float((z * a).mean() / (z.square().mean() * a.square().mean()).sqrt())
    assert abs(correlation - 0.9) < 0.05


def test_demo_writes_its_picture_and_says_where(tmp_path, capsys):
    gaussian_picture.main(tmp_path / "samples.png")
    assert Image.open(tmp_path / "samples.png").size[0] > 800
    assert str(tmp_path / "samples.png") in capsys.readouterr().out
