"""The ways in which a call to a model server fails, and what it returns."""

from typing import Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from deployments.contract.errors import DeadlineExceeded, EnsembleError, InferenceFailed, RemoteUnavailable


class CallError(Exception):
    """A call to another server failed. Its text is for the log, because it may quote that server.

    Attributes:
        kind: the error that the images get.
        retry: whether the same call may succeed at once, or at another endpoint.
        counts: whether it counts as a failure of the endpoint, which is ejected after several in a row.
    """

    kind: ClassVar[type[EnsembleError]] = InferenceFailed
    retry: ClassVar[bool] = False
    counts: ClassVar[bool] = True


class Unavailable(CallError):
    """There is no connection, the connection ended, or the server reports that it is unavailable."""

    kind = RemoteUnavailable
    retry = True


class Busy(CallError):
    """The server is there and accepts no more requests for the moment."""

    kind = RemoteUnavailable
    retry = True
    counts = False


class TimedOut(CallError):
    """The server did not answer in time."""

    kind = DeadlineExceeded


class ServerError(CallError):
    """The server failed, has no such model, or does not authorize us."""


class RequestRejected(CallError):
    """The server reports that the request is wrong."""

    counts = False


class InvalidResponse(CallError):
    """The response has another form, type or size than expected, or holds no probabilities."""

    counts = False


class Output(NamedTuple):
    """A model's output tensor, and the version that computed it; empty if the server does not report it."""

    values: NDArray[Any]
    version: str
