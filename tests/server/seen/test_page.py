"""The page at `/` in a real browser: what a person sees."""

import io
import re

import httpx
import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.conftest import ROOT
from tests.server.seen import browser
from tests.server.seen.conftest import CAT, MEMBERS, SIX
from tests.server.server import eventually, post

pytestmark = pytest.mark.skipif(not (browser.PROGRAM and browser.DRIVER), reason="no chromium and chromedriver")

HEIGHTS = "return [...document.querySelectorAll('#history rect')].map((bar) => bar.height.baseVal.value)"
# What does not fit into the width of the window.
WITHOUT_AUDIT = """
const whole = window.fetch;
window.looks = 0;
window.fetch = async (...asked) => {
  const answer = await whole(...asked);
  if (asked[0] !== "/stats") return answer;
  const stats = await answer.json();
  for (const each of Object.values(stats.rollout.cascade)) delete each.differs;
  window.looks += 1;
  return new Response(JSON.stringify(stats));
};
"""
WIDE = """
const width = document.documentElement.clientWidth;
return document.documentElement.scrollWidth <= width ? [] : [...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > width).map((each) => each.outerHTML.slice(0, 100));
"""


# The part of a photograph that is the same for every answer: all above the answer, or all above the figures.
SAME = {"classify": (0, 0, 1000, 560), "live": (0, 0, 1000, 65)}


@pytest.fixture(scope="module")
def chromium(server):
    with browser.chromium() as driver:
        yield driver


@pytest.fixture
def page(chromium, server):
    chromium.get(server.url)
    # An answer is described by what the server says of itself, which a page asks for first.
    assert eventually(lambda: not chromium.find_element(By.ID, "about").get_property("hidden"))
    yield chromium
    assert browser.complaints(chromium) == []


def test_a_dropped_cat(page, jaeger, server):
    browser.hand_over(page, "drop", "cat.jpg", "image/jpeg", CAT)
    seen = browser.card(page, "cat.jpg")
    answer = post(server, CAT, members="true", top_k=5).json()
    # Which tenth of a percent it is depends on how the processor multiplies integers.
    assert seen.find_element(By.CLASS_NAME, "label").text.startswith(f"cat {100 * answer['probability']:.1f} %")
    rows = seen.find_elements(By.CSS_SELECTOR, ".shares tbody tr")
    assert [row.find_element(By.TAG_NAME, "th").text for row in rows] == [entry["label"] for entry in answer["top"]]
    heads = [head.text for head in seen.find_elements(By.CSS_SELECTOR, ".shares thead th")]
    assert heads == ["class", "ensemble", *MEMBERS]
    # Each bar is as long as what is written beside it.
    expected = [answer["probability"], *(answer["members"][name]["probability"] for name in MEMBERS)]
    bars = rows[0].find_elements(By.CSS_SELECTOR, ".bar")
    for bar, share in zip(bars, expected, strict=True):
        assert bar.text == f"{100 * share:.1f} %"
        track, fill = bar.find_element(By.TAG_NAME, "i"), bar.find_element(By.TAG_NAME, "b")
        assert fill.size["width"] == pytest.approx(share * track.size["width"], abs=2)
    stages = [stage.text for stage in seen.find_elements(By.CSS_SELECTOR, ".waterfall th")]
    assert stages == ["queue", "decode", "predict resnet", "predict densenet", "combine", "label"]
    told = seen.find_element(By.CLASS_NAME, "told").text
    assert "mean of 2 members" in told
    assert "resnet 2, densenet 2" in told
    assert "Asked\nresnet, densenet" in told
    if jaeger is not None:
        link = seen.find_element(By.CSS_SELECTOR, ".told a")
        assert link.get_attribute("href") == f"{jaeger.url}/trace/{link.text}"
        assert eventually(lambda: jaeger.get(f"/api/v3/traces/{link.text}"))
    assert f"cat.jpg: cat, {100 * answer['probability']:.1f} %" in page.find_element(By.ID, "said").get_attribute(
        "textContent"
    )


def test_a_dropped_text_says_why_not(page):
    browser.hand_over(page, "drop", "words.txt", "text/plain", b"no image")
    browser.hand_over(page, "drop", "words.jpg", "image/jpeg", b"no image")
    assert "This file is no image." in browser.card(page, "words.txt").text
    assert "no image that can be read" in browser.card(page, "words.jpg").text


def test_pasted_and_picked_several_at_once(page):
    browser.hand_over(page, "paste", "pasted.jpg", "image/jpeg", CAT)
    assert "cat" in browser.card(page, "pasted.jpg").text
    files = [ROOT / "tests" / "cat.jpg", ROOT / "README.md"]
    page.find_element(By.ID, "pick").send_keys("\n".join(map(str, files)))
    assert "cat" in browser.card(page, "cat.jpg").find_element(By.CLASS_NAME, "label").text
    assert "no image" in browser.card(page, "README.md").text
    assert page.find_element(By.ID, "camera").get_attribute("capture") == "environment"
    page.find_element(By.ID, "clear").click()
    assert page.find_elements(By.CLASS_NAME, "card") == []


def test_the_live_view_by_keyboard(page, server):
    post(server, CAT)
    page.find_element(By.ID, "tab-classify").send_keys(Keys.ARROW_RIGHT)
    assert page.switch_to.active_element.get_attribute("id") == "tab-live"
    assert page.find_element(By.ID, "tab-live").get_attribute("aria-selected") == "true"
    assert not page.find_element(By.ID, "classify").is_displayed()

    def text(identifier):
        # At once: what is drawn is drawn anew each second.
        return page.execute_script("return document.getElementById(arguments[0]).innerText", identifier)

    def drawn():
        heights = page.execute_script(HEIGHTS)
        return any(heights) and all(name in text("members") for name in MEMBERS)

    assert eventually(drawn)
    assert "ms" in text("p99")
    assert "ok" in text("outcomes")
    deployments = [each["name"] for each in server.content["applications"][0]["deployments"]]
    # Serve's controller is asked every other second.
    assert eventually(lambda: all(f"{d}\t1 running" in text("replicas") for d in deployments)), text("replicas")


def test_a_server_that_is_away_is_told_in_words(page):
    conditions = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    page.execute_cdp_cmd("Network.enable", {})
    page.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    browser.hand_over(page, "drop", "cat.jpg", "image/jpeg", CAT)
    assert "can't be reached" in browser.card(page, "cat.jpg").text
    conditions |= {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    page.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    browser.hand_over(page, "drop", "again.jpg", "image/jpeg", CAT)
    assert re.search(r"\ncat 99\.[0-2] %\n", browser.card(page, "again.jpg").text)


def test_what_it_recognizes_is_there_before_and_a_sample_is_a_click_away(page, server):
    about = page.find_element(By.ID, "about")
    assert eventually(about.is_displayed)
    assert "Answers: mean of 2 members, of which 2 must answer." in about.text
    rows = [row.text for row in about.find_elements(By.CSS_SELECTOR, "tbody tr")]
    assert rows == [f"{name} 1 2 openvino" for name in MEMBERS]
    labels = httpx.get(f"{server.url}/page/about").json()["classes"]
    assert sorted(each.text for each in about.find_elements(By.TAG_NAME, "li")) == sorted(labels)
    page.find_element(By.CSS_SELECTOR, ".sample").send_keys(Keys.ENTER)
    seen = browser.card(page, "cat.jpg")
    assert seen.find_element(By.CLASS_NAME, "label").text.startswith("cat")
    # Without feedback nobody is asked what it truly is.
    assert not seen.find_elements(By.CLASS_NAME, "question")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_six_members_on_a_telephone(six, scheme):
    """With a cascade, a canary, a shadow, feedback and a cache; axe-core finds nothing."""
    with browser.chromium(390, 844, scheme) as page:
        page.get(six.url)
        browser.hand_over(page, "drop", "cat.jpg", "image/jpeg", CAT)
        seen = browser.card(page, "cat.jpg")
        # The answer is on the screen, and the description of the server has made room for it.
        top = "return document.querySelector('.label').getBoundingClientRect().top"
        assert 0 <= page.execute_script(top) < 844
        about = page.find_element(By.ID, "about")
        about.find_element(By.TAG_NAME, "summary").click()
        assert "cascade: member-a, then member-b below 0.9," in about.text
        cells = seen.find_elements(By.CSS_SELECTOR, ".shares tr:first-child td")
        shown = [cell.get_attribute("data-name") for cell in cells]
        assert shown == ["ensemble", *SIX[:-1]]
        assert "Asked\n" + ", ".join(SIX) in seen.text
        assert page.execute_script(WIDE) == []
        assert browser.findings(page) == []
        wrong = seen.find_elements(By.CSS_SELECTOR, ".question button")[1]
        wrong.send_keys(Keys.ENTER)
        assert page.switch_to.active_element.get_attribute("aria-label") == "What is it?"
        page.switch_to.active_element.send_keys("level4", Keys.ENTER)
        assert eventually(lambda: "Noted as level4." in seen.text)

        page.find_element(By.ID, "tab-live").click()
        panels = page.find_element(By.ID, "live")
        # The request above is of a second that has ended by then.
        assert eventually(lambda: page.find_elements(By.CSS_SELECTOR, "[data-name=far] rect"))
        # A member that is missing is a red column.
        fills = "return [...document.querySelectorAll('[data-name=far] rect')].map((bar) => getComputedStyle(bar).fill)"
        red = {"light": "rgb(179, 38, 30)", "dark": "rgb(255, 157, 149)"}[scheme]
        assert set(page.execute_script(fills)) == {red}
        for words in ("Cascade", "member-a, canary", "goes on", "ghost and ensemble", "exit far"):
            assert eventually(lambda words=words: words in panels.text), (words, panels.text)
        assert page.execute_script(WIDE) == []
        assert browser.findings(page) == []
        ground = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(246, 247, 248)", "dark": "rgb(17, 22, 27)"}[scheme]
        # A server without an audit leaves its figures out.
        page.execute_script(WITHOUT_AUDIT)
        assert eventually(lambda: page.execute_script("return window.looks") > 1)
        audited = "return [...document.querySelectorAll('#cascade tr td:last-child')].map((cell) => cell.textContent)"
        assert set(page.execute_script(audited)) == {"\u2013"}
        assert not page.find_element(By.ID, "state").is_displayed()
        assert browser.complaints(page) == []


def test_the_interfaces_page(chromium, server):
    chromium.get(f"{server.url}/docs")
    assert eventually(lambda: "/classify" in chromium.find_element(By.TAG_NAME, "body").text)
    assert browser.complaints(chromium) == []


def test_every_answer_says_where_its_time_went(server):
    answer = post(server, CAT, timings="true")
    stages = [timing["stage"] for timing in answer.json()["timings"]]
    told = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert list(told) == ["total", *(stage.replace(" ", "-") for stage in stages)]
    for timing in answer.json()["timings"]:
        assert float(told[timing["stage"].replace(" ", "-")]) == timing["duration_ms"]
    assert "timings" not in post(server, CAT).json()
    refused = httpx.post(f"{server.url}/classify", content=b"x", headers={"Content-Type": "text/plain"})
    assert refused.headers["server-timing"].startswith("total;dur=")


@pytest.mark.parametrize(
    ("name", "scheme", "view"),
    [("page-light", "light", "classify"), ("page-live", "dark", "live")],
)
def test_the_documentation_shows_this_page(server, name, scheme, view):
    for _ in range(20):
        post(server, CAT)
    with browser.chromium(1000, 1000, scheme) as page:
        page.get(server.url)
        browser.hand_over(page, "drop", "cat.jpg", "image/jpeg", CAT)
        browser.card(page, "cat.jpg")
        page.find_element(By.ID, f"tab-{view}").click()
        assert eventually(lambda: view == "classify" or page.find_elements(By.CSS_SELECTOR, "#history rect"))
        taken = Image.open(io.BytesIO(page.get_screenshot_as_png()))
    file = ROOT / "docs" / "images" / f"{name}.png"
    before, now = (blocks(image.crop(SAME[view])) for image in (Image.open(file), taken))
    if np.abs(before - now).max() > 25:
        taken.quantize(64).save(file, optimize=True)
        pytest.fail(f"the page has changed, and {file} with it: look at the photograph, and commit it")


def blocks(image):
    """The mean brightness of squares of 20 pixels, 0 to 255."""
    return np.asarray(image.convert("L").resize((image.width // 20, image.height // 20), Image.Resampling.BOX), float)
