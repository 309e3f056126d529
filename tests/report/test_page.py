"""The report as a file."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from scripts.core.errors import DataError
from scripts.core.grid import Grid
from scripts.posterior.result import LabelResult, RegistrationResult
from scripts.report import page, tiles
from scripts.report.page import render_report, write_report
from tests.report.conftest import NASTY

LOADING = {"src", "href", "srcset", "data", "poster", "action", "formaction", "background", "xlink:href"}


class Parsed(HTMLParser):
    """Elements with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.hidden = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.hidden = tag if tag in ("script", "style") else self.hidden

    def handle_endtag(self, tag: str) -> None:
        self.hidden = "" if tag == self.hidden else self.hidden

    def handle_data(self, data: str) -> None:
        self.text += "" if self.hidden else data


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch):
    """Pages that nobody looks at are drawn small, which is fast."""
    monkeypatch.setattr(tiles, "PIXELS_PER_MM", 0.5)


def test_the_page_holds_every_part(written):
    parsed = Parsed(written.read_text(encoding="utf-8"))
    sections = [attributes["id"] for tag, attributes in parsed.elements if tag == "section"]
    assert sections == ["slices", "interactive", "volumes", "modes", "trust", "diagnostics", "files"]
    for words in (
        "Usable with care: the images match better than before and the map does not fold",
        "0.41 → 0.63",
        "Through the most uncertain place",
        "left hippocampus",
        "Mode 1 · 64\u202f%",
        "The moving image appears not to be skull-stripped.",
        "errors that all samples share",
        "antsApplyTransforms",
        "labels.nii.gz",
        "modes/",
        "torch 2.13.0 · monai 1.6.1",
    ):
        assert words in parsed.text, words
    pictures = [attributes for tag, attributes in parsed.elements if tag == "img"]
    assert len(pictures) == 2 * 3 * 6 + 3 * 2  # two places, three planes, six kinds; two modes
    assert all(picture["alt"] for picture in pictures)
    assert [entry.name for entry in written.parent.iterdir()] == ["report.html"]


def test_nothing_is_loaded_from_elsewhere(written):
    text = written.read_text(encoding="utf-8")
    parsed = Parsed(text)
    for tag, attributes in parsed.elements:
        for name, value in attributes.items():
            if name in LOADING and value:
                assert value.startswith(("data:", "#")), (tag, name, value[:80])
            if name == "style" and value:
                assert "url(" not in value
    assert not [tag for tag, _ in parsed.elements if tag in ("link", "iframe", "object", "embed", "base")]
    styles = re.search(r"<style>(.*?)</style>", text, re.DOTALL).group(1)
    assert "url(" not in styles
    assert "@import" not in styles
    (policy,) = [
        attributes["content"]
        for _, attributes in parsed.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert "*" not in policy


def test_names_cannot_break_out_of_the_page(written):
    text = written.read_text(encoding="utf-8")
    parsed = Parsed(text)
    assert NASTY in parsed.text
    assert "alert(1)</script>" not in text
    # The view's data, NiiVue, and the page's own script: nothing else.
    assert sum(tag == "script" for tag, _ in parsed.elements) == 3


def test_names_of_structures_and_warnings_are_escaped(make_result):
    result = make_result()
    volumes = [replace(volume, name=f"<i>{volume.name}") for volume in result.labels.volumes]
    labels = replace(result.labels, volumes=volumes)
    diagnostics = {**result.diagnostics, "alignment": "<u>none", "<s>key": 3, "versions": {"<em>": "1"}}
    text = render_report(replace(result, labels=labels, diagnostics=diagnostics, warnings=["<script>bad()"]))
    for tag in ("<u>none", "<s>key", "<em>", "<script>bad", "<i>left", "<i>Left"):
        assert tag not in text


def test_every_diagnostic_may_be_missing(make_result):
    full = make_result()
    bare = replace(full, labels=None, modes=[], diagnostics={}, warnings=[])
    parsed = Parsed(render_report(bare))
    sections = [attributes["id"] for tag, attributes in parsed.elements if tag == "section"]
    assert sections == ["slices", "interactive", "trust", "diagnostics", "files"]
    assert "Not fully measured" in parsed.text
    assert "displacement.nii.gz" in parsed.text
    for name in ("labels.nii.gz", "volumes.csv", "modes/"):
        assert name not in parsed.text
    for key in full.diagnostics:
        diagnostics = {name: value for name, value in full.diagnostics.items() if name != key}
        assert "nan" not in page.verdict(diagnostics, page.find(bare), []).sentence


def test_khat_above_the_limit_is_said_on_the_page(make_result):
    result = make_result()
    result.diagnostics["khat"] = 0.93
    text = Parsed(render_report(result)).text
    assert "Pareto k̂ is 0.93. Above 0.7, weighted averages settle too slowly to be trusted." in text
    result.diagnostics["khat"] = float("inf")
    assert "Too few different weights" in Parsed(render_report(result)).text


def test_without_the_viewer_the_rest_is_there(make_result, monkeypatch, caplog):
    monkeypatch.setattr(page, "niivue_script", lambda: None)
    parsed = Parsed(render_report(make_result()))
    assert "without the package nilearn" in parsed.text
    assert not [tag for tag, _ in parsed.elements if tag == "script"]
    assert "no interactive view" in caplog.text


def test_degenerate_volumes_still_make_a_page(make_result):
    """Constant images, no brain, no spread, NaN, one slice thick: a page, not a crash."""
    shape = (9, 8, 1)
    zero = np.zeros(shape, np.float32)
    labels = LabelResult(zero.astype(np.int32), zero + 1, zero, [])
    field = np.zeros((3, *shape), np.float32)
    flat = RegistrationResult(
        "a",
        "b",
        Grid(shape, np.diag([2.0, 2.0, 5.0, 1.0])),
        alignment=np.eye(4),
        fixed=zero,
        moving=zero,
        warped=zero + np.nan,
        displacement=field,
        std=zero,
        std_axes=field,
        log_jacobian=zero,
        fold_probability=zero,
        brain=zero > 0,
        labels=labels,
    )
    text = Parsed(render_report(flat)).text
    assert "All samples are the same" in text


def test_a_fine_grid_is_resampled_and_says_so(make_result):
    result = make_result()
    grid = Grid(result.grid.shape, np.diag([0.25, 0.25, 0.25, 1.0]) @ result.grid.affine)  # 1 mm
    text = Parsed(render_report(replace(result, grid=grid, labels=None, modes=[]))).text
    assert "the volumes here are resampled to 2 × 2 × 2 mm" in text
    assert "resampled to" not in Parsed(render_report(replace(result, labels=None, modes=[]))).text


def test_the_same_result_gives_the_same_page(make_result):
    result = replace(make_result(), labels=None, modes=[])
    assert render_report(result) == render_report(result)


def test_a_failed_report_leaves_no_file(make_result, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(DataError, match="disk full"):
        write_report(replace(make_result(), labels=None, modes=[]), tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []
