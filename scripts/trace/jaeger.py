"""Reads the traces that a Jaeger holds, by its API, which speaks OTLP as JSON.

Source: https://www.jaegertracing.io/docs/latest/apis/
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta

import httpx

from scripts.errors import ScriptError
from scripts.trace.spans import Trace, spans_in, traces

PATH = "/api/v3/traces"
TRACE_ID = re.compile("[0-9a-f]{32}")
# Without an id: how many of the latest traces are asked for, and of how long ago at most.
LATEST, SPAN = 200, timedelta(days=2)


def read_traces(url: str, trace_id: str | None = None) -> list[Trace]:
    """Read the trace of a complete id, else the latest traces of the ingress; the newest first.

    Raises:
        ScriptError: there is no Jaeger, or it has none.
    """
    complete = trace_id is not None and TRACE_ID.fullmatch(trace_id)
    now = datetime.now(UTC)
    query = {
        "query.service_name": os.environ.get("OTEL_SERVICE_NAME") or "Ingress",
        "query.start_time_min": (now - SPAN).isoformat(),
        "query.start_time_max": (now + timedelta(minutes=1)).isoformat(),
        "query.num_traces": str(LATEST),
    }
    path = f"{PATH}/{trace_id}" if complete else PATH
    try:
        answer = httpx.get(f"{url.rstrip('/')}{path}", params={} if complete else query, timeout=30, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as err:
        raise ScriptError(f"there is no Jaeger at {url}: {err}; make jaeger says how to start one") from err
    try:
        found = [] if answer.status_code == httpx.codes.NOT_FOUND else traces(spans_in(answer.json()["result"]))
    except (ValueError, KeyError, TypeError) as err:
        raise ScriptError(f"what {url} answers, status {answer.status_code}, is not Jaeger's: {err!r}") from err
    if not found:
        raise ScriptError(f"{url} has no such trace; serve with OTEL_TRACES_EXPORTER=otlp and send a request")
    return found
