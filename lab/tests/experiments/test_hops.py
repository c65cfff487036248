import re
from dataclasses import replace

import pytest

from ensemble_capacity.trace.spans import RecordedSpan
from graph.config import parse
from lab import reported
from lab.benchmark.workloads import workload
from lab.experiments import experiment, hops
from lab.experiments.hops import divided
from lab.rows import FEWEST
from scripts.errors import ScriptError

TRACE, US = "aa" * 16, 1000


def span(identifier, parent, name, start, end):
    """Times in milliseconds."""
    return RecordedSpan(TRACE, identifier, parent, name, "service", start * US, end * US, {}, [], {}, False)


CLIENT = span("c", None, "client", 0, 100)
SPANS = [
    span("r", "c", "classify", 10, 95),
    span("q", "r", "queue", 12, 20),
    span("d", "r", "decode", 21, 30),
    span("p", "r", "predict resnet", 33, 60),
    span("x", "p", "classify", 35, 58),
    span("z", "x", "predict m", 39, 50),
    span("k", "r", "combine", 64, 66),
    span("l", "r", "label", 71, 72),
]


@pytest.fixture
def row():
    return {"way": "open_inference", "rate": hops.RATES[1], **divided([(CLIENT, 100.5)] * FEWEST, {TRACE: SPANS})}


def test_every_part_has_its_share_and_they_sum_to_the_latency(row):
    [shown] = hops.with_parts([row])
    times = {name: shown[name] for name in hops.PARTS}
    assert times == pytest.approx(
        {
            "client": 15,
            "ingress": 25,
            "queue": 8,
            "decode": 9,
            "member": 11,
            "combine": 2,
            "label": 1,
            "hops": 13,
            "proxy": 16,
        }
    )
    assert sum(times.values()) == pytest.approx(CLIENT.duration_us / US)
    assert list(hops.hops(row).items()) == [
        ("queue to decode", pytest.approx(1)),
        ("decode to member", pytest.approx(3)),
        ("member to combine", pytest.approx(4)),
        ("combine to label", pytest.approx(5)),
    ]


def test_the_table_and_the_picture_tell_each_hop(row):
    inline, slower = {**row, "way": "inline"}, {**row, "way": "inline", "rate": hops.RATES[0], "latency_ms": 90.0}
    lines = {line[0]: line[1] for line in hops.HOPS.table(hops.with_parts([slower, inline])).lines}
    steps = ("queue to decode", "decode to member", "member to combine", "combine to label")
    assert [lines[f"hop: {step}"] for step in steps] == ["1.00", "3.00", "4.00", "5.00"]
    assert lines["member"] == "11.00"
    assert lines["decode and combine and label"] == "12.00"
    assert list(lines)[-2:] == ["whole request at 10/s", "whole request at 20/s"]
    assert (lines["whole request at 10/s"], lines["whole request at 20/s"]) == ("90.00", "100.50")
    [elsewhere] = hops.HOPS.table(hops.with_parts([row])).lines
    assert elsewhere == ["whole request at 20/s", "", "", "", "", "100.50"]
    [(heading, bars)] = hops.picture(hops.with_parts([row]))
    assert heading.startswith("open_inference")
    assert {bar.label for bar in bars if bar.ours} == {"hops", "proxy"}


def test_a_row_is_stored(row, tmp_path, monkeypatch):
    for folder in ("FOLDER", "IMAGES"):
        monkeypatch.setattr(experiment, folder, tmp_path)
    (tmp_path / "hops.md").write_text(experiment.BEGIN.format("hops") + experiment.END.format("hops"))
    rows = [{**row, "way": way} for way in hops.WAYS]
    assert replace(hops.HOPS, parts=lambda _: [experiment.Part("all", lambda: rows)]).run(1, again=True)
    assert hops.HOPS.stored().rows == rows


def test_every_reported_figure_is_found(row):
    rows = [{**row, "way": way} for way in hops.WAYS]
    rows[0] = {**rows[0], "members_ms": {"resnet": 1.0, "densenet": 2.0}}
    found = hops.HOPS.compare(hops.with_parts(rows))
    assert set(found) == {each.subject for each in reported.of("hops")}
    assert found["largest hop between two nodes"] == "5.00 ms by a direct edge, 5.00 ms by a handle edge"


def test_what_a_proxy_adds_is_the_difference_of_whole_requests(row):
    latencies = {"inline": 60.0, "tensorflow_serving": 69.5, "open_inference": 57.0}
    rows = [{**row, "way": way, "latency_ms": latencies.get(way, 80.0)} for way in hops.WAYS]
    found = hops.HOPS.compare(hops.with_parts(rows))
    assert {
        name: found[f"{name} latency added by a proxy to a model server"].partition(" of")[0]
        for name in ("smallest", "largest")
    } == {"smallest": "-3.0 ms", "largest": "+9.5 ms"}


def test_too_few_requests_compare_nothing(row):
    rows = [{**row, "way": way, "requests": FEWEST - 1} for way in hops.WAYS]
    assert hops.HOPS.compare(hops.with_parts(rows)) == {}


def test_each_member_has_its_own_time(row):
    assert row["members_ms"] == {"resnet": 27, "m": 11}


def test_a_member_after_the_other_is_no_hop():
    late = [*SPANS, span("e", "r", "predict densenet", 61, 63)]
    row = divided([(CLIENT, 100.0)], {TRACE: late})
    assert hops.with_parts([row])[0]["member"] == pytest.approx(11 + 1 + 2)
    assert len(hops.hops(row)) == 4


def test_a_sum_that_misses_the_latency_is_an_error():
    with pytest.raises(ScriptError, match=re.escape("sum to 100.00 ms, and the client's latency is 104.00 ms")):
        divided([(CLIENT, 104.0)], {TRACE: SPANS})


def test_a_trace_that_was_not_written_is_an_error():
    with pytest.raises(ScriptError, match="was not written"):
        divided([(CLIENT, 100.0)], {})


@pytest.mark.parametrize("way", hops.WAYS)
def test_a_way_is_a_configuration(way, monkeypatch):
    # The models of ImageNet's size take minutes to make.
    monkeypatch.setattr(hops, "workload", lambda _, precision: workload("embedded", precision))
    config = hops.configured(way, "grpc://127.0.0.1:1")
    parsed = parse(config["applications"][0]["args"])
    separate = way in hops.EDGES
    assert {each.placement for each in (*parsed.members, parsed.combiner)} == {"separate" if separate else "inline"}
    assert parsed.edges == (way if separate else "direct")
    assert [each.kind for each in parsed.members] == [way if way in hops.REMOTE else "openvino", "openvino"]
