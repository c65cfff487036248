import json
import math
from dataclasses import replace
from html.parser import HTMLParser

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.load.measure import row
from ensemble_capacity.load.report import NOT_MEASURED, Report, bars, lines, page
from ensemble_capacity.load.server import Figures
from packages.capacity.tests.load.loads import made, target

PARTS = {"queue": 100.0, "compute_input": 200.0, "compute_infer": 4000.0, "compute_output": 50.0}
FIGURES = Figures(
    2.0, {"server <1>": 0.4}, {"server <1>": 120.0}, 30.0, PARTS, {1: 5, 8: 2}, [(0.5, 2, 9), (1.5, 0, 3)]
)


def a_row(mode, took_s=0.01, figures=FIGURES, **more):
    found = made(*((n / 50, n / 50, n / 50 + took_s, 200 if n else 503, 0) for n in range(100)))
    more = {"stable": True, "first_error": "503 full", "stages_ms": {"queue": 0.5}, **more}
    return row(
        found, 0.0, 2.0, target("http://127.0.0.1:9", batch=2), mode, percentile=99, cpu_s=0.1, server=figures, **more
    )


ROWS = [a_row(Closed(8), 0.02), a_row(Arrivals(50)), a_row(Arrivals(25), 0.03, Figures(), stable=False)]


def report(**more):
    return Report("http://127.0.0.1:9", "classify", ROWS, **{"date": "today", "machine": "here", **more})


def test_the_json_is_json_and_has_everything():
    told = json.loads(Report("u", "p", [a_row(Closed(1), math.nan)]).json())
    assert (told["url"], told["protocol"], told["found"]) == ("u", "p", None)
    [one] = told["rows"]
    assert one["percentiles_ms"]["p99"] is None
    assert one["server"]["batches"] == {"1": 5, "8": 2}
    assert one["outcomes"] == {"200": 99, "503": 1}


def test_what_is_said_below_the_table():
    told = "\n".join(report(slo_ms=50.0, found=1).remarks())
    assert "50/s: 99 200, 1 503; the first failure: 503 full" in told
    assert "energy at 50/s: 0.152 J per image" in told
    assert "50.0 requests/s is the highest rate found at which p99 is at most 50 ms" in told
    silent = replace(report().rows[0], requests=0, shed=0.5, top1=None)
    told = "\n".join(Report("http://h", "classify", [silent]).remarks())
    assert "no request that was due in the time that was measured was answered" in told
    assert "0.00% lack a member, 50.00% were made by fewer members because of the load" in told
    told = "\n".join(report(slo_ms=5.0).remarks())
    assert f"energy at 25/s: {NOT_MEASURED}" in told
    assert "no rate was found at which p99 is at most 5 ms" in told


class Page(HTMLParser):
    """What is open, and what there was."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_fetches_nothing():
    parser = Page()
    text = page(report(slo_ms=25.0, found=1))
    parser.feed(text)
    parser.close()
    assert parser.open == []
    tags = [tag for tag, _ in parser.seen]
    assert "script" not in tags
    assert not {"src", "href"} & {name for _, attributes in parser.seen for name in attributes}
    assert tags.count("details") == 3
    assert [("open" in attributes) for tag, attributes in parser.seen if tag == "details"] == [False, True, False]
    words = " ".join(parser.text)
    for title in ("Latency against rate", "Outcomes by code", "queue", "Nodes", "Batch sizes", "CPU", "Memory"):
        assert title in words
    assert "server <1>" in words
    # Of the load without figures: queue, nodes' statistics, batches, memory and energy.
    assert words.count(NOT_MEASURED) >= 5


def test_charts_of_nothing_say_so_and_one_point_is_a_chart():
    assert NOT_MEASURED in lines({"a": [(1, math.nan)]}, "x", "y")
    assert NOT_MEASURED in bars({}, "ms")
    assert "<svg" in lines({"a": [(1.0, 0.0)]}, "x", "y")
    drawn = lines({"$a$": [(1.0, 3.0), (2.0, 700.0)]}, "x", "y", 50.0, log=True)
    assert "limit" in drawn
    assert "$a$" in drawn
