"""Refuses what a web page elsewhere makes a browser send: by another name of this server, or to change something."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from deployments.contract.errors import Forbidden, MisdirectedRequest
from deployments.contract.hosts import is_address
from deployments.ingress.options import MOST_QUOTED

ANY = "*"
# https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site; no page can set it.
SITE, OWN = "sec-fetch-site", frozenset({"same-origin", "none"})


def check_host(headers: Mapping[str, str], hosts: Collection[str] | None, is_local: bool) -> None:
    """Look whether the request is for this server, and not for a name that somebody let stand for its address.

    An address can't be made to stand for another, and browsers resolve `localhost` themselves.

    Args:
        headers: of the request.
        hosts: the names of `ingress.hosts`.
        is_local: whether the server listens on loopback alone.

    Raises:
        MisdirectedRequest: it is for a name that the server does not have.
    """
    host = headers.get("host")
    if host is None or (hosts is None and not is_local):
        return
    name = _name(host)
    known = is_address(name) or name == "localhost" or name.endswith(".localhost")
    if not known and not _is_among(name, hosts or ()):
        raise MisdirectedRequest(
            f"this server does not answer for the host {name[:MOST_QUOTED]!r}; ask it by its address or as localhost, "
            "or let its configuration list the name in ingress.hosts"
        )


def check_origin(headers: Mapping[str, str], hosts: Collection[str] | None) -> None:
    """Look whether a request that may change something is no web page's, or a page's of this server.

    Args:
        headers: of the request.
        hosts: the names of `ingress.hosts`, whose pages may, too; not `*`.

    Raises:
        Forbidden: a page elsewhere makes a browser send it, behind its reader's back perhaps.
    """
    origin = headers.get("origin", "")
    # A proxy that ends TLS may change `Host`; what the browser says of its page holds.
    if headers.get(SITE) in OWN or (not origin and SITE not in headers):
        return
    authority = origin.partition("://")[2].lower()
    if authority and (authority == headers.get("host", "").lower() or _is_among(_name(authority), hosts or (), ())):
        return
    raise Forbidden(
        "a browser sends this for a web page of another origin; ask without the header Origin, or let the server's "
        "configuration list the page's host in ingress.hosts"
    )


def _name(authority: str) -> str:
    """The host of `host:port`, in small letters."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].lower().removesuffix(".")


def _is_among(name: str, hosts: Collection[str], any_of: Collection[str] = (ANY,)) -> bool:
    """Whether a list has the name, or `.` and the end of it."""
    return any(
        each in any_of or name == each.removeprefix(".") or (each.startswith(".") and name.endswith(each))
        for each in map(str.lower, hosts)
    )
