"""Coverage-guided fuzzing of the parsers that are this project's own; found inputs become cases of the tests.

    python3 -m venv .venv-fuzz && .venv-fuzz/bin/pip install atheris && .venv-fuzz/bin/pip install -e . --group dev
    .venv-fuzz/bin/python -m tests.fuzz corpus -max_total_time=3600

`corpus` is a folder; it begins with a well-formed input of each kind, and keeps what reaches new code. The flags are
libFuzzer's. The first byte of an input says which parser reads the rest; each must answer it or refuse it as the
caller's mistake, and anything else ends the run and writes the input to a file.
"""

import base64
import gzip
import io
import json
import struct
import sys
from contextlib import suppress
from pathlib import Path

import atheris
import msgspec

with atheris.instrument_imports(include=["deployments", "graph", "msgspec", "starlette"]):
    from PIL import Image

    from deployments.contract.errors import ImageTooLarge, InvalidImage, InvalidParameter
    from deployments.ingress.open_inference.tensors import split
    from deployments.rpc import wire
    from deployments.transformer.decoding import read_header
    from deployments.transformer.transformer import TransformerSettings
    from tests.door import Door
    from tests.unit.deployments.rpc.test_frames import feed

LIMITS = TransformerSettings(max_image_pixels=10_000)
FORM = b"multipart/form-data; boundary=b"


def ask(path, body, headers=(), query=b""):
    """Ask the application, which answers, or refuses what is the caller's mistake."""
    status, told = Door().ask(path, body, headers, query=query)
    assert status == 200 or 400 <= status < 500, (status, told)


def request(path, *headers):
    """A target: the rest of the input is a body."""
    return lambda body: ask(path, body, headers)


def binary(path):
    """A target: a JSON header whose length the first two bytes tell, and tensors behind it."""

    def target(content):
        length = str(int.from_bytes(content[:2], "little")).encode()
        ask(path, content[2:], [("Inference-Header-Content-Length", length)])

    return target


def query(content):
    """A target: the input is a query."""
    ask("/classify", b"x", query=content)


def header(content):
    """A target: the input's first line is the value of a header that we read."""
    value, _, body = content.partition(b"\n")
    for name in ("Content-Type", "traceparent", "Content-Encoding", "Cache-Control", "X-Request-Id"):
        ask("/classify", body, [(name, value)])


def refused(parse):
    """A target that may refuse."""

    def target(content):
        with suppress(InvalidParameter, InvalidImage, ImageTooLarge):
            parse(content)

    return target


def frames(content):
    """A target: what a process of the graph hears from another, in pieces of the first byte's size."""
    party, _ = feed(content[1:], [content[0] + 1] * len(content) if content else [])
    for _, content in party.frames:
        with suppress(ValueError, LookupError, msgspec.DecodeError):
            wire.decode(memoryview(content))


INFER, IMAGE = "/v2/models/ensemble/infer", base64.b64encode(b"image").decode()
TARGETS = {
    "infer": request(INFER),
    "binary": binary(INFER),
    "gzip": request(INFER, ("Content-Encoding", b"gzip")),
    "predict": request("/v1/models/ensemble:predict"),
    "seldon": request("/api/v1.0/predictions"),
    "form": request("/classify", ("Content-Type", FORM)),
    "query": query,
    "header": header,
    "picture": refused(lambda content: read_header(content, LIMITS)),
    "split": refused(lambda content: split(content, 16)),
    "frames": frames,
}


def seeds():
    """A well-formed input of each kind."""
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [IMAGE]}
    infer = json.dumps({"id": "7", "inputs": [tensor], "outputs": [{"name": "label"}], "parameters": {"top_k": 2}})
    raw = struct.pack("<I", 5) + b"image"
    told = {**tensor, "parameters": {"binary_data_size": len(raw)}}
    del told["data"]
    outputs = [{"name": "probabilities", "parameters": {"classification": 3, "binary_data": True}}]
    head = json.dumps({"inputs": [told], "outputs": outputs}).encode()
    part = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\nContent-Type: image/png\r\n\r\nx\r\n'
    yield "infer", infer.encode()
    yield "binary", struct.pack("<H", len(head)) + head + raw
    yield "gzip", gzip.compress(infer.encode(), mtime=0)
    yield "predict", json.dumps({"instances": [{"image": {"b64": IMAGE}}], "signature_name": "x"}).encode()
    yield "predict", json.dumps({"inputs": {"image": [{"b64": IMAGE}]}}).encode()
    yield "seldon", json.dumps({"data": {"tensor": {"shape": [1, 1, 1, 3], "values": [1, 2, 3]}}}).encode()
    yield "seldon", json.dumps({"data": {"ndarray": [[[[1, 2, 3]]]]}, "meta": {"puid": "x"}}).encode()
    yield "seldon", json.dumps({"data": {"tftensor": {"dtype": "DT_STRING", "stringVal": [IMAGE]}}}).encode()
    yield "form", part * 2 + b"--b--\r\n"
    yield "query", b"top_k=3&members=true&timeout_ms=100&quality=full"
    yield "header", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\nx"
    for kind in ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000"):
        out = io.BytesIO()
        Image.new("RGB", (12, 9)).save(out, kind, **({"progressive": True} if kind == "JPEG" else {}))
        yield "picture", out.getvalue()
    yield "split", raw * 2
    yield "frames", b"\x07" + wire.HEAD.pack(1, 3) + b"bbb"


def one(content):
    """Give an input to its parser."""
    if content:
        list(TARGETS.values())[content[0] % len(TARGETS)](content[1:])


def main():
    """Fill the corpus, and fuzz."""
    folder = Path(next((flag for flag in sys.argv[1:] if not flag.startswith("-")), "corpus"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, (target, content) in enumerate(seeds()):
        (folder / f"seed-{number}-{target}").write_bytes(bytes([list(TARGETS).index(target)]) + content)
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
