"""The pictures are drawn from the figures that stand in the documentation."""

import re
from xml.etree import ElementTree

import pytest

from lab.pictures import diagrams, figures
from lab.pictures.chart import Bar, Chart
from tests.conftest import ROOT

IMAGES = ROOT / "docs" / "images"
DRAWN = {**figures.charts(), **diagrams.diagrams()}


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_is_not_older_than_its_figures(name):
    assert (IMAGES / f"{name}.svg").read_text() == DRAWN[name].svg(), "run `ensemble pictures`"


@pytest.mark.parametrize("file", sorted(IMAGES.glob("*.svg")), ids=lambda file: file.name)
def test_a_picture_has_a_title_and_a_dark_form_and_a_page(file):
    text = file.read_text()
    assert ElementTree.fromstring(text).find("{http://www.w3.org/2000/svg}title") is not None
    assert "prefers-color-scheme:dark" in text
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"images/{file.name})" in page.read_text() for page in pages)


def test_bars_are_sorted_with_ours_marked_and_inside_the_picture():
    bars = [Bar("other", 2, "2"), Bar("this <one>", 3, "3", ours=True, interval=(2.5, 4))]
    text = Chart("Rate", "here", [("", bars)]).svg()
    assert text.index("this &lt;one&gt;") < text.index("other")
    assert len(re.findall('class="bar ours"', text)) == 1
    assert max(float(x) for x in re.findall(r'H([\d.]+)"', text)) < 840


def test_the_least_is_first_where_less_is_better():
    bars = [Bar("much", 2, "2"), Bar("little", 1, "1")]
    text = Chart("Time", "here", [("", bars)], ascending=True).svg()
    assert text.index("little") < text.index("much")
