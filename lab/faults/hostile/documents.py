"""Hostile JSON, for the Open Inference Protocol."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from random import Random
from typing import Any

from lab.faults.hostile.inputs import Input, request
from lab.faults.hostile.mutations import mutated, truncated
from lab.faults.hostile.pictures import well_formed

INFER = "/v2/models/ensemble/infer"
# JSON that is not what is expected, wherever it stands.
VALUES = (
    "null",
    "true",
    "0",
    "-1",
    "1.5",
    "1e999",
    "-1e-999",
    "NaN",
    "-Infinity",
    "9" * 400,
    "9" * 5000,
    '""',
    '"\\ud800"',
    '"\\u0000"',
    '"' + "x" * 10_000 + '"',
    "[]",
    "[[[[]]]]",
    "{}",
    '{"a": {"a": {}}}',
    "[1, [2], {}]",
    "18446744073709551616",
)


def _body(rng: Random) -> dict[str, Any]:
    data = [base64.b64encode(well_formed("jpeg", rng)).decode()]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": data}
    return {"id": "7", "inputs": [tensor], "parameters": {"top_k": 1}, "outputs": [{"name": "label"}]}


def _sent(kind: str, body: bytes, declared: str = "application/json") -> Input:
    return Input(kind, request("POST", INFER, {"Content-Type": declared}, body))


def _damaged(rng: Random) -> Input:
    return _sent("JSON: damaged", rng.choice((mutated, truncated))(json.dumps(_body(rng)).encode(), rng))


def _wrong(rng: Random) -> Input:
    body = _body(rng)
    tensor = body["inputs"][0]
    holder, name = rng.choice(
        [(each, name) for each in (body, tensor, body["parameters"], body["outputs"][0]) for name in each]
        + [(body["parameters"], name) for name in ("members", "timeout_ms", "anything")]
        + [(tensor["shape"], 0), (tensor["data"], 0), (body["inputs"], 0), (body["outputs"], 0)]
    )
    holder[name] = "HERE"
    return _sent("JSON: wrong types", json.dumps(body).replace('"HERE"', rng.choice(VALUES)).encode())


def _deep(rng: Random) -> Input:
    depth = rng.choice((100, 1_000, 100_000, 1_000_000))
    opening, closing = rng.choice((("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")))
    text = opening * depth + rng.choice(("", "1")) + closing * rng.choice((depth, 0))
    return _sent(
        "JSON: deep", rng.choice(("%s", '{"inputs": %s}', '{"parameters": {"x": %s}}')).replace("%s", text).encode()
    )


def _long(rng: Random) -> Input:
    unit = rng.choice(("[]", "{}", "0", '""', "null", '"iVBO"', "[[]]", "1e9"))
    many = ",".join([unit] * rng.choice((1_000, 100_000, 1_000_000)))
    frame = rng.choice(
        ("[%s]", '{"inputs": [%s]}', '{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": [%s]}]}')
    )
    return _sent("JSON: long", frame.replace("%s", many).encode())


def _wide(rng: Random) -> Input:
    names = ",".join(f'"{rng.getrandbits(40)}":0' for _ in range(rng.choice((100, 10_000))))
    return _sent("JSON: many names", rng.choice(("{%s}", '{"parameters": {%s}}')).replace("%s", names).encode())


def _text(rng: Random) -> Input:
    text = json.dumps(_body(rng))
    body = rng.choice(
        (
            b"\xef\xbb\xbf" + text.encode(),
            text.encode("utf-16"),
            text.encode("utf-32"),
            text.replace("image", "im\udcffage").encode("utf-8", "surrogateescape"),
            text.replace('"7"', '"\\ud800"').encode(),
            text.replace('"image"', '"\\udfff"').encode(),
            text.replace('"id"', '"inputs"').encode(),
            b"\0" + text.encode(),
            b"",
        )
    )
    return _sent(
        "JSON: odd text", body, rng.choice(("application/json", "application/json; charset=utf-16", "text/json"))
    )


def _base64(rng: Random) -> Input:
    body = _body(rng)
    good = body["inputs"][0]["data"][0]
    bad = rng.choice(
        (good[:-1], good + "=", "=" * 100, good.replace("A", "-"), "\n".join(good), "é" + good, "A" * 10**6)
    )
    body["inputs"][0]["data"] = [bad]
    return _sent("JSON: bad base64", json.dumps(body).encode())


DOCUMENTS: tuple[Callable[[Random], Input], ...] = (
    _damaged,
    _damaged,
    _wrong,
    _wrong,
    _wrong,
    _deep,
    _long,
    _wide,
    _text,
    _base64,
)
