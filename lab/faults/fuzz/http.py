"""The fuzzer for HTTP: requests made from a server's OpenAPI document, and others that no client would write."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from random import Random
from typing import Any

from lab.faults.fuzz.bodies import UNLISTED, Endpoint, kinds
from lab.faults.fuzz.inputs import MIB, MOST_BYTES, Input
from lab.faults.fuzz.wires import Draft

MOST_PIECES = 2000
# In place of a name in a path, so that no member is unloaded.
NOBODY = "nobody"


class HttpFuzzer:
    """Makes inputs for every route of an OpenAPI document, and for those that it leaves out.

    Attributes:
        routes: by method and path.
        kinds: by method and path, what can be made for the route.
        endpoints: the methods and paths.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        """Read the document."""
        self.routes = {f"{each.method} {path}": each for path, each in routes(document).items()}
        self.kinds = {where: kinds(each) for where, each in self.routes.items()}
        self.endpoints = list(self.kinds)

    def made(self, where: str, what: str, key: str, rng: Random, size: int) -> Input:
        """Make an input of a kind."""
        endpoint, draft = self.routes[where], self.kinds[where][what](rng, size)
        if draft.raw:
            return Input(where, what, draft.raw, whole=False)
        documented = draft.whole and not what.startswith(("heads", "HTTP"))
        if draft.body and draft.length is None:
            what = _packed(draft, what, rng)
            what = _in_chunks(draft, what, rng)
        pieces = rng.randrange(2, MOST_PIECES) if rng.random() < 0.05 else 1
        what += f", in {pieces} pieces" if pieces > 1 else ""
        content = _written(endpoint, draft, key)
        shown = bool(key)
        return Input(where, what, content, "http", shown, (), "", draft.whole, documented, draft.due, pieces)


def routes(document: Mapping[str, Any]) -> dict[str, Endpoint]:
    """Return the routes of an OpenAPI document, and those that it leaves out, by path."""
    schemas = document["components"]["schemas"]
    listed = {path: next(iter(operations.items())) for path, operations in document["paths"].items()}
    others = {path: listed.get(same, ("get", {})) for path, same in UNLISTED.items() if path not in listed}
    return {path: _route(path, each[0], each[1], schemas) for path, each in (listed | others).items()}


def _route(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Endpoint:
    content = operation.get("requestBody", {}).get("content", {})
    for parameter in operation.get("parameters", ()):
        path = path.replace("{" + parameter["name"] + "}", NOBODY)
    schema = content.get("application/json", {}).get("schema")
    return Endpoint(method.upper(), path, schema, schemas, "image/*" in content)


def _written(endpoint: Endpoint, draft: Draft, key: str) -> bytes:
    start = draft.start or b"%b %b%b HTTP/1.1" % (endpoint.method.encode(), endpoint.path.encode(), draft.query)
    lines = [start, b"Host: localhost", b"Connection: " + draft.connection]
    if key:
        lines.append(b"Authorization: Bearer " + key.encode())
    length = b"Content-Length: %d" % len(draft.body) if draft.length is None else draft.length
    return b"\r\n".join([*lines, *draft.lines, length]) + b"\r\n\r\n" + draft.body


def _packed(draft: Draft, what: str, rng: Random) -> str:
    """Compress a body now and then; returns what the input is now."""
    if any(b"Content-Encoding" in line for line in draft.lines) or rng.random() < 0.8:
        return what
    encoding, wbits = rng.choice((("gzip", 31), ("deflate", 15)))
    packer = zlib.compressobj(rng.choice((1, 9)) if len(draft.body) < MIB else 1, wbits=wbits)
    draft.body = packer.compress(draft.body) + packer.flush()
    draft.lines.append(f"Content-Encoding: {encoding}".encode())
    return f"{what}, by {encoding}"


def _in_chunks(draft: Draft, what: str, rng: Random) -> str:
    """Send a body in chunks of a byte now and then, of six bytes on the wire each; returns what the input is now."""
    if len(draft.body) > MOST_BYTES // 6 or rng.random() < 0.95:
        draft.body = draft.body[: MOST_BYTES + 2**15]
        return what
    draft.body = b"".join(b"1\r\n%c\r\n" % byte for byte in draft.body) + b"0\r\n\r\n"
    draft.length = b"Transfer-Encoding: chunked"
    return f"{what}, in chunks of a byte"
