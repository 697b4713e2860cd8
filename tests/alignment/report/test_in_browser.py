"""The report in a real browser: at the widths of a desk and of a telephone, by mouse, by keyboard, and without
scripts.

MSLSQ_BROWSER names the executable of a Chromium; common names are looked for without it.
"""

import os
import shutil
from pathlib import Path

import pytest

from mslsq.alignment import align, coregister, synthetic

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow

NAMES = ("chromium", "chromium-browser", "google-chrome")
WIDTHS = {"desk": 1280, "telephone": 390}


@pytest.fixture(scope="module")
def browser():
    found = os.environ.get("MSLSQ_BROWSER") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser: set MSLSQ_BROWSER to a Chromium")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Three maps, one of which has a name that is mark-up and cannot be placed."""
    pair = synthetic.make_pair("camera", "translation", seed=1, size=128)
    maps = [pair.reference, pair.moving, 0 * pair.moving]
    names = ["a.png", "b " + "long " * 30 + ".png", "<script>alert(1)</script>.png"]
    path = tmp_path_factory.mktemp("report") / "report.html"
    return align(maps, model="translation").report(path, maps, names=names, options={"model": "translation"})


@pytest.fixture(scope="module")
def elevation_file(tmp_path_factory):
    """The page of an elevation model that is moved by two pixels."""
    terrain = 500 * synthetic.base_raster("elevation")[:160, :160]
    reference, dem = terrain[2:130, 2:130], terrain[:128, :128]
    found = coregister(reference, dem, pixel_size=30.0)
    return found.report(tmp_path_factory.mktemp("elevation") / "report.html", reference, dem)


def opened(browser, file: Path, width: int, **options):
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    return page, said, asked


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_the_page_has_no_errors_asks_for_nothing_and_fits(browser, page_file, width, colours):
    page, said, asked = opened(browser, page_file, width, color_scheme=colours)
    for details in page.query_selector_all("details"):
        details.evaluate("one => { one.open = true; }")
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page_file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0 && image.alt)")
    names = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(set(names)) == len(names)
    assert "<script>alert(1)</script>.png" in page.inner_text("table")
    page.context.close()


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_page_of_an_elevation_model_fits_and_swaps_its_pictures(browser, elevation_file, width):
    page, said, asked = opened(browser, elevation_file, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0 && image.alt)")
    page.click("text=Hillshades of reference and model")
    assert page.inner_text(".tag.left") == "reference" and page.inner_text(".tag.right") == "model"
    assert said == [] and [url for url in asked if not url.startswith("data:")] == [elevation_file.as_uri()]
    page.context.close()


def test_the_swipe_follows_mouse_and_keyboard(browser, page_file):
    page, said, _ = opened(browser, page_file, WIDTHS["desk"])
    swipe = page.query_selector(".swipe")
    swipe.scroll_into_view_if_needed()
    at = lambda: swipe.evaluate("one => getComputedStyle(one).getPropertyValue('--at')")  # noqa: E731
    assert at() == "50%"
    box = swipe.bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 50, steps=4)
    page.mouse.up()
    assert abs(float(at().rstrip("%")) - 80) <= 2
    before = float(at().rstrip("%"))
    page.keyboard.press("ArrowLeft")
    assert float(at().rstrip("%")) == before - 1
    page.keyboard.press("Home")
    assert at() == "0%"
    clip = swipe.query_selector_all("figure")[1].evaluate("one => getComputedStyle(one).clipPath")
    assert clip == "inset(0px 0px 0px 0%)"
    assert "after" in swipe.query_selector("input").get_attribute("aria-valuetext") or at() == "0%"
    grey, flicker = page.query_selector_all(".tools button")[:2]
    first = page.query_selector(".swipe img").get_attribute("src")
    grey.click()
    assert page.query_selector(".swipe img").get_attribute("src") != first
    assert swipe.query_selector(".tag").inner_text() == "reference"
    flicker.click()
    page.wait_for_timeout(1200)  # a turn a second
    assert at() == "100%"
    assert said == []
    page.context.close()


def test_without_scripts_both_pictures_stand_there(browser, page_file):
    page, _, _ = opened(browser, page_file, WIDTHS["telephone"], java_script_enabled=False)
    for figure in page.query_selector_all(".swipe figure"):
        assert figure.is_visible()
    assert not page.query_selector(".swipe input").is_visible()
    assert not page.query_selector(".tools").is_visible()
    page.context.close()
