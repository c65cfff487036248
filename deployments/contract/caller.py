"""The sender of a request, for admission."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

from deployments.contract.errors import InvalidParameter

NO_HEADERS: Mapping[str, str] = {}
# HAProxy sets it, and discards what the client sent by that name.
ADDRESS = "x-forwarded-for"
# A request's own id, over HTTP and in gRPC's metadata, and the most bytes that one may have.
REQUEST_IDS, MAX_ID = ("x-request-id", "request_id"), 256
# What decides about a request: of two values, one reader may take the first and another one the last.
ONCE = frozenset(
    {"authorization", "content-encoding", "content-type", "host", "inference-header-content-length", "origin"}
) | {"sec-fetch-site", "traceparent", *REQUEST_IDS}
FairBy = Literal["key", "address", "nobody"]


class Caller(NamedTuple):
    """The sender of a request.

    Attributes:
        client: its share of the in-flight limit is kept under this name: that of its API key, its address, or none.
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


def caller(headers: Mapping[str, str], name: str, fair_by: FairBy, kept: Collection[str] = ()) -> Caller:
    """Describe the sender of a request with these HTTP headers, or gRPC metadata; the `kept` ones stay.

    `name` is that of the API key, empty if there is none.
    """
    address = headers.get(ADDRESS, "")
    client = {"key": name, "address": address, "nobody": ""}[fair_by]
    found = {each: headers[each] for each in kept if each in headers} if kept else NO_HEADERS
    return Caller(client, found, name, address)


def check_once(names: Sequence[str]) -> None:
    """Raise InvalidParameter if one of the headers `ONCE`, or such an entry of gRPC's metadata, comes several times."""
    if len(names) != len(set(names)) and (repeated := [each for each in ONCE if names.count(each) > 1]):
        raise InvalidParameter(f"the header {min(repeated)!r} comes {names.count(min(repeated))} times; send it once")
