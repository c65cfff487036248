"""The errors a caller can get, each with its code and its status over HTTP and gRPC: a new one is a class here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

# Characters. It travels in gRPC's trailers, too, for which clients allow 8 KB.
LONGEST_MESSAGE = 500


class EnsembleError(Exception):
    """Base of every error that is answered to a caller.

    Attributes:
        code: its stable, machine-readable name.
        http_status: over HTTP.
        grpc_status: over gRPC, the name of a `grpc.StatusCode`.
        is_fault: whether it is a fault on the server's side, not the caller's mistake.
        retry: whether the same request may succeed a while later; HTTP then says so by `Retry-After`.
        headers: of the answer over HTTP.
        retry_after_s: when, seconds; None if that is not known.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    is_fault: ClassVar[bool] = True
    retry: ClassVar[bool] = False
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(self, *args: object, retry_after_s: float | None = None) -> None:
        """Set the message, and when to try again, seconds, if it is known."""
        super().__init__(*args)
        self.retry_after_s = retry_after_s

    @property
    def message(self) -> str:
        """What went wrong and what to do about it, without most of a long text of the caller's that is quoted in it."""
        # What Ray raises in its place at a handle has this error as its argument, and a traceback as its text.
        text = str(self.args[0]) if self.args else ""
        return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"

    def to_dict(self) -> dict[str, Any]:
        """`{"code": ..., "message": ...}`, the body of every error answer; and `retry_after_ms`, if that is known."""
        told: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.retry_after_s is not None:
            told["retry_after_ms"] = round(self.retry_after_s * 1000)
        return told


class ClientMistake(EnsembleError):
    """Base of what the caller did wrong; every other error is a fault on the server's side."""

    is_fault = False
    grpc_status = "INVALID_ARGUMENT"


class InvalidImage(ClientMistake):
    """The bytes are not an image, or only part of one."""

    code = "invalid_image"
    http_status = 400


class ImageTooLarge(ClientMistake):
    """The image, or the request, exceeds the limit on bytes or on pixels."""

    code = "image_too_large"
    http_status = 413


class UnsupportedMediaType(ClientMistake):
    """The declared content type is no image."""

    code = "unsupported_media_type"
    http_status = 415


class InvalidParameter(ClientMistake):
    """A parameter of the request is unknown, malformed or out of bounds."""

    code = "invalid_parameter"
    http_status = 422


class UnknownLabel(InvalidParameter):
    """The label that is told of an image is no class."""

    code = "unknown_label"


class Unauthenticated(ClientMistake):
    """The caller shows no key, or one that is not known."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"
    # https://www.rfc-editor.org/rfc/rfc6750#section-3
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ClientMistake):
    """The caller is known, or need not be, but has no right to this."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class RateLimited(ClientMistake):
    """The caller's key has made more requests than it may in this time; try again later."""

    code = "rate_limited"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    retry = True


class OverShare(RateLimited):
    """Most of the room is taken, and the caller has its share of it; try again later."""

    code = "over_share"


class NotFound(ClientMistake):
    """There is no such path or model."""

    code = "not_found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class UnknownRequest(NotFound):
    """No answer to that request is remembered, or no longer."""

    code = "unknown_request"


class AlreadyLabelled(ClientMistake):
    """The image's label was told before."""

    code = "already_labelled"
    http_status = 409
    grpc_status = "ALREADY_EXISTS"


class Conflict(ClientMistake):
    """What serves can't be changed so: the quorum needs the member, or the version can't be served."""

    code = "conflict"
    http_status = 409
    grpc_status = "FAILED_PRECONDITION"


class MethodNotAllowed(ClientMistake):
    """The path exists, but not for this HTTP method."""

    code = "method_not_allowed"
    http_status = 405


class MisdirectedRequest(ClientMistake):
    """The request is for a host that the server does not answer for."""

    code = "misdirected_request"
    http_status = 421
    grpc_status = "FAILED_PRECONDITION"


class SlowBody(ClientMistake):
    """A request's body comes slower than is admitted."""

    code = "slow_body"
    # The rest is not awaited.
    headers: ClassVar[Mapping[str, str]] = {"Connection": "close"}
    http_status = 408
    grpc_status = "DEADLINE_EXCEEDED"


class Overloaded(EnsembleError):
    """As many images are in flight as the configuration admits; try again later."""

    code = "overloaded"
    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"
    retry = True


class NotReady(EnsembleError):
    """Not every member has answered yet; try again later."""

    code = "not_ready"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retry = True


class Unloaded(NotReady):
    """The member was unloaded; it answers again when it is loaded."""

    code = "unloaded"


class NoReplica(NotReady):
    """The member has no replica now; it answers again once Serve has started another."""

    code = "no_replica"


class DeadlineExceeded(EnsembleError):
    """The request was not answered within its time."""

    code = "deadline_exceeded"
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class RemoteUnavailable(EnsembleError):
    """The server of a remote member can't be reached, or takes nothing now; it is asked again by itself."""

    code = "remote_unavailable"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    retry = True


class InferenceFailed(EnsembleError):
    """A member failed on this input; the server's log has the cause."""

    code = "inference_failed"


class ConfigurationError(ValueError):
    """The configuration, or a model it names, can't be served; the message names the field and the remedy."""


def kinds(base: type[EnsembleError] = EnsembleError) -> dict[str, type[EnsembleError]]:
    """Every error by its code."""
    found = {base.code: base}
    for kind in base.__subclasses__():
        # A base class has its own base's code: the first with a code is the one that it belongs to.
        found = {**kinds(kind), **found}
    return found


def by_code(code: str, message: str, retry_after_ms: int | None = None) -> EnsembleError:
    """The error that `EnsembleError.to_dict` describes, as it was raised in another process.

    An unknown code's is `EnsembleError`.
    """
    retry_after_s = None if retry_after_ms is None else retry_after_ms / 1000
    return kinds().get(code, EnsembleError)(message, retry_after_s=retry_after_s)
