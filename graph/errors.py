"""The errors a caller can get, the same over HTTP, gRPC and a Python handle."""

from __future__ import annotations

from typing import ClassVar

# Characters. It travels in gRPC's trailers, too, for which clients allow 8 KB.
LONGEST_MESSAGE = 500


class EnsembleError(Exception):
    """Base of every error that is answered to a caller; `code` is its stable, machine-readable name."""

    code: ClassVar[str] = "internal"
    is_fault: ClassVar[bool] = True

    @property
    def message(self) -> str:
        """What went wrong and what to do about it, without most of a long text of the caller's that is quoted in it."""
        text = str(self)
        return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"

    def to_dict(self) -> dict[str, str]:
        """`{"code": ..., "message": ...}`, the body of every error answer."""
        return {"code": self.code, "message": self.message}


class ClientMistake(EnsembleError):
    """Base of what the caller did wrong; every other error is a fault on the server's side."""

    is_fault = False


class InvalidImage(ClientMistake):
    """The bytes are not an image, or only part of one."""

    code = "invalid_image"


class ImageTooLarge(ClientMistake):
    """The image, or the request, exceeds the limit on bytes or on pixels."""

    code = "image_too_large"


class UnsupportedMediaType(ClientMistake):
    """The declared content type is no image."""

    code = "unsupported_media_type"


class InvalidParameter(ClientMistake):
    """A parameter of the request is unknown, malformed or out of bounds."""

    code = "invalid_parameter"


class NotFound(ClientMistake):
    """There is no such path or model."""

    code = "not_found"


class MethodNotAllowed(ClientMistake):
    """The path exists, but not for this HTTP method."""

    code = "method_not_allowed"


class Overloaded(EnsembleError):
    """As many images are in flight as the configuration admits; try again later."""

    code = "overloaded"


class NotReady(EnsembleError):
    """Not every member has answered yet; try again later."""

    code = "not_ready"


class DeadlineExceeded(EnsembleError):
    """The request was not answered within its time."""

    code = "deadline_exceeded"


class InferenceFailed(EnsembleError):
    """A member failed on this input; the server's log has the cause."""

    code = "inference_failed"


class ConfigurationError(ValueError):
    """The configuration, or a model it names, can't be served; the message names the field and the remedy."""
