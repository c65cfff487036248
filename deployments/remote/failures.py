"""What can go wrong with a call to another server, and what follows of it."""

from __future__ import annotations

from typing import ClassVar

from deployments.contract.errors import DeadlineExceeded, EnsembleError, InferenceFailed, RemoteUnavailable


class CallError(Exception):
    """A call to another server failed; its text is for the log, for it may quote that server.

    Attributes:
        kind: what the images are answered with.
        retry: whether the same call may succeed at once, or elsewhere.
        counts: whether it speaks against the server's address; several in a row, and it is left alone for a while.
    """

    kind: ClassVar[type[EnsembleError]] = InferenceFailed
    retry: ClassVar[bool] = False
    counts: ClassVar[bool] = True


class Unreachable(CallError):
    """No connection, or it ended, or the server says that it is not available."""

    kind = RemoteUnavailable
    retry = True


class Busy(CallError):
    """The server is there and takes no more for the moment."""

    kind = RemoteUnavailable
    retry = True
    counts = False


class Late(CallError):
    """No answer in its time."""

    kind = DeadlineExceeded


class Failed(CallError):
    """The server failed, or has no such model, or doesn't let us in."""


class Refused(CallError):
    """The server calls the request wrong."""

    counts = False


class Nonsense(CallError):
    """The answer is none: not the shape, the type or the size that was expected, or no probabilities."""

    counts = False


class Misfit(CallError):
    """The server's model does not take or give what this member needs."""
