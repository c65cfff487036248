"""The headers of a request: who sends it, whether it may come, and what it asks for."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from urllib.parse import parse_qsl

from msgspec.structs import replace

from deployments.contract.caller import ADDRESS, NO_HEADERS, REQUEST_IDS, Caller, FairBy, network
from deployments.contract.errors import Forbidden, InvalidParameter, MisdirectedRequest
from deployments.contract.hosts import ANY, is_address
from deployments.contract.options import LOWER, Options
from deployments.ingress.options import MOST_QUOTED, from_keywords

# What decides about a request: of two values, one reader may take the first and another one the last.
ONCE = frozenset(
    {"authorization", "content-encoding", "content-type", "host", "inference-header-content-length", "origin"}
) | {"sec-fetch-site", "traceparent", *REQUEST_IDS}
OPTIONS = "ensemble-options"
# Of the header `Priority`: work in the background. Browsers set the urgencies above it by themselves.
# https://www.rfc-editor.org/rfc/rfc9218#section-4.1
BACKGROUND = re.compile(r"(?:^|,)\s*u=7\s*(?:[,;]|$)")
# https://developer.mozilla.org/en-US/docs/Web/HTTP/Reference/Headers/Sec-Fetch-Site; no page can set it.
SITE, OWN = "sec-fetch-site", frozenset({"same-origin", "none"})


def check_once(names: Sequence[str]) -> None:
    """Raise InvalidParameter if one of the headers `ONCE`, or such an entry of gRPC's metadata, comes several times."""
    if len(names) != len(set(names)) and (repeated := [each for each in ONCE if names.count(each) > 1]):
        raise InvalidParameter(f"the header {min(repeated)!r} comes {names.count(min(repeated))} times; send it once")


def caller(headers: Mapping[str, str], name: str, fair_by: FairBy, kept: Collection[str] = ()) -> Caller:
    """Describe the sender of a request with these HTTP headers, or gRPC metadata; the `kept` ones stay.

    `name` is the API key's, empty if there is none.
    """
    address = headers.get(ADDRESS, "")
    client = network(address) if fair_by == "address" else name if fair_by == "key" else ""
    found = {each: headers[each] for each in kept if each in headers} if kept else NO_HEADERS
    return Caller(client, found, name, address)


def check_host(headers: Mapping[str, str], hosts: Collection[str]) -> None:
    """Refuse a request to a host name that is not this server's: somebody may have pointed it at this address.

    An address can't be pointed elsewhere, and browsers resolve `localhost` themselves. Other names are `hosts`, the
    setting `ingress.hosts`.

    Raises:
        MisdirectedRequest: it is for a name that the server does not have.
    """
    if (host := headers.get("host")) is None:
        return
    name = _name(host)
    if not _is_own(name) and not _is_among(name, hosts):
        raise MisdirectedRequest(
            f"this server does not answer for the host {name[:MOST_QUOTED]!r}; ask it by its address or as localhost, "
            "or let its configuration list the name in ingress.hosts"
        )


def check_origin(headers: Mapping[str, str], hosts: Collection[str] | None, origins: Collection[str] = ()) -> None:
    """Refuse a request that may change something if a web page of another origin makes a browser send it.

    The pages of `origins`, the setting `ingress.origins`, may send it, and the pages of `hosts`, the names of
    `ingress.hosts`, of which `*` is none.

    Raises:
        Forbidden: such a page makes a browser send it, perhaps behind its reader's back.
    """
    origin = headers.get("origin", "")
    # A proxy that ends TLS may change `Host`, but not what the browser says about its page.
    if headers.get(SITE) in OWN or (not origin and SITE not in headers) or origin in origins or ANY in origins:
        return
    authority = origin.partition("://")[2].lower()
    if authority and (authority == headers.get("host", "").lower() or _is_among(_name(authority), hosts or (), ())):
        return
    raise Forbidden(
        f"a browser sends this for a web page of another origin, {origin[:MOST_QUOTED]!r}; let the server's "
        "configuration list the origin in ingress.origins, or ask without the header Origin"
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


def with_options(options: Options, headers: Mapping[str, str]) -> Options:
    """Add the options of a request's headers.

    `Ensemble-Options` has options as a query has them, `top_k=3&members=true`, for clients that can't change the path.
    `Cache-Control` controls a cache by `no-store` or `no-cache`. `Priority: u=7` is the lower class for a request that
    has no priority otherwise.

    Raises:
        InvalidParameter: one is unknown, of the wrong type or out of bounds.
    """
    if (given := headers.get(OPTIONS)) is not None:
        named = from_keywords(dict(parse_qsl(given, keep_blank_values=True)), strict=False)
        options = from_keywords({**options.chosen(), **named.chosen()})
    if not options.priority and BACKGROUND.search(headers.get("priority", "")):
        options = replace(options, priority=LOWER)
    control = headers.get("cache-control")
    if control is None:
        return options
    directives = {directive.strip().lower() for directive in control.split(",")}
    if "no-store" in directives:
        return replace(options, cache="no-store")
    return replace(options, cache="no-cache") if "no-cache" in directives else options
