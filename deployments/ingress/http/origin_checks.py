"""Refuses what a web page of another origin makes a browser send: under a foreign host name, or to change something."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from deployments.contract.errors import Forbidden, MisdirectedRequest
from deployments.contract.hosts import is_address
from deployments.ingress.options import MOST_QUOTED

ANY = "*"
# https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site; no page can set it.
SITE, OWN = "sec-fetch-site", frozenset({"same-origin", "none"})


def check_host(headers: Mapping[str, str], hosts: Collection[str] | None, is_local: bool) -> None:
    """Refuse a request to a host name that is not this server's: somebody may have pointed it at this address.

    An address can't be pointed elsewhere, and browsers resolve `localhost` themselves. A server that is local listens
    on loopback alone; other names are those of `ingress.hosts`.

    Raises:
        MisdirectedRequest: it is for a name that the server does not have.
    """
    host = headers.get("host")
    if host is None or (hosts is None and not is_local):
        return
    name = _name(host)
    if not _is_own(name) and not _is_among(name, hosts or ()):
        raise MisdirectedRequest(
            f"this server does not answer for the host {name[:MOST_QUOTED]!r}; ask it by its address or as localhost, "
            "or let its configuration list the name in ingress.hosts"
        )


def check_origin(headers: Mapping[str, str], hosts: Collection[str] | None) -> None:
    """Refuse a request that may change something if a web page of another origin makes a browser send it.

    The pages of `hosts`, the names of `ingress.hosts`, may send it; `*` is none of them.

    Raises:
        Forbidden: such a page makes a browser send it, perhaps behind its reader's back.
    """
    origin = headers.get("origin", "")
    # A proxy that ends TLS may change `Host`, but not what the browser says about its page.
    if headers.get(SITE) in OWN or (not origin and SITE not in headers):
        return
    authority = origin.partition("://")[2].lower()
    if authority and (authority == headers.get("host", "").lower() or _is_among(_name(authority), hosts or (), ())):
        return
    raise Forbidden(
        "a browser sends this for a web page of another origin; ask without the header Origin, or let the server's "
        "configuration list the page's host in ingress.hosts"
    )


# Bounded, since clients choose the names; the same few come again and again.
@lru_cache(maxsize=64)
def _is_own(name: str) -> bool:
    """Tell whether nobody else can let a name stand for this server: an IP address, or localhost."""
    return is_address(name) or name == "localhost" or name.endswith(".localhost")


def _name(authority: str) -> str:
    """Return the host of `host:port`, in small letters."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower().removesuffix(".")


def _is_among(name: str, hosts: Collection[str], any_of: Collection[str] = (ANY,)) -> bool:
    """Tell whether a list has the name, or an entry `.end` that the name ends with."""
    return any(
        each in any_of or name == each.removeprefix(".") or (each.startswith(".") and name.endswith(each))
        for each in map(str.lower, hosts)
    )
