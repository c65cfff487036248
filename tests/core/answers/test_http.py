import base64
import functools
import gzip
import json
import re
import socket
import subprocess
import zlib
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import numpy as np
import pytest

from deployments.ingress.listeners.http import LINGER_BYTES
from tests import pictures
from tests.levels import expected, level
from tests.networks import CLASSES
from tests.server.server import post
from tests.server.shared.servers import only

pytestmark = only(2)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_one_image(server):
    answer = post(server, level(80), members="true", top_k=3)
    assert answer.status_code == 200
    body = answer.json()
    probabilities = expected(80)
    order = np.argsort(-probabilities, kind="stable")[:3]
    assert body["label"] == CLASSES[order[0]]
    assert body["index"] == order[0]
    assert body["probability"] == pytest.approx(probabilities.max(), abs=1e-5)
    assert [item["probability"] for item in body["top"]] == pytest.approx(probabilities[order].tolist(), abs=1e-5)
    assert {name: member["label"] for name, member in body["members"].items()} == {
        "one": "level1",
        "six": "level6",
        "brightness": "level2",
    }
    assert body["members"]["six"]["probability"] == pytest.approx(0.8, abs=1e-5)
    assert body["model_versions"] == {"one": 1, "six": 1, "brightness": 1}
    assert len(body["trace_id"]) == 32


def test_a_callers_trace_goes_on(server):
    answer = httpx.post(f"{server.url}/classify", content=level(1), headers={"traceparent": TRACE})
    assert answer.json()["trace_id"] == TRACE[3:35]


def test_sixty_four_at_once_are_not_mixed_up(server):
    levels = [2 + 4 * i for i in range(64)]
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda value: post(server, level(value), members="true").json(), levels))
    assert [answer["members"]["brightness"]["index"] for answer in answers] == [value // 32 for value in levels]
    assert {answer["members"]["one"]["index"] for answer in answers} == {1}
    for value, answer in zip(levels, answers, strict=True):
        assert answer["probability"] == pytest.approx(expected(value).max(), abs=1e-5)


def test_a_form_of_twenty_with_three_bad_ones(server):
    files = [("image", (f"{i}.png", level(2 + 12 * i), "image/png")) for i in range(20)]
    files[3] = ("image", ("3.txt", b"words", "text/plain"))
    files[8] = ("image", ("8.jpg", b"", "image/jpeg"))
    files[15] = ("image", ("15.jpg", pictures.jpeg()[:500], "image/jpeg"))
    answer = httpx.post(f"{server.url}/classify?members=1", files=files, timeout=60)
    assert answer.status_code == 200
    results = answer.json()["results"]
    codes = {i: result["error"]["code"] for i, result in enumerate(results) if "error" in result}
    assert codes == {3: "unsupported_media_type", 8: "invalid_image", 15: "invalid_image"}
    for i, result in enumerate(results):
        if i not in codes:
            assert result["members"]["brightness"]["index"] == (2 + 12 * i) // 32


def test_a_form_of_one_is_answered_like_a_body(server):
    answer = httpx.post(f"{server.url}/classify", files={"image": ("x.png", level(10), "image/png")})
    assert answer.json()["label"] in CLASSES
    bad = httpx.post(f"{server.url}/classify", files={"image": ("x.png", b"no", "image/png")})
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "invalid_image")


@pytest.mark.parametrize(
    "content_type", ["image/jpeg", "image/png", "image/x-anything", "application/octet-stream", None]
)
def test_what_the_type_says_does_not_matter_if_it_says_image(server, content_type):
    assert post(server, level(10), content_type).status_code == 200


@pytest.mark.parametrize("part", [1, 2, 3])
def test_truncated_at_every_quarter(server, part):
    image = pictures.jpeg(480, 640)
    answer = post(server, image[: len(image) * part // 4])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_image")


def test_grey_and_turned_pictures(server):
    assert post(server, pictures.encode(pictures.noise()[:, :, 0])).status_code == 200
    left_bright = np.repeat(np.linspace(255, 0, 90).astype(np.uint8)[None, :, None], 60, 0).repeat(3, 2)
    assert post(server, pictures.with_orientation(left_bright, 6)).status_code == 200


TABLE = [
    ("not an image", {"content": b"no image"}, 400, "invalid_image"),
    ("no bytes", {"content": b""}, 400, "invalid_image"),
    ("a bomb", {"content": pictures.bomb()}, 413, "image_too_large"),
    ("too many bytes", {"content": bytes(11 * 2**20)}, 413, "image_too_large"),
    ("far too many bytes", {"content": bytes(33 * 2**20)}, 413, "image_too_large"),
    (
        "no image type",
        {"content": b"{}", "headers": {"Content-Type": "application/json"}},
        415,
        "unsupported_media_type",
    ),
    ("top_k of nothing", {"content": level(1), "params": {"top_k": "0"}}, 422, "invalid_parameter"),
    ("top_k of too much", {"content": level(1), "params": {"top_k": "9"}}, 422, "invalid_parameter"),
    ("top_k in words", {"content": level(1), "params": {"top_k": "all"}}, 422, "invalid_parameter"),
    ("members perhaps", {"content": level(1), "params": {"members": "perhaps"}}, 422, "invalid_parameter"),
    ("no time", {"content": level(1), "params": {"timeout_ms": "-1"}}, 422, "invalid_parameter"),
    ("unknown parameter", {"content": level(1), "params": {"topk": "1"}}, 422, "invalid_parameter"),
    ("a form without images", {"data": {"image": "text"}, "files": {"x": b"y"}}, 422, "invalid_parameter"),
    (
        "a form that is none",
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        422,
        "invalid_parameter",
    ),
    (
        "a form of no charset",
        {
            "content": b'--b\r\nContent-Disposition: form-data; name="image"\r\n\r\nx\r\n--b--\r\n',
            "headers": {"Content-Type": "multipart/form-data; boundary=b; charset=undefined"},
        },
        422,
        "invalid_parameter",
    ),
    (
        "a form cut short",
        {"content": b"--b\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=b"}},
        422,
        "invalid_parameter",
    ),
]


@pytest.mark.parametrize(("request_", "status", "code"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_errors_of_classify(server, request_, status, code):
    answer = httpx.post(f"{server.url}/classify", timeout=60, **request_)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert answer.json()["error"]["message"]
    assert "Traceback" not in answer.text


def test_too_many_parts(server):
    files = [("image", (f"{i}.png", level(1), "image/png")) for i in range(65)]
    answer = httpx.post(f"{server.url}/classify", files=files, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_parameter")


def test_unknown_paths_and_methods(server):
    assert httpx.get(f"{server.url}/nothing").json()["error"]["code"] == "not_found"
    other = httpx.get(f"{server.url}/v2/models/other")
    assert (other.status_code, other.json()["error"].partition(":")[0]) == (404, "not_found")
    for method, path, allowed in (("GET", "/classify", "POST"), ("POST", "/v2/health/live", "GET, HEAD")):
        refused = httpx.request(method, f"{server.url}{path}")
        assert (refused.status_code, refused.headers["Allow"]) == (405, allowed)


def test_a_long_text_is_not_told_back(server):
    answer = httpx.post(f"{server.url}/v2/models/ensemble/infer", json={"inputs": [{**GOOD, "name": "x" * 10**6}]})
    assert answer.status_code == 422
    assert len(answer.content) < 1000


def test_a_body_that_trickles_in_is_given_up_at_its_deadline(server):
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        head = f"POST /classify?timeout_ms=300 HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: 90000\r\n\r\n"
        # HAProxy hands on at once only a body that its buffer can't hold.
        connection.sendall(head.encode() + bytes(9000))
        answer = b""
        while b"deadline_exceeded" not in answer and (more := connection.recv(1000)):
            answer += more
    assert b" 504 " in answer.splitlines()[0]
    assert b"deadline_exceeded" in answer
    assert post(server, level(10)).status_code == 200


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(server):
    address, body = httpx.URL(server.url), level(3)
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        head = f"Host: {address.host}\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(b"POST /classify HTTP/1.1\r\n" + head.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        answer = b""
        while b"trace_id" not in answer and (more := connection.recv(1000)):
            answer += more
    assert b" 200 " in answer.splitlines()[0]


def test_open_inference_protocol(server):
    assert httpx.get(f"{server.url}/v2/health/live").status_code == 200
    assert httpx.get(f"{server.url}/v2/health/ready").status_code == 200
    assert httpx.get(f"{server.url}/v2/models/ensemble/ready").json() == {"name": "ensemble", "ready": True}
    assert httpx.get(f"{server.url}/v2/models/ensemble/versions/1/ready").status_code == 200
    assert httpx.get(f"{server.url}/v2/models/ensemble/versions/2").status_code == 404
    metadata = httpx.get(f"{server.url}/v2/models/ensemble").json()
    assert httpx.get(f"{server.url}/v2/models/ensemble/versions/1").json() == metadata
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert [output["name"] for output in metadata["outputs"]] == ["label", "index", "probabilities"]
    data = [base64.b64encode(level(value)).decode() for value in (10, 250)]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [2], "data": data}
    answer = httpx.post(f"{server.url}/v2/models/ensemble/infer", json={"id": "x", "inputs": [tensor]}).json()
    assert answer["id"] == "x"
    nested = {**tensor, "shape": [2, 1], "data": [[item] for item in data]}
    again = httpx.post(f"{server.url}/v2/models/ensemble/versions/1/infer", json={"inputs": [nested]}).json()
    assert again["outputs"] == answer["outputs"]
    outputs = {output["name"]: output for output in answer["outputs"]}
    probabilities = np.array(outputs["probabilities"]["data"]).reshape(outputs["probabilities"]["shape"])
    np.testing.assert_allclose(probabilities, [expected(10), expected(250)], atol=1e-5)
    assert outputs["index"]["data"] == probabilities.argmax(1).tolist()
    assert outputs["label"]["data"] == [CLASSES[i] for i in outputs["index"]["data"]]


GOOD = {"name": "image", "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(level(9)).decode()]}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 422, "invalid_parameter"),
        (b"[]", 422, "invalid_parameter"),
        ({}, 422, "invalid_parameter"),
        ({"inputs": 3}, 422, "invalid_parameter"),
        ({"inputs": [GOOD, GOOD]}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "name": "picture"}]}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "datatype": "UINT8"}]}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "shape": [2]}]}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "data": ["%%"]}]}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "data": [1]}]}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "shape": [10**5], "data": [""] * 10**5}]}, 422, "invalid_parameter"),
        ({"inputs": [GOOD], "id": 7}, 422, "invalid_parameter"),
        ({"inputs": [GOOD], "outputs": [{"name": "logits"}]}, 422, "invalid_parameter"),
        ({"inputs": [GOOD], "parameters": {"top_k": "x"}}, 422, "invalid_parameter"),
        ({"inputs": [{**GOOD, "data": [base64.b64encode(b"no image").decode()]}]}, 400, "invalid_image"),
    ],
)
def test_errors_of_infer(server, body, status, code):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = httpx.post(f"{server.url}/v2/models/ensemble/infer", content=content)
    assert (answer.status_code, answer.json()["error"].partition(": ")[0]) == (status, code)


def test_millions_of_elements_are_refused_before_they_are_parsed(server):
    body = b'{"inputs": [' + b"[]," * 10**6 + b"[]]}"
    answer = httpx.post(f"{server.url}/v2/models/ensemble/infer", content=body)
    assert (answer.status_code, answer.json()["error"].partition(": ")[0]) == (422, "invalid_parameter")
    assert "commas" in answer.json()["error"]


def test_what_is_left_of_a_large_refused_body_is_not_taken_in(server):
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port), timeout=30) as connection:
        head = f"POST {INFER} HTTP/1.1\r\nHost: {address.host}\r\nContent-Length: {2**40}\r\n\r\n"
        connection.sendall(head.encode())
        with pytest.raises(ConnectionError):
            connection.sendall(b"[" * 2 * LINGER_BYTES)
        assert b" 413 " in connection.recv(1000).splitlines()[0]


INFER = "/v2/models/ensemble/infer"


def binary(*, header=None, tail=None, **changes):
    """A request with its image in binary after the JSON, as tritonclient sends it."""
    element = len(level(9)).to_bytes(4, "little") + level(9)
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": len(element)}}
    head = json.dumps({"inputs": [{**tensor, **changes}]}).encode()
    length = str(len(head)) if header is None else header
    return {"content": head + (element if tail is None else tail), "headers": {BINARY: length}}


BINARY = "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    "request_",
    [
        binary(header="-1"),
        binary(header="1e3"),
        binary(header="99999999999"),
        binary(header="99999999999999999999"),
        binary(tail=b""),
        binary(tail=b"ab"),
        binary(tail=b"\xff\xff\xff\xff", parameters={"binary_data_size": 4}),
        binary(header="5"),
        binary(parameters={"binary_data_size": 3}),
        binary(parameters={"binary_data_size": 2**62}),
        binary(parameters={"binary_data_size": "x"}),
        binary(parameters={}),
        binary(shape=[2]),
        binary(datatype="UINT8"),
    ],
)
def test_binary_tensors_that_are_not_what_they_say(server, request_):
    answer = httpx.post(server.url + INFER, **request_)
    assert (answer.status_code, answer.json()["error"].partition(": ")[0]) == (422, "invalid_parameter")


def test_binary_tensors_in_each_direction(server):
    plain = httpx.post(server.url + INFER, **binary()).json()["outputs"]
    np.testing.assert_allclose(plain[2]["data"], expected(9), atol=1e-5)
    whole = json.dumps({"inputs": [GOOD], "parameters": {"binary_data_output": True}}).encode()
    # As perf_analyzer does with JSON: the header is there, and nothing follows.
    answer = httpx.post(server.url + INFER, content=whole, headers={BINARY: str(len(whole))})
    head = int(answer.headers[BINARY])
    told = json.loads(answer.content[:head])["outputs"]
    assert [output["parameters"]["binary_data_size"] for output in told] == [4 + len("level1"), 8, 32]
    assert np.frombuffer(answer.content[-32:], np.float32) == pytest.approx(expected(9), abs=1e-5)
    # A header of 0: the body is the image, and nothing else.
    raw = httpx.post(server.url + INFER, content=level(9), headers={BINARY: "0"})
    assert raw.content[-32:] == answer.content[-32:]
    some = [{"name": "label"}, {"name": "probabilities", "parameters": {"binary_data": True, "classification": 2}}]
    mixed = httpx.post(server.url + INFER, json={"inputs": [GOOD], "outputs": some})
    label, classes = json.loads(mixed.content[: int(mixed.headers[BINARY])])["outputs"]
    assert (label["data"], "data" in classes, classes["datatype"], classes["shape"]) == (
        plain[0]["data"],
        False,
        "BYTES",
        [1, 2],
    )
    for bad in (-1, "2", True, 10**9):
        outputs = [{"name": "probabilities", "parameters": {"classification": bad}}]
        assert httpx.post(server.url + INFER, json={"inputs": [GOOD], "outputs": outputs}).status_code == 422


def test_an_image_is_an_image_whatever_curl_says_of_it(server, tmp_path):
    picture = tmp_path / "picture"
    picture.write_bytes(level(10))
    command = ["curl", "--silent", "--data-binary", f"@{picture}", f"{server.url}/classify"]
    answer = subprocess.run(command, check=True, capture_output=True)
    assert json.loads(answer.stdout)["label"] == CLASSES[expected(10).argmax()]


@functools.cache
def bomb():
    """1 GiB of nothing as 1 MiB of gzip."""
    return gzip.compress(bytes(2**26), 1)


def test_compressed_bodies(server):
    packed = {"gzip": gzip.compress(level(10)), "deflate": zlib.compress(level(10))}
    for encoding, content in packed.items():
        headers = {"Content-Encoding": encoding}
        answer = httpx.post(f"{server.url}/classify", content=content, headers=headers)
        assert answer.json()["label"] == CLASSES[expected(10).argmax()]
        for bad in (b"no", content[:-3], content + b"more"):
            refused = httpx.post(f"{server.url}/classify", content=bad, headers=headers)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_parameter")
    unknown = httpx.post(f"{server.url}/classify", content=level(10), headers={"Content-Encoding": "br"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (415, "unsupported_media_type")
    for path in ("/classify", INFER):
        answer = httpx.post(server.url + path, content=bomb(), headers={"Content-Encoding": "gzip"}, timeout=60)
        assert answer.status_code == 413


def test_the_index_lists_the_models(server):
    for body in (b"", b"{}", b'{"ready": true}'):
        answer = httpx.post(f"{server.url}/v2/repository/index", content=body).json()
        assert {"name": "ensemble", "version": "1", "state": "READY", "reason": ""} in answer
    assert httpx.post(f"{server.url}/v2/repository/index", content=b"[]").status_code == 422


def test_an_id_of_half_a_character_comes_back(server):
    body = json.dumps({"inputs": [GOOD], "id": "\ud800"})
    answer = httpx.post(f"{server.url}/v2/models/ensemble/infer", content=body)
    assert (answer.status_code, json.loads(answer.content)["id"]) == (200, "\ud800")


def test_documentation_needs_no_network(server):
    page = httpx.get(f"{server.url}/docs").text
    assert "swagger" in page
    for path in re.findall(r'(?:src|href)="([^"]+)"', page):
        if not path.startswith("data:"):
            assert path.startswith("/docs/")
            answer = httpx.get(server.url + path)
            assert answer.status_code == 200
            assert len(answer.content) > 10_000
    assert "://" not in page


def valid(document, path, method, answer):
    """Check an answer against what the OpenAPI document says of it."""
    described = document["paths"][path][method]["responses"][str(answer.status_code)]
    schema = described["content"]["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})


def test_answers_are_as_the_document_says(server):
    document = httpx.get(f"{server.url}/openapi.json").json()
    assert {"/classify", "/v2/models/ensemble/infer", "/v2/health/ready"} <= set(document["paths"])
    classify = f"{server.url}/classify"
    files = [("image", ("x.png", level(1), "image/png")), ("image", ("y.txt", b"no", "text/plain"))]
    for answer in (
        post(server, level(80), members="true", top_k=3),
        post(server, level(80)),
        post(server, b"no image"),
        post(server, level(1), "application/json"),
        post(server, level(1), top_k=0),
        post(server, bytes(11 * 2**20)),
        post(server, level(1), timeout_ms=1),
        httpx.post(classify, files=files),
    ):
        valid(document, "/classify", "post", answer)
    infer = f"{server.url}/v2/models/ensemble/infer"
    for body in ({"inputs": [GOOD], "id": "7"}, {"inputs": []}):
        valid(document, "/v2/models/ensemble/infer", "post", httpx.post(infer, json=body))
    for path, described in document["paths"].items():
        if "get" in described and "content" in described["get"]["responses"]["200"]:
            valid(document, path, "get", httpx.get(server.url + path))


@pytest.mark.parametrize("whole", [pictures.jpeg(), level(10)], ids=["jpeg", "png"])
def test_a_file_without_its_end_is_answered_with_a_warning(server, whole):
    cut = whole.removesuffix(b"\xff\xd9").removesuffix(b"\0\0\0\0IEND\xaeB`\x82")
    expected, answer = post(server, whole).json(), post(server, cut).json()
    assert answer["warning"] == "the file ends without its end marker; every pixel was there"
    assert "warning" not in expected
    assert answer["top"] == expected["top"]
    body = {"inputs": [{**GOOD, "data": [base64.b64encode(cut).decode()]}]}
    told = httpx.post(server.url + INFER, json=body).json()["parameters"]
    assert json.loads(told["warning"]) == [answer["warning"]]
