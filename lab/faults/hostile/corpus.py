"""The corpus: input number n of a seed is always the same, so that what failed can be sent again alone."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from random import Random

from ensemble_serving.protocol import inference_pb2 as pb
from lab.faults.hostile.bombs import BOMBS
from lab.faults.hostile.documents import DOCUMENTS, INFER
from lab.faults.hostile.forms import FORMS, form, part
from lab.faults.hostile.inputs import Input, classify, request
from lab.faults.hostile.messages import MESSAGES
from lab.faults.hostile.mutations import mutated, truncated
from lab.faults.hostile.pictures import ANIMATED, FORMATS, animated, well_formed
from lab.faults.hostile.wires import WIRES


def _sent(kind: str, image: bytes, rng: Random) -> Input:
    """An image, by one of the ways that images take."""
    way = rng.random()
    if way < 0.7:
        return Input(kind, classify(image, rng.choice(("image/jpeg", "image/png", "application/octet-stream"))))
    if way < 0.8:
        body = form([part(b"image", image)], b"a-boundary-that-no-image-holds")
        declared = "multipart/form-data; boundary=a-boundary-that-no-image-holds"
        return Input(kind, request("POST", "/classify", {"Content-Type": declared}, body))
    if way < 0.9:
        data = base64.b64encode(image)
        tensor = b'{"inputs":[{"name":"image","datatype":"BYTES","shape":[1],"data":["%b"]}]}' % data
        return Input(kind, request("POST", INFER, {"Content-Type": "application/json"}, tensor))
    asked = pb.ModelInferRequest(model_name="ensemble")
    asked.inputs.add(name="image", datatype="BYTES", shape=[1])
    asked.raw_input_contents.append(struct.pack("<I", len(image)) + image)
    return Input(kind, asked.SerializeToString(), "grpc")


def _mutated(rng: Random) -> Input:
    name = rng.choice(tuple(FORMATS))
    moving = name in ANIMATED and rng.random() < 0.15
    return _sent(
        f"mutated pictures: {name}", mutated(animated(name, 5) if moving else well_formed(name, rng), rng), rng
    )


def _truncated(rng: Random) -> Input:
    name = rng.choice(tuple(FORMATS))
    return _sent(f"truncated pictures: {name}", truncated(well_formed(name, rng), rng), rng)


def _bomb(rng: Random) -> Input:
    name = rng.choice(tuple(BOMBS))
    return _sent(f"bombs: {name}", BOMBS[name](rng), rng)


def _of(kinds: tuple[Callable[[Random], Input], ...]) -> Callable[[Random], Input]:
    return lambda rng: rng.choice(kinds)(rng)


# What is made, and how often of a hundred.
SHARES: tuple[tuple[int, Callable[[Random], Input]], ...] = (
    (30, _mutated),
    (10, _truncated),
    (12, _bomb),
    (10, _of(FORMS)),
    (10, _of(DOCUMENTS)),
    (13, _of(MESSAGES)),
    (15, _of(WIRES)),
)


def made(seed: int, number: int) -> Input:
    """The input of this number."""
    rng = Random(f"{seed}/{number}")
    [make] = rng.choices([make for _, make in SHARES], [share for share, _ in SHARES])
    return make(rng)
