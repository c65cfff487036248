"""The exporter of spans that `OTEL_TRACES_EXPORTER` names: any that is installed as an entry point of OpenTelemetry's.

`otlp` and `console` are the SDK's own, with their standard settings; `file` comes with `ensemble-capacity`.
"""

import logging
import os
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from deployments.contract.errors import ConfigurationError
from deployments.entry_points import find

logger = logging.getLogger("ray.serve")

# OpenTelemetry's group of entry points, and its name of the exporter for each protocol of OTLP.
EXPORTERS = "opentelemetry_traces_exporter"
OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
FILE, FILE_DELAY_MS = "file", 200.0
# A request has about eight spans; the SDK's default of 2,048 is soon full under load, and drops the rest.
QUEUED_SPANS = 32_768


def from_environment(environment: Mapping[str, str] = os.environ) -> SpanProcessor | None:
    """Make a batch processor for the exporter that `OTEL_TRACES_EXPORTER` names; None for no tracing.

    The names are `otlp`, `none`, and the names of entry points, such as `file` and `console`. The default is `otlp` if
    an endpoint for it is set, else `none`.

    Raises:
        ConfigurationError: there is no such exporter, or no such OTLP protocol, or the exporter can't be made.
    """
    endpoint = environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    name = environment.get("OTEL_TRACES_EXPORTER", "").strip() or ("otlp" if endpoint else "none")
    if name == "none" or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporter = _exporter(_otlp(environment) if name == "otlp" else name)
    # A file is read right after the request; over the network the SDK's delay of 5 s saves calls.
    delay_ms = FILE_DELAY_MS if name == FILE and "OTEL_BSP_SCHEDULE_DELAY" not in environment else None
    queue = None if "OTEL_BSP_MAX_QUEUE_SIZE" in environment else QUEUED_SPANS
    return BatchSpanProcessor(Reporting(exporter, name), queue, schedule_delay_millis=delay_ms)


def _otlp(environment: Mapping[str, str]) -> str:
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"
    )
    if protocol not in OTLP:
        raise ConfigurationError(f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is neither 'grpc' nor 'http/protobuf'")
    return OTLP[protocol]


def _exporter(name: str) -> SpanExporter:
    try:
        made: SpanExporter = find(EXPORTERS, name)()
    # What a package of others raises may be anything.
    except Exception as err:
        raise ConfigurationError(f"OTEL_TRACES_EXPORTER: {name!r} can't be used: {err!r}") from err
    return made


class Reporting(SpanExporter):
    """Logs once when spans can't be exported, and once when they can be again; the SDK would log every failure."""

    def __init__(self, exporter: SpanExporter, name: str) -> None:
        self._exporter = exporter
        self._name = name
        self._failing = False
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans; spans that can't be exported are lost."""
        try:
            result = self._exporter.export(spans)
        except Exception:
            logger.debug("exporting spans to %s", self._name, exc_info=True)
            result = SpanExportResult.FAILURE
        failing = result is not SpanExportResult.SUCCESS
        if failing and not self._failing:
            logger.warning("spans can't be exported to %s and are lost; requests are answered all the same", self._name)
        if self._failing and not failing:
            logger.warning("spans are exported to %s again", self._name)
        self._failing = failing
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._exporter.shutdown()
