"""Who asks, as far as admission cares."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

NO_HEADERS: Mapping[str, str] = {}
# Our HAProxy sets it, whatever the client sent by that name.
ADDRESS = "x-forwarded-for"
FairBy = Literal["key", "address", "nobody"]


class Caller(NamedTuple):
    """A request's sender.

    Attributes:
        client: what it shares the room by: the name of its API key, or its address; empty where all are alike.
        headers: those of the request that something goes by, by their names in small letters.
        name: of the API key that it showed; empty if it showed none.
    """

    client: str = ""
    headers: Mapping[str, str] = NO_HEADERS
    name: str = ""


ANYONE = Caller()


def caller(headers: Mapping[str, str], name: str, fair_by: FairBy, kept: Collection[str] = ()) -> Caller:
    """The sender of a request.

    Args:
        headers: of HTTP, or the metadata of gRPC.
        name: of the API key that it showed; empty if it showed none.
        fair_by: what clients are told apart by.
        kept: the headers that something goes by.
    """
    client = name if fair_by == "key" else headers.get(ADDRESS, "") if fair_by == "address" else ""
    found = {each: headers[each] for each in kept if each in headers} if kept else NO_HEADERS
    return Caller(client, found, name)
