"""The report in a real browser: headless Chromium."""

from __future__ import annotations

import io
import re
import shutil
import time
from collections.abc import Callable, Iterator

import matplotlib.image
import numpy as np
import pytest


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


def wait(condition: Callable[[], object], what: str, seconds: float = 300.0) -> None:
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
