"""The page on the errors that a caller can get."""

from __future__ import annotations

from deployments.contract.errors import EnsembleError, errors_by_code
from lab.reference.markdown import code, first_paragraph, table

HEAD = ("code", "HTTP", "gRPC", "whose fault", "what it means")
INTRODUCTION = """# Error codes

Each error has a code, which does not change between releases, and a message for people. The form over HTTP and gRPC,
and when to retry, are on [the page of the interface](../api.md#errors). At a handle the error is an exception of
`graph.errors`.
"""
OUTRO = """
"Retry" is the header `Retry-After` over HTTP, and `grpc-retry-pushback-ms` in the trailers over gRPC: the same request
may succeed after that time. The statuses hold for `/classify` and for the Open Inference Protocol, whose errors are the
text `<code>: <message>`.
"""


def page() -> str:
    """Write the page: a row for each code, by status."""
    ours = ((name, error) for name, error in errors_by_code().items() if error.__module__ == EnsembleError.__module__)
    known = sorted(ours, key=lambda each: (each[1].http_status, each[0]))
    return "\n".join([INTRODUCTION, table(HEAD, [_row(name, error) for name, error in known]) + OUTRO])


def _row(name: str, error: type[EnsembleError]) -> tuple[str, ...]:
    status = f"{error.http_status}{', retry' if error.retry else ''}"
    meaning = "The server failed; its log has the cause." if error is EnsembleError else first_paragraph(error.__doc__)
    return code(name), status, error.grpc_status, "the server's" if error.is_fault else "the caller's", meaning
