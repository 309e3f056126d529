"""The report as a file, and in a real browser."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from scripts.io.grid import Grid
from scripts.report import page, tiles
from scripts.report.page import render_report, write_report
from scripts.summary.result import LabelResult, RegistrationResult

NASTY = "sub-<b>'\"&amp;</script><script>alert(1)</script> Übung 脳"
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


@pytest.fixture(scope="module")
def written(make_result, tmp_path_factory) -> Path:
    """A report with everything in it, under a name that needs quoting."""
    path = tmp_path_factory.mktemp("a report") / "später 1" / "report.html"
    write_report(replace(make_result(), moving_name=NASTY), path)
    return path


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
        "torch 2.13.0",
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
    with pytest.raises(OSError, match="disk full"):
        write_report(replace(make_result(), labels=None, modes=[]), tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def browser(written) -> Iterator:
    """Headless Chromium with the page open and its interactive view ready."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("Chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    # WebGL in software, so that the test needs no graphics card, with few pixels; no network at all.
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader", "--window-size=1000,800",
        "--force-device-scale-factor=0.5", "--host-resolver-rules=MAP * ~NOTFOUND",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options=options, service=webdriver.ChromeService(driver)) as chrome:
        chrome.get(written.as_uri())
        chrome.execute_script("document.getElementById('viewer').scrollIntoView()")
        wait(lambda: chrome.execute_script("return window.reportViewer.ready"), "the view to start")
        yield chrome


def wait(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def picture(browser) -> np.ndarray:
    canvas = browser.find_element("id", "viewer-canvas")
    return matplotlib.image.imread(io.BytesIO(canvas.screenshot_as_png), format="png")[..., :3]


def press(browser, selector: str) -> None:
    """Press a button of the view and wait until its volumes are drawn."""
    before = browser.execute_script("return window.reportViewer.frames")
    browser.find_element("css selector", selector).click()
    wait(lambda: browser.execute_script("return window.reportViewer.frames") > before, selector)


def test_browser_shows_the_view(browser):
    pixels = picture(browser)
    assert pixels.shape[0] > 200
    assert (pixels.max(-1) > 0.3).mean() > 0.05  # brains on black
    assert "uncertainty:" in browser.find_element("id", "viewer-readout").text
    # The page fits: nothing makes it scroll sideways.
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    broken = "return Array.from(document.images).filter(image => !image.naturalWidth).length"
    assert browser.execute_script(broken) == 0


def test_browser_scrolls_through_slices(browser):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    canvas = browser.find_element("id", "viewer-canvas")
    where = "return Array.from(window.reportViewer.nv.frac2vox(window.reportViewer.nv.scene.crosshairPos))"
    origin = ScrollOrigin.from_element(canvas, -250, 0)  # over the axial slice

    # Before a click, the wheel belongs to the page.
    browser.execute_script("document.activeElement.blur()")
    voxel = browser.execute_script(where)
    ActionChains(browser).scroll_from_origin(origin, 0, 40).perform()
    assert browser.execute_script(where) == voxel

    browser.execute_script("document.getElementById('viewer').scrollIntoView()")
    ActionChains(browser).move_to_element_with_offset(canvas, -250, 0).click().perform()
    before, voxel = picture(browser), browser.execute_script(where)
    for _ in range(4):
        ActionChains(browser).scroll_from_origin(origin, 0, 100).perform()
    wait(lambda: abs(browser.execute_script(where)[2] - voxel[2]) >= 4, "four axial slices")
    assert np.abs(picture(browser) - before).mean() > 0.002
    # Its slider went along.
    slider = browser.find_element("css selector", "input[data-axis='2']")
    assert float(slider.get_attribute("value")) == pytest.approx(browser.execute_script(where)[2], abs=0.5)


def test_browser_moves_by_slider(browser):
    before = picture(browser)
    script = (
        "const s = document.querySelector(\"input[data-axis='1']\"); s.value = 14; s.dispatchEvent(new Event('input'))"
    )
    browser.execute_script(script)
    where = "return Math.round(window.reportViewer.nv.frac2vox(window.reportViewer.nv.scene.crosshairPos)[1])"
    wait(lambda: browser.execute_script(where) == 14, "the coronal slice")
    assert np.abs(picture(browser) - before).mean() > 0.002


def test_browser_switches_overlays_and_images(browser):
    press(browser, "button[data-overlay='none']")
    press(browser, "button[data-background='fixed']")
    seen = {"none": picture(browser)}
    keys = [
        button.get_attribute("data-overlay") for button in browser.find_elements("css selector", "button[data-overlay]")
    ]
    assert keys == ["none", "uncertainty", "after", "before", "jacobian", "labels", "entropy"]
    for key in keys[1:]:
        press(browser, f"button[data-overlay='{key}']")
        pixels = picture(browser)
        assert all(np.abs(pixels - other).mean() > 1e-4 for other in seen.values()), key
        seen[key] = pixels
        pressed = browser.find_elements("css selector", "button[data-overlay][aria-pressed='true']")
        assert [button.get_attribute("data-overlay") for button in pressed] == [key]
    press(browser, "button[data-overlay='none']")
    np.testing.assert_allclose(picture(browser), seen["none"], atol=0.02)
    press(browser, "#viewer-blink")
    assert np.abs(picture(browser) - seen["none"]).mean() > 1e-3
    press(browser, "button[data-background='moving']")
    assert np.abs(picture(browser) - seen["none"]).mean() > 1e-3


def test_browser_goes_to_the_most_uncertain_place(browser):
    press(browser, "button[data-overlay='uncertainty']")
    browser.find_element("id", "viewer-peak").click()
    text = browser.find_element("id", "viewer-readout").text.replace("−", "-")
    right, anterior, superior, value = (float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text))
    assert (right, anterior, superior) == pytest.approx((-40, 45, 20), abs=10)
    assert value > 2.0


def test_browser_has_the_left_on_the_left(browser):
    """The uncertainty was put into the left front: the hot spot lies in the upper left of the axial slice."""
    press(browser, "button[data-overlay='none']")
    plain = picture(browser)
    press(browser, "button[data-overlay='uncertainty']")
    browser.find_element("id", "viewer-peak").click()
    hot = picture(browser)
    tile = "return window.reportViewer.nv.screenSlices.filter(s => s.axCorSag === 0)[0].leftTopWidthHeight"
    left, top, width, height = (int(value) for value in browser.execute_script(tile))
    axial = hot[top : top + height, left : left + width]
    bright = (axial[..., 0] > 0.85) & (axial[..., 1] > 0.5) & (axial[..., 2] < 0.7)
    rows, columns = np.nonzero(bright)
    assert len(rows) > 20
    assert columns.mean() < width / 2
    assert rows.mean() < height / 2
    assert plain.shape == hot.shape


def test_browser_console_is_silent_and_nothing_was_fetched(browser):
    messages = [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    assert messages == []
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert [name for name in fetched if not name.startswith(("data:", "blob:"))] == []
