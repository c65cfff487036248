"""The forms of errors over HTTP: each protocol has its own."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from deployments.contract.errors import EnsembleError


class Error(msgspec.Struct, frozen=True):
    """What went wrong, and what to do about it."""

    code: str
    message: str
    retry_after_ms: int | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """The answer to a request, or to one image of several, that failed."""

    error: Error


class ProtocolError(msgspec.Struct, frozen=True):
    """An error as the Open Inference Protocol has it, `<code>: <message>`."""

    error: str


class ErrorStyle(NamedTuple):
    """A protocol's form of errors.

    Attributes:
        model: of their JSON.
        tell: makes the JSON's content of an error.
        statuses: the protocol's own status in place of some of ours.
    """

    model: type
    tell: Callable[[EnsembleError], Any]
    statuses: Mapping[int, int] = {}

    def status(self, error: EnsembleError | type[EnsembleError]) -> int:
        """Return the HTTP status of an error."""
        return self.statuses.get(error.http_status, error.http_status)


AS_OBJECT = ErrorStyle(ErrorAnswer, lambda error: {"error": error.to_dict()})
AS_TEXT = ErrorStyle(ProtocolError, lambda error: {"error": f"{error.code}: {error.message}"})
