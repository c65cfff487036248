"""Trace context: the W3C `traceparent` that a request brings, or a new one."""

from __future__ import annotations

import re
import secrets

# Source: https://www.w3.org/TR/trace-context/#traceparent-header
TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def continue_trace(trace_parent: str | None) -> str:
    """The caller's `traceparent` if it is a valid one, else a new one, not sampled."""
    if trace_parent is not None and TRACE_PARENT.fullmatch(trace_parent):
        return trace_parent
    return f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-00"


def trace_id(trace_parent: str) -> str:
    """The trace id of a valid `traceparent`, 32 hexadecimal digits."""
    return trace_parent[3:35]
