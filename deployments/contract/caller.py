"""The sender of a request, for admission."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

NO_HEADERS: Mapping[str, str] = {}
# HAProxy sets it, and discards what the client sent by that name.
ADDRESS = "x-forwarded-for"
# A request's own id, over HTTP and in gRPC's metadata, and the most bytes that one may have.
REQUEST_IDS, MAX_ID = ("x-request-id", "request_id"), 256
FairBy = Literal["key", "address", "nobody"]


class Caller(NamedTuple):
    """The sender of a request.

    Attributes:
        client: name of its share of the in-flight limit: its API key's name, its address, or none.
        headers: the request's headers that features use, by their names in small letters.
        name: of its API key; empty if it has none.
        address: its own, as HAProxy sees it; empty where there is no HAProxy.
    """

    client: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    name: str = ""
    address: str = ""

    @property
    def request_id(self) -> str:
        """The request's own id, where its header is kept; empty if it has none."""
        return next((self.headers[name] for name in REQUEST_IDS if self.headers.get(name)), "")


ANYONE = Caller()
