import json
import sys
import xml.etree.ElementTree as ET

import pytest

from ensemble_capacity.trace import __main__ as command

US = 1000


def span(trace, identifier, parent, name, service, start, end, **more):
    """A span as OTLP JSON, under a resource of its own; times in microseconds."""
    encoded = {
        "traceId": trace,
        "spanId": identifier,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start * US),
        "endTimeUnixNano": str(end * US),
        "attributes": [{"key": "ensemble.batch.size", "value": {"intValue": "2"}}],
        **more,
    }
    if parent:
        encoded["parentSpanId"] = parent
    attributes = [{"key": "service.name", "value": {"stringValue": service}}]
    return {"resource": {"attributes": attributes}, "scopeSpans": [{"scope": {}, "spans": [encoded]}]}


@pytest.fixture
def folder(tmp_path):
    """Two traces, their spans over two files: `aa...` is the older and the slower; `bb...` failed."""
    old, new = "aa" * 16, "bb" * 16
    first = [
        span(old, "01" * 8, None, "classify", "Ingress", 1000, 9000),
        span(old, "02" * 8, "01" * 8, "predict resnet", "ResNet", 2000, 6000),
    ]
    second = [
        span(old, "03" * 8, "01" * 8, "predict densenet", "DenseNet", 2500, 7000),
        span(new, "04" * 8, "09" * 8, "classify", "Ingress", 5000, 6000, status={"code": 2, "message": "no"}),
        span(new, "05" * 8, "04" * 8, "queue", "Ingress", 5100, 5200, links=[{"traceId": old, "spanId": "01" * 8}]),
    ]
    for name, spans in (("1", first), ("2", second)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"resourceSpans": [s]}) + "\n" for s in spans))
    with (tmp_path / "2.jsonl").open("a") as stream:
        stream.write('{"resourceSp')  # a line that is being written
    return tmp_path


def run(monkeypatch, folder, *flags):
    monkeypatch.setattr(sys, "argv", ["trace", "--folder", *map(str, [folder, *flags])])
    command.main()


def test_a_name_may_have_what_python_takes_for_the_end_of_a_line(tmp_path, monkeypatch, capsys):
    one = span("aa" * 16, "01" * 8, None, "a\u2028b\u0085c", "s", 1, 2)
    line = json.dumps({"resourceSpans": [one]}, ensure_ascii=False)
    (tmp_path / "1.jsonl").write_text(line + "\n", encoding="utf-8")
    run(monkeypatch, tmp_path, "--json")
    assert "01" * 8 in capsys.readouterr().out


def test_the_newest_is_drawn_with_its_spans_below_their_parents(folder, monkeypatch, capsys):
    run(monkeypatch, folder)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bb" * 16)
    assert lines[2].startswith("classify")
    assert lines[3].startswith("  queue")
    assert "1.00" in lines[2]
    assert lines[2].count("━") == 60
    assert lines[3].count("━") == 6


def test_the_slowest(folder, monkeypatch, capsys):
    run(monkeypatch, folder, "--slowest")
    out = capsys.readouterr().out
    assert out.startswith("aa" * 16)
    assert "predict resnet" in out
    assert "DenseNet" in out


def test_json(folder, monkeypatch, capsys):
    run(monkeypatch, folder, "--last", 10, "--json")
    newest, older = json.loads(capsys.readouterr().out)
    process = {"service.name": "Ingress"}
    assert newest == {
        "trace_id": "bb" * 16,
        "spans": [
            {
                "name": "classify",
                "service": "Ingress",
                "span_id": "04" * 8,
                "parent_id": "09" * 8,
                "start_us": 5000,
                "end_us": 6000,
                "attributes": {"ensemble.batch.size": 2},
                "links": [],
                "trace_id": "bb" * 16,
                "process": process,
                "failed": True,
            },
            {
                "name": "queue",
                "service": "Ingress",
                "span_id": "05" * 8,
                "parent_id": "04" * 8,
                "start_us": 5100,
                "end_us": 5200,
                "attributes": {"ensemble.batch.size": 2},
                "links": [{"trace_id": "aa" * 16, "span_id": "01" * 8}],
                "trace_id": "bb" * 16,
                "process": process,
                "failed": False,
            },
        ],
    }
    assert [s["name"] for s in older["spans"]] == ["classify", "predict resnet", "predict densenet"]


def test_svg(folder, monkeypatch, tmp_path):
    run(monkeypatch, folder, "aa", "--svg", tmp_path / "w.svg")
    written = (tmp_path / "w.svg").read_text()
    words = "".join(ET.fromstring(written).itertext()).replace("\xa0", " ")
    assert "A request of " in words
    assert words.index("classify") < words.index("predict resnet") < words.index("predict densenet")
    # The picture shows without a network.
    assert "url(http" not in written.replace('"', "")


@pytest.mark.parametrize(("flags", "said"), [(["ff"], "0 traces have an id"), ([""], "2 traces have an id")])
def test_an_id_that_names_no_trace_or_several(folder, monkeypatch, flags, said):
    with pytest.raises(SystemExit, match=f"error: {said}"):
        run(monkeypatch, folder, *flags)


def test_a_folder_without_traces_says_how_to_get_some(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="OTEL_TRACES_EXPORTER=file"):
        run(monkeypatch, tmp_path)


@pytest.mark.parametrize("line", ["[]", "{}", '{"resourceSpans": [{}]}', "no"])
def test_a_file_of_something_else_is_named(tmp_path, monkeypatch, line):
    (tmp_path / "x.jsonl").write_text(line + "\n")
    with pytest.raises(SystemExit, match=r"x\.jsonl, line 1"):
        run(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["aa", "--slowest"], "--slowest and --last choose among all traces"),
        (["aa", "--last", 2], "--slowest and --last choose among all traces"),
    ],
)
def test_flags_of_which_one_would_be_ignored_are_refused(folder, monkeypatch, capsys, flags, said):
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, folder, *flags)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
