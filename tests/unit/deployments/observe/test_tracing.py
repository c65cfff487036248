import time

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from deployments.contract.errors import InferenceFailed, InvalidImage
from deployments.contract.item import TRACE_ID, Item, Note, Step
from deployments.observe.observer import ImageTrace, Observer, continue_trace
from deployments.observe.tracing import Tracing

VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOT_SAMPLED = VALID[:-1] + "0"
MS = 1_000_000
SERVICES = {
    "classify": "Ingress",
    "decode": "JpegTransformer",
    "predict a": "A",
    "predict b": "B",
    "combine": "Combiner",
    "label": "Labeler",
}


def test_a_valid_trace_goes_on():
    assert continue_trace(VALID) == VALID
    assert trace_id(VALID) == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "",
        "x",
        VALID.upper(),
        VALID[:-1],
        VALID + "-more",
        "ff" + VALID[2:],
        VALID.replace("b7ad6b7169203331", "0" * 16),
    ],
)
def test_anything_else_begins_a_new_one(bad):
    first, second = continue_trace(bad), continue_trace(bad)
    assert continue_trace(first) == first
    assert trace_id(first) != trace_id(second)


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter):
    return Tracing(SimpleSpanProcessor(exporter), SERVICES)


def trace_id(trace_parent):
    return trace_parent[TRACE_ID]


def passed(traces, failures=None):
    """What became of the traces' images in the graph; `failures` is [(position, node, error)]."""
    start = time.time_ns()
    here, size = ("here", 1), {"ensemble.batch.size": len(traces)}
    stages = [
        [Note("decode", start + 1 * MS, start + 2 * MS, size, here)],
        [
            Note("predict a", start + 3 * MS, start + 6 * MS, {"ensemble.model.version": 2, **size}, here),
            Note("predict b", start + 3 * MS, start + 5 * MS, size, here),
        ],
        [Note("combine", start + 7 * MS, start + 8 * MS, size, ("elsewhere", 7))],
        [Note("label", start + 8 * MS, start + 9 * MS, size, here)],
    ]
    items = []
    for position, trace in enumerate(traces):
        mine = {node: error for failed, node, error in failures or [] if failed == position}
        steps = []
        for stage in stages:
            steps += [
                Step(note, (mine[note.node].code, mine[note.node].message) if note.node in mine else None)
                for note in stage
            ]
            if any(note.node in mine for note in stage):
                break
        items.append(Item(trace.parent, image_size=(40, 30), error=next(iter(mine.values()), None), steps=tuple(steps)))
    return [ImageTrace(trace, start - 5 * MS, 100) for trace in traces], start, start + 10 * MS, items


def by_trace(exporter, trace):
    spans = [s for s in exporter.get_finished_spans() if f"{s.context.trace_id:032x}" == trace_id(trace.parent)]
    return {span.name: span for span in spans}


def test_a_request_has_a_span_for_each_node_in_its_nodes_service(tracing, exporter):
    trace = tracing.begin(None, None, {"http.request.method": "POST"})
    tracing.record(*passed([trace]))
    trace.end({"http.response.status_code": 200}, None)
    spans = by_trace(exporter, trace)
    assert set(spans) == {*SERVICES, "queue", "batch"}
    root = spans["classify"]
    assert root.parent is None
    assert root.kind is SpanKind.SERVER
    assert dict(root.attributes) == {"http.request.method": "POST", "http.response.status_code": 200}
    for name, span in spans.items():
        assert span.resource.attributes["service.name"] == SERVICES.get(name, "Ingress")
        if name != "classify":
            assert span.parent.span_id == root.context.span_id
    assert spans["combine"].resource.attributes["host.name"] == "elsewhere"
    assert spans["combine"].resource.attributes["process.pid"] == 7
    assert spans["predict a"].attributes == {"ensemble.model.version": 2, "ensemble.batch.size": 1}
    assert spans["decode"].attributes["ensemble.image.width"] == 40
    assert spans["decode"].attributes["ensemble.image.height"] == 30
    assert spans["queue"].end_time - spans["queue"].start_time == 5 * MS
    assert spans["predict b"].end_time - spans["predict b"].start_time == 2 * MS


def test_a_batch_has_one_span_linked_to_its_requests_and_they_to_it(tracing, exporter):
    traces = [tracing.begin(None, None, {}) for _ in range(3)]
    tracing.record(*passed(traces))
    for trace in traces:
        trace.end({}, None)
    [batch] = [span for span in exporter.get_finished_spans() if span.name == "batch"]
    roots = {by_trace(exporter, trace)["classify"].context.span_id for trace in traces}
    assert {link.context.span_id for link in batch.links} == roots
    assert batch.attributes["ensemble.batch.size"] == 3
    for trace in traces:
        [link] = by_trace(exporter, trace)["queue"].links
        assert link.context.span_id == batch.context.span_id


def test_several_images_of_one_request_have_one_set_of_spans(tracing, exporter):
    trace = tracing.begin(None, None, {})
    tracing.record(*passed([trace, trace, trace]))
    assert len(exporter.get_finished_spans()) == 7


def test_the_callers_trace_goes_on(tracing, exporter):
    trace = tracing.begin(VALID, "vendor=1", {})
    trace.end({}, None)
    assert trace_id(trace.parent) == trace_id(VALID)
    assert trace.parent != VALID
    [root] = exporter.get_finished_spans()
    assert f"{root.parent.span_id:016x}" == "b7ad6b7169203331"
    assert root.context.trace_state["vendor"] == "1"


def test_what_the_caller_does_not_sample_leaves_no_fragment(tracing, exporter):
    other, sampled = tracing.begin(NOT_SAMPLED, None, {}), tracing.begin(None, None, {})
    tracing.record(*passed([other, sampled]))
    other.end({}, None)
    sampled.end({}, None)
    assert trace_id(other.parent) == trace_id(NOT_SAMPLED)
    assert by_trace(exporter, other) == {}
    [batch] = [span for span in exporter.get_finished_spans() if span.name == "batch"]
    assert batch.context.trace_id == int(trace_id(sampled.parent), 16)
    assert len(batch.links) == 1


def test_the_sampler_is_the_standard_variables(exporter, monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    tracing = Tracing(SimpleSpanProcessor(exporter), SERVICES)
    assert tracing.begin(None, None, {}).span is None
    assert tracing.begin(VALID, None, {}).span is not None


def test_a_request_that_fails_has_its_error_where_it_failed_and_nothing_after(tracing, exporter):
    traces = [tracing.begin(None, None, {}) for _ in range(3)]
    failures = [
        (0, "decode", InvalidImage("no image")),
        (1, "predict a", InferenceFailed("a broke")),
        (1, "predict b", InferenceFailed("b broke")),
    ]
    tracing.record(*passed(traces, failures))
    for trace in traces:
        trace.end({}, None)
    first, second, third = (by_trace(exporter, trace) for trace in traces)
    assert "predict a" not in first
    assert first["decode"].status.status_code is StatusCode.ERROR
    assert first["decode"].attributes["error.type"] == "invalid_image"
    for name in "ab":
        assert second[f"predict {name}"].attributes["error.type"] == "inference_failed"
        assert second[f"predict {name}"].attributes["error.message"] == f"{name} broke"
    assert "combine" not in second
    assert "label" in third


def test_of_several_images_of_one_request_the_failure_shows_and_the_rest_goes_on(tracing, exporter):
    trace = tracing.begin(None, None, {})
    tracing.record(*passed([trace, trace], [(0, "decode", InvalidImage("no image"))]))
    trace.end({}, None)
    spans = by_trace(exporter, trace)
    assert spans["decode"].attributes["error.type"] == "invalid_image"
    assert spans["label"].status.status_code is StatusCode.UNSET


def test_a_fault_marks_the_root(tracing, exporter):
    tracing.begin(None, None, {}).end({"error.type": "internal"}, "it broke")
    [root] = exporter.get_finished_spans()
    assert root.status.status_code is StatusCode.ERROR


async def test_without_an_exporter_there_is_a_trace_id_and_no_span():
    observer = Observer()
    with observer.call("http", {"traceparent": VALID}, {}) as call:
        assert (call.trace.parent, call.trace.span) == (VALID, None)
    observer.close()


def test_a_span_that_another_server_was_told_has_that_id(tracing, exporter):
    trace = tracing.begin(None, None, {})
    note = Note("predict a", 1, 2, {}, ("here", 1), "00f067aa0ba902b7")
    tracing.record([ImageTrace(trace, 0, 1)], 0, 3, [Item(trace.parent, steps=(Step(note),))])
    [span] = [span for span in exporter.get_finished_spans() if span.name == "predict a"]
    assert f"{span.context.span_id:016x}" == "00f067aa0ba902b7"
