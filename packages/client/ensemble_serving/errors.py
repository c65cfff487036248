"""The errors that a caller can get, each with its code and its status over HTTP and gRPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

# Characters. A message travels in gRPC's trailers, for which clients allow 8 KB.
MAX_MESSAGE_LENGTH = 500


class EnsembleError(Exception):
    """Base of every error that a caller can get; a subclass gives its code and its statuses as class arguments.

    Attributes:
        code: its stable, machine-readable name.
        http_status: over HTTP.
        grpc_status: over gRPC, the name of a `grpc.StatusCode`.
        is_fault: whether the server is at fault, and not the caller.
        retry: whether the same request may succeed later; over HTTP, the answer then has `Retry-After`.
        headers: of the answer over HTTP.
        retry_after_s: how long to wait before that, seconds; None if that is unknown.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    is_fault: ClassVar[bool] = True
    retry: ClassVar[bool] = False
    headers: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls, **attributes: str | int | Mapping[str, str]) -> None:
        """Set the class's own attributes; inherit the others from its base."""
        super().__init_subclass__()
        for name, value in attributes.items():
            assert hasattr(cls, name), name
            setattr(cls, name, value)

    def __init__(self, *args: object, retry_after_s: float | None = None) -> None:
        """Set the message, and how long to wait before another try, seconds, if it is known."""
        super().__init__(*args)
        self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """What went wrong and what to do about it; a long text, which may quote the caller, is cut."""
        # At a handle Ray raises an error whose argument is this one, and whose text is a traceback.
        text = str(self.args[0]) if self.args else ""
        return text if len(text) <= MAX_MESSAGE_LENGTH else f"{text[:MAX_MESSAGE_LENGTH]}…"

    def to_dict(self) -> dict[str, Any]:
        """Return the body of an error answer: `{"code": ..., "message": ...}`, with `retry_after_ms` if it is known."""
        described: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.retry_after_s is not None:
            described["retry_after_ms"] = round(self.retry_after_s * 1000)
        return described


class ClientMistake(EnsembleError, is_fault=False, grpc_status="INVALID_ARGUMENT"):
    """Base of the caller's mistakes; for every other error the server is at fault."""


class InvalidImage(ClientMistake, code="invalid_image", http_status=400):
    """The bytes are no image, or only a part of one, or the decoder crashed on them."""


class ImageTooLarge(ClientMistake, code="image_too_large", http_status=413):
    """The request is too large, or the image exceeds a limit on bytes, pixels, or decoding's time or memory."""


class UnsupportedMediaType(ClientMistake, code="unsupported_media_type", http_status=415):
    """The declared content type is no image, or the content encoding is unknown."""


class InvalidParameter(ClientMistake, code="invalid_parameter", http_status=422):
    """A parameter of the request is unknown, malformed or out of bounds."""


class UnknownLabel(InvalidParameter, code="unknown_label"):
    """The true label that is sent for an image is none of the classes."""


# https://www.rfc-editor.org/rfc/rfc6750#section-3
class Unauthenticated(
    ClientMistake,
    code="unauthenticated",
    http_status=401,
    grpc_status="UNAUTHENTICATED",
    headers={"WWW-Authenticate": "Bearer"},
):
    """The request has no API key, or an unknown one."""


class Forbidden(ClientMistake, code="forbidden", http_status=403, grpc_status="PERMISSION_DENIED"):
    """The key may not load and unload members, or a browser sent the request for a page of another origin."""


class RateLimited(ClientMistake, code="rate_limited", http_status=429, grpc_status="RESOURCE_EXHAUSTED", retry=True):
    """The key has made more requests per second than its rate allows."""


class OverShare(RateLimited, code="over_share"):
    """Most of the in-flight limit is used, and this client uses its share of it already."""


class NotFound(ClientMistake, code="not_found", http_status=404, grpc_status="NOT_FOUND"):
    """There is no such path or model."""


class UnknownRequest(NotFound, code="unknown_request"):
    """The label is for an answer that the server does not keep, or no longer keeps."""


class AlreadyLabelled(ClientMistake, code="already_labelled", http_status=409, grpc_status="ALREADY_EXISTS"):
    """The image has a true label already."""


class Conflict(ClientMistake, code="conflict", http_status=409, grpc_status="FAILED_PRECONDITION"):
    """The change is not possible: the quorum needs the member, or the version can't be served."""


class MethodNotAllowed(ClientMistake, code="method_not_allowed", http_status=405):
    """The path exists, but not for this HTTP method."""


class MisdirectedRequest(ClientMistake, code="misdirected_request", http_status=421, grpc_status="FAILED_PRECONDITION"):
    """The header `Host` has a name that the server does not accept, or the request came by HTTP/2."""


# The connection ends, because the rest of the body is not awaited.
class SlowBody(
    ClientMistake,
    code="slow_body",
    http_status=408,
    grpc_status="DEADLINE_EXCEEDED",
    headers={"Connection": "close"},
):
    """The body arrived at less than `ingress.min_body_rate`, or less than 8 KB of it arrived in 10 s."""


class HeadersTooLarge(ClientMistake, code="headers_too_large", http_status=431, grpc_status="RESOURCE_EXHAUSTED"):
    """The request's headers, or the call's metadata, have more than 64 KiB or more than 100 lines."""


class Overloaded(EnsembleError, code="overloaded", http_status=503, grpc_status="RESOURCE_EXHAUSTED", retry=True):
    """The limit of images or pixels in flight, or of arriving requests, is reached."""


class TooManyRequests(Overloaded, http_status=429):
    """As `Overloaded`, with the status that no load balancer takes for a failing server."""


class NotReady(EnsembleError, code="not_ready", http_status=503, grpc_status="UNAVAILABLE", retry=True):
    """A member has not answered since the start, or the application is not running."""


class Unloaded(NotReady, code="unloaded"):
    """The member is unloaded; it answers again once it is loaded."""


class NoReplica(NotReady, code="no_replica"):
    """The member has no replica now; it answers again once Serve has started another."""


class DeadlineExceeded(EnsembleError, code="deadline_exceeded", http_status=504, grpc_status="DEADLINE_EXCEEDED"):
    """The request was not answered within its time."""


class RemoteUnavailable(
    EnsembleError, code="remote_unavailable", http_status=503, grpc_status="UNAVAILABLE", retry=True
):
    """The server of a remote member can't be reached, or accepts nothing now; it is probed until it does."""


class InferenceFailed(EnsembleError, code="inference_failed"):
    """A member failed on this input; the server's log has the cause."""


def errors_by_code(base: type[EnsembleError] = EnsembleError) -> dict[str, type[EnsembleError]]:
    """Return every error class by its code."""
    found: dict[str, type[EnsembleError]] = {}
    for subclass in base.__subclasses__():
        found |= errors_by_code(subclass)
    # A class without a code of its own has its base's, and gives way to it.
    return {**found, base.code: base}


def error_by_code(code: str, message: str, retry_after_ms: int | None = None) -> EnsembleError:
    """Make the error that another process described by `EnsembleError.to_dict`; `EnsembleError` for an unknown code."""
    retry_after_s = None if retry_after_ms is None else retry_after_ms / 1000
    return errors_by_code().get(code, EnsembleError)(message, retry_after_s=retry_after_s)
