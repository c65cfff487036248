"""JSON that is cheap to send: a request as its schema has it, with one place of it blown up."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from deployments.ingress.settings import MOST_ELEMENTS
from scripts.shipped import shipped

# Stands where something large will; in what a schema asks for it does not occur.
PLACE = "\u2063"
# What a server may count and refuse is sent in this number, too.
NEARLY = MOST_ELEMENTS - 64
Blown = Callable[[Random, int], str]


def _many(unit: str) -> Blown:
    return lambda rng, size: "[" + ",".join([unit] * max(1, size // (len(unit) + 1))) + "]"


def _few(unit: str) -> Blown:
    """As many as may be, padded to the size by blanks."""

    def made(rng: Random, size: int) -> str:
        each = 1 + unit.count(",") + unit.count("[") + unit.count("{")
        count = max(1, min(NEARLY // each, size // (len(unit) + 1)))
        return "[" + ",".join([unit + " " * max(0, size // count - len(unit) - 1)] * count) + "]"

    return made


def _repeated(part: str) -> Blown:
    return lambda rng, size: '"' + part * (size // len(part)) + '"'


def _names(rng: Random, size: int) -> str:
    return "{" + ",".join(f'"{number:x}":0' for number in range(max(1, min(size // 9, NEARLY)))) + "}"


def _same_names(rng: Random, size: int) -> str:
    return "{" + ",".join(['"a":0'] * max(1, min(size // 6, NEARLY))) + "}"


def _long_names(rng: Random, size: int) -> str:
    count = rng.choice((1, 100, 10_000))
    return "{" + ",".join(f'"{number}{"x" * (size // count)}":0' for number in range(count)) + "}"


def _nested(opening: str, closing: str, whole: bool) -> Blown:
    def made(rng: Random, size: int) -> str:
        depth = max(1, size // (len(opening) + len(closing)))
        depth = rng.choice((depth, min(depth, NEARLY), min(depth, 900)))
        return opening * depth + "0" + closing * (depth if whole else 0)

    return made


def _image(rng: Random, size: int) -> str:
    return json.dumps(base64.b64encode(shipped("tests/cat.jpg").read_bytes()).decode())


def _images(rng: Random, size: int) -> str:
    each = _image(rng, size)
    return "[" + ",".join([each] * max(1, min(size // len(each), 64))) + "]"


TEXTS: dict[str, Blown] = {
    "a long text": _repeated("x"),
    "a text of escapes": _repeated("\\u0041"),
    "a text of escaped pairs": _repeated("\\ud83d\\ude00"),
    "a text of quotes": _repeated('\\"'),
    "a text of emoji": _repeated("\U0001f600"),
    "a text of commas": _repeated(","),
    "base64 of zeros": _repeated("AAAA"),
    "base64 of a short text and blanks": _repeated("A   "),
    "many empty arrays": _many("[]"),
    "many empty objects": _many("{}"),
    "many zeros": _many("0"),
    "many empty texts": _many('""'),
    "as many numbers as may be, long": _few("1e-300"),
    "as many empty objects as may be": _few("{}"),
    "as many small objects as may be": _few('{"b64":""}'),
    "as many tensors as may be": _few('{"name":"image","datatype":"BYTES","shape":[1],"data":[""]}'),
    "as many nested arrays as may be": _few("[[[[]]]]"),
    "many names": _names,
    "one name repeated": _same_names,
    "long names": _long_names,
    "deep arrays": _nested("[", "]", True),
    "deep objects": _nested('{"a":', "}", True),
    "deep arrays without an end": _nested("[", "", False),
    "a number of many digits": lambda rng, size: "1" + "9" * size,
    "a fraction of many digits": lambda rng, size: "0." + "1" * size,
    "a large exponent": lambda rng, size: "1e" + "9" * max(1, size),
    "blanks": lambda rng, size: " " * size + "0",
    "many small photographs": _images,
}


def body(schema: Mapping[str, Any], schemas: Mapping[str, Any], text: str, rng: Random, size: int) -> bytes:
    """A JSON body in one place of which this text stands, of about so many bytes; the place may be the whole."""
    whole = example(schema, schemas)
    places = list(_places(whole))
    holder, key = rng.choice(places) if places and rng.random() < 0.9 else ({}, "")
    if key != "":
        holder[key] = PLACE
        return json.dumps(whole, ensure_ascii=False).replace(f'"{PLACE}"', TEXTS[text](rng, size)).encode()
    return TEXTS[text](rng, size).encode()


def example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """A value that a JSON schema allows, with every field."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for alternatives in ("anyOf", "oneOf"):
        if alternatives in schema:
            return example(schema[alternatives][0], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        fields = schema.get("properties", {}) or {"b64": {"type": "string"}, "version": {"type": "integer"}}
        return {name: example(field, schemas) for name, field in fields.items()}
    if kind == "array":
        return [example(schema.get("items") or {"type": "object"}, schemas)]
    return {"integer": 1, "number": 1.5, "boolean": True}.get(str(kind), "image")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document: what holds it, and its name or position there."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)
