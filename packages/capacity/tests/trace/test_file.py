import base64
import json
import os

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from deployments.observe.exporters import from_environment
from ensemble_capacity.trace.file import MAX_FILES, FileSpanExporter, traces_data


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    for service in ("one", "two"):
        provider = TracerProvider(resource=Resource({"service.name": service, "n": 1}), shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        tracer = provider.get_tracer("ensemble-serving")
        with tracer.start_as_current_span("parent", kind=SpanKind.SERVER) as parent:
            attributes = {"text": "é", "int": 3, "float": 0.5, "bool": True, "many": [1, 2]}
            child = tracer.start_span("child", attributes=attributes, links=[Link(parent.get_span_context())])
            child.set_status(Status(StatusCode.ERROR, "broken"))
            child.end()
    return exporter.get_finished_spans()


def test_the_json_is_otlps(spans):
    """As protobuf has it, but ids in hexadecimal and enumerations as numbers: https://opentelemetry.io/docs/specs/otlp/."""

    def hexadecimal(value):
        if isinstance(value, list):
            return [hexadecimal(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = {"traceId", "spanId", "parentSpanId"}
        return {key: base64.b64decode(item).hex() if key in ids else hexadecimal(item) for key, item in value.items()}

    def bare(value):
        """Without what is optional: flags, and what is empty."""
        if isinstance(value, list):
            return [bare(item) for item in value]
        if not isinstance(value, dict):
            return value
        return {key: bare(item) for key, item in value.items() if key != "flags" and item not in ({}, [])}

    expected = hexadecimal(MessageToDict(encode_spans(spans), use_integers_for_enums=True))
    assert bare(json.loads(traces_data(spans))) == bare(expected)


def test_the_file_holds_a_line_for_each_export(tmp_path, spans):
    exporter = FileSpanExporter(tmp_path / "traces")
    exporter.export(spans[:1])
    assert exporter.export(spans[1:]) is SpanExportResult.SUCCESS
    [path] = (tmp_path / "traces").iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [len(line["resourceSpans"]) for line in lines] == [1, 2]


def test_the_files_are_bounded(tmp_path, spans):
    exporter = FileSpanExporter(tmp_path, max_bytes=8_000)
    for _ in range(50):
        exporter.export(spans)
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    assert all(0 < path.stat().st_size <= 8_000 for path in files)


def test_a_burst_fits_the_queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    processor = from_environment({"OTEL_TRACES_EXPORTER": "file", "OTEL_BSP_SCHEDULE_DELAY": "60000"})
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("ensemble-serving")
    for number in range(5_000):
        tracer.start_span(str(number)).end()
    processor.shutdown()
    assert sum(path.read_text().count('"traceId"') for path in (tmp_path / "traces").iterdir()) == 5_000


def test_only_the_latest_files_of_earlier_processes_stay(tmp_path, spans):
    running = tmp_path / f"{os.getppid()}.old.jsonl"
    running.touch()
    # The kernel numbers no process so high.
    for number in range(20):
        (tmp_path / f"{2**22 + 1 + number}.jsonl").touch()
    FileSpanExporter(tmp_path).export(spans)
    assert len(list(tmp_path.iterdir())) == MAX_FILES + 1
    assert running.exists()
