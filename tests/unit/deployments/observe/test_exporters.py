from importlib.metadata import EntryPoint, EntryPoints

import pytest
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from deployments.contract.errors import ConfigurationError
from deployments.observe import exporters
from deployments.observe.exporters import Reporting, from_environment
from tests.conftest import read_anew


class Unsteady(SpanExporter):
    """Fails in the ways that an exporter can, then works."""

    def __init__(self):
        self.outcomes = iter([SpanExportResult.FAILURE, OSError("disk full"), SpanExportResult.SUCCESS] * 2)

    def export(self, spans):
        outcome = next(self.outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def shutdown(self):
        pass


def test_what_can_not_be_exported_is_said_once(monkeypatch):
    told = []
    monkeypatch.setattr(exporters.logger, "warning", lambda message, *args: told.append(message % args))
    reporting = Reporting(Unsteady(), "there")
    for _ in range(6):
        reporting.export([])
    assert ["again" in message for message in told] == [False, True, False, True]


@pytest.mark.parametrize(
    "environment",
    [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_EXPORTER": "file", "OTEL_SDK_DISABLED": "true"}],
)
def test_no_tracing_unless_asked_for(environment):
    assert from_environment(environment) is None


@pytest.mark.parametrize(
    ("environment", "kind"),
    [
        ({"OTEL_TRACES_EXPORTER": "file"}, "FileSpanExporter"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "ConsoleSpanExporter"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "proto.grpc"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}, "proto.grpc"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "proto.http"),
    ],
)
def test_the_exporter_that_the_environment_names(environment, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    processor = from_environment(environment)
    exporter = processor.span_exporter._exporter
    processor.shutdown()
    assert kind in f"{type(exporter).__module__}.{type(exporter).__name__}"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "no installed plugin has 'zipkin'"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smoke"}, "'smoke' is neither"),
    ],
)
def test_an_unknown_exporter_is_refused(environment, said):
    with pytest.raises(ConfigurationError, match=said):
        from_environment(environment)


def test_an_exporter_that_can_not_be_made_is_told_with_its_reason(monkeypatch):
    broken = EntryPoint("broken", "json:loads", exporters.EXPORTERS)
    monkeypatch.setattr("deployments.entry_points.entry_points", lambda group: EntryPoints([broken]))
    with read_anew(), pytest.raises(ConfigurationError, match=r"'broken' can't be used: TypeError\(.loads"):
        from_environment({"OTEL_TRACES_EXPORTER": "broken"})
