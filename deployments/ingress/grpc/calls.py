"""A gRPC call that is answered: who answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from deployments.observe.observer import Call

Handler = Callable[[Any, Call], Awaitable[Message]]
Calls = dict[str, "Rpc"]


@dataclass(frozen=True)
class Rpc:
    """What answers a method.

    Attributes:
        handler: answers a request; every `EnsembleError` that it raises is told.
        answer: the type of its answer, which is empty where there is an error.
        observed: as what its calls are traced and counted, `<service>/<method>`; empty for not at all.
        is_open: whether it needs no key where others do.
        parts: the most images or labels that a request holds; None for as many images as the settings allow.
    """

    handler: Handler
    answer: type[Message]
    observed: str = ""
    is_open: bool = False
    parts: int | None = None
