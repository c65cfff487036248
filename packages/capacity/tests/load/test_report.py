import json
import math
from dataclasses import replace
from types import SimpleNamespace

from ensemble_capacity.load.load import Arrivals, Closed
from ensemble_capacity.load.machine import Figures
from ensemble_capacity.load.measure import row
from ensemble_capacity.load.report import Report
from ensemble_models.options import write_files
from packages.capacity.tests.load.loads import made, target

FIGURES = Figures(2.0, {"server <1>": 0.4}, {"server <1>": 120.0})


def a_row(mode, took_s=0.01, figures=FIGURES, **more):
    found = made(*((n / 50, n / 50, n / 50 + took_s, 200 if n else 503, 0) for n in range(100)))
    more = {"stable": True, "first_error": "503 full", **more}
    return row(
        found, 0.0, 2.0, target("http://127.0.0.1:9", batch=2), mode, percentile=99, cpu_s=0.1, server=figures, **more
    )


ROWS = [a_row(Closed(8), 0.02), a_row(Arrivals(50)), a_row(Arrivals(25), 0.03, Figures(), stable=False)]


def report(**more):
    return Report("http://127.0.0.1:9", "classify", ROWS, **{"date": "today", "machine": "here", **more})


def test_the_json_is_json_and_has_everything(tmp_path):
    write_files(SimpleNamespace(json=tmp_path / "t.json"), None, Report("u", "p", [a_row(Closed(1), math.nan)]))
    told = json.loads((tmp_path / "t.json").read_text())
    assert (told["url"], told["protocol"], told["found"]) == ("u", "p", None)
    [one] = told["rows"]
    assert one["percentiles_ms"]["p99"] is None
    assert one["server"]["memory_mb"] == {"server <1>": 120.0}
    assert one["outcomes"] == {"200": 99, "503": 1}


def test_what_is_said_below_the_table():
    told = "\n".join(report(slo_ms=50.0, found=1).remarks())
    assert "50/s: 99 200, 1 503; the first failure: 503 full" in told
    assert "50.0 requests/s is the highest rate found at which p99 is at most 50 ms" in told
    silent = replace(report().rows[0], requests=0, shed=0.5, top1=None)
    told = "\n".join(Report("http://h", "classify", [silent]).remarks())
    assert "no request that was due in the time that was measured was answered" in told
    assert "0.00% lack a member, 50.00% were made by fewer members because of the load" in told
    told = "\n".join(report(slo_ms=5.0).remarks())
    assert "no rate was found at which p99 is at most 5 ms" in told
