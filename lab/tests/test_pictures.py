"""The pictures are drawn from the figures that stand in the documentation."""

import itertools
import json
import re
from xml.etree import ElementTree

import pytest

from lab import pictures
from lab.pictures import DOCS, IMAGES, OURS, Bar, Chart
from tests.conftest import ROOT

DRAWN = pictures.charts()


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


def texts(svg):
    return [each.text for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_bars_are_in_order_with_ours_marked_on_an_axis_from_nought():
    bars = [Bar("other", 2, "2 of them"), Bar("this <one>", 3, "3 of them", ours=True)]
    svg = Chart("Rate", "here", [("", bars)]).svg()
    words = texts(svg)
    assert words.index("other") < words.index("this <one>")
    assert svg.count(f'style="fill: {OURS}') == 1
    assert "0.0" in words


def test_bars_stay_in_their_order():
    words = texts(Chart("Rate", "", [("", [Bar("clients: 1", 2, "two"), Bar("clients: 8", 9, "nine")])]).svg())
    assert words.index("clients: 1") < words.index("clients: 8")


def test_a_long_label_and_a_long_value_are_whole():
    label, value = "a label of very many words, which is longer than any other label", "a value that is as long as that"
    chart = Chart(f"{label}, {label}, {label}", f"{value}, {value}, {value}, {value}", [("", [Bar(label, 2, value)])])
    figure = chart.figure()
    figure.draw_without_rendering()
    width, _ = figure.canvas.get_width_height()
    [axes] = figure.axes
    for text in (*figure.texts, *axes.get_yticklabels(), *axes.texts):
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= width


def table(page, heading):
    """The rows of a page's first table whose head begins with this text, without their formatting."""
    lines = (DOCS / page).read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first + 2 :])
    return [[re.sub(r"\*\*|\\\*", "", cell).strip() for cell in row.strip("|").split(" | ")] for row in rows]


def test_the_table_of_photographs_has_the_stored_figures():
    stored = json.loads((DOCS / "benchmarks" / "photographs.json").read_text())
    measured = {(row["system"], row["placement"], row["clients"]): row for row in stored if row["protocol"] != "grpc"}
    page = {name: cells for name, *cells in table("benchmarks/servers.md", "server")}
    shown = {system: name for system, name in pictures.SYSTEMS.items() if (*system, 1) in measured}
    assert set(shown.values()) == page.keys()
    for system, name in shown.items():
        one, eight, many = (measured[*system, clients] for clients in (1, 8, 32))
        rates = [f"{row['requests_per_s']:.0f}" for row in (eight, many)]
        memory = f"{many['resident_mb']:,.0f}" if many["resident_mb"] else ""
        assert page[name] == [f"{one['p50_ms']:.1f}", *rates, f"{many['server_cpu_ms_per_request']:.1f}", memory]
