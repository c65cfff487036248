"""Debian's Chromium, driven without a window."""

import base64
import shutil
from contextlib import contextmanager

from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from tests.server.server import eventually

PROGRAM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# Makes a file of base64 in the page and lets go of it there, as a drop or as a paste.
HAND_OVER = """
const [kind, name, type, content] = arguments;
const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
const data = new DataTransfer();
data.items.add(new File([bytes], name, {type}));
const event = kind === "drop" ? new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true})
                              : new ClipboardEvent("paste", {clipboardData: data, bubbles: true});
document.body.dispatchEvent(event);
"""


@contextmanager
def chromium(width=1000, height=800, scheme="light"):
    """A browser that keeps its console, with a window of this size and a light or dark scheme."""
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAM
    # A sandbox in a container, or for root, needs what is not given there; the only page it sees is ours.
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    # Certificates of tests are signed by nobody.
    options.accept_insecure_certs = True
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(DRIVER))
    try:
        # A window can't be as narrow as a phone.
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        yield driver
    finally:
        driver.quit()


def hand_over(driver, kind, name, media_type, content):
    """Drop or paste a file on the page."""
    driver.execute_script(HAND_OVER, kind, name, media_type, base64.b64encode(content).decode())


def complaints(driver):
    """What the console holds of the script and the policy; not of answers that are errors."""
    return [entry for entry in driver.get_log("browser") if entry["source"] != "network"]


def findings(driver):
    """What axe-core finds that some people can't use: the rule and the elements."""
    violations = Axe().run(driver)["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in violations]


def card(page, name):
    """The answer to a file, once it is there: its lines."""

    def answered():
        found = page.find_elements(By.CSS_SELECTOR, f'.card[data-name="{name}"]:not([aria-busy])')
        return found[0] if found else None

    assert eventually(answered)
    return answered()
