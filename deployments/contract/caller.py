"""The sender of a request, for admission."""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Network
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
    def sender(self) -> str:
        """Whose it is where each sender has a share: its API key's name, or the network of its address."""
        return self.name or network(self.address)

    @property
    def request_id(self) -> str:
        """The request's own id, where its header is kept; empty if it has none."""
        return next((self.headers[name] for name in REQUEST_IDS if self.headers.get(name)), "")


# Bounded, since clients choose the addresses; the same few come again and again.
@lru_cache(maxsize=1024)
def network(address: str) -> str:
    """Return the network that one sender may have: of an address of IPv6 its first 64 bits, else the address."""
    return str(IPv6Network((address, 64), strict=False)) if ":" in address else address


ANYONE = Caller()
