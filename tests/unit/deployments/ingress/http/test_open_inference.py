"""Whatever JSON is sent, it is an answer or the caller's mistake; images arrive as they were sent."""

import base64
import json
from importlib import metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.door import Door

INFER = "/v2/models/ensemble/infer"
TEXTS = st.one_of(st.text(max_size=10), st.sampled_from(["image", "BYTES", "label", "\ud800", "\0", "iVBO", "eA=="]))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


def either(right):
    """What is right, or anything."""
    return st.one_of(st.just(right), st.just(right), VALUES)


TENSORS = st.fixed_dictionaries(
    {}, optional={"name": either("image"), "datatype": either("BYTES"), "shape": either([1]), "data": either(["eA=="])}
)
PARAMETERS = st.fixed_dictionaries(
    {}, optional={"top_k": either(1), "members": either(True), "timeout_ms": either(1000), "own": VALUES}
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "id": either("7"),
        "inputs": st.one_of(VALUES, st.lists(st.one_of(TENSORS, VALUES), max_size=2), TENSORS.map(lambda t: [t])),
        "outputs": st.one_of(VALUES, st.lists(st.one_of(VALUES, st.just({"name": "label"})), max_size=3)),
        "parameters": st.one_of(PARAMETERS, VALUES),
    },
)


def is_answer_or_mistake(status, told):
    return status == 200 or (400 <= status < 500 and ": " in told["error"])


@given(st.one_of(BODIES, VALUES))
def test_any_json_is_answered_or_refused(body):
    assert is_answer_or_mistake(*Door().ask(INFER, json.dumps(body).encode()))


@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode("utf-16"))))
def test_any_bytes_are_refused(body):
    assert Door().ask(INFER, body)[0] in {415, 422}


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.booleans())
def test_images_arrive_as_they_were_sent(images, nested):
    door = Door()
    data = [base64.b64encode(image).decode() for image in images]
    tensor = {"name": "image", "datatype": "BYTES", "shape": [len(images)], "data": data}
    if nested:
        tensor |= {"shape": [len(images), 1], "data": [[each] for each in data]}
    status, told = door.ask(INFER, json.dumps({"inputs": [tensor]}).encode())
    assert (status, told["outputs"][0]["shape"]) == (200, [len(images)])
    assert sorted(door.images) == sorted(images)


def test_the_document_groups_paths_by_protocol():
    document = json.loads(Door().answer("/openapi.json", method="GET").body)
    tags = {path: each["tags"] for path, operations in document["paths"].items() for each in operations.values()}
    assert tags["/classify"] == ["This application"]
    assert tags["/v2/models/ensemble/infer"] == ["Open Inference Protocol"]
    assert tags["/v1/models/ensemble:predict"] == ["TensorFlow Serving's API"]


def test_the_document_leaves_out_what_is_off(tmp_path, monkeypatch):
    monkeypatch.setattr("ensemble_interop.shared_memory.protocol.sockets", lambda *_: tmp_path)
    document = json.loads(Door().answer("/openapi.json", method="GET").body)
    assert not [path for path in document["paths"] if "systemsharedmemory" in path or "/load" in path]
    door = Door(shared_memory_prefix="on")
    document = json.loads(door.answer("/openapi.json", method="GET").body)
    assert "/v2/systemsharedmemory/status" in document["paths"]


def test_the_server_and_its_document_report_the_version_of_the_package():
    door = Door()
    server, document = (json.loads(door.answer(path, method="GET").body) for path in ("/v2", "/openapi.json"))
    assert server["version"] == document["info"]["version"] == metadata.version("ensemble-serving")


def test_classes_of_an_output_without_classes_are_refused_before_the_work():
    door = Door()
    asked = {
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["eA=="], "parameters": {}}],
        "outputs": [{"name": "label", "parameters": {"classification": 1}}],
    }
    status, told = door.ask(INFER, json.dumps(asked).encode())
    assert (status, door.images) == (422, [])
    assert "'label' has no classes" in told["error"]


def test_a_place_for_an_output_that_is_not_there_is_refused_before_the_work():
    door = Door()
    place = {"shared_memory_region": "nowhere", "shared_memory_byte_size": 40}
    asked = {
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [1], "data": ["eA=="]}],
        "outputs": [{"name": "probabilities", "parameters": place}],
    }
    assert (door.ask(INFER, json.dumps(asked).encode())[0], door.images) == (404, [])


GOOD = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["eA=="]}


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"inputs": [GOOD], "parameters": {"binary_data_output": "true"}}, "true or false; got 'true'"),
        ({"inputs": [GOOD], "outputs": [{"name": "label", "parameters": {"binary_data": 1}}]}, "true or false; got 1"),
    ],
)
def test_how_outputs_are_sent_is_true_or_false(body, hint):
    door = Door()
    status, told = door.ask(INFER, json.dumps(body).encode())
    assert (status, hint in told["error"], door.images) == (422, True, [])


@pytest.mark.parametrize(
    ("tensor", "hint"),
    [
        ({"shape": [1] * 1000}, "has shape [1, 1, 1"),
        ({"parameters": {"binary_data_size": [1] * 1000}}, "is [1, 1, 1"),
        ({"x" * 1000: 1, "name": "y" * 1000}, "it has 'yyy"),
    ],
)
def test_what_is_wrong_is_told_in_few_words(tensor, hint):
    body = {"inputs": [{**GOOD, **tensor}]}
    status, told = Door().ask(INFER, json.dumps(body).encode())
    assert (status, hint in told["error"], len(told["error"]) < 300) == (422, True, True)


def test_an_integer_of_many_digits_is_not_read():
    body = json.dumps({"inputs": [{**GOOD, "shape": ["n"]}]}).encode().replace(b'"n"', b"9" * 700)
    status, told = Door().ask(INFER, body)
    assert (status, "640 digits" in told["error"]) == (422, True)


def test_an_image_is_in_the_json_or_behind_it():
    tail = b"\1\0\0\0x"
    head = json.dumps({"inputs": [{**GOOD, "parameters": {"binary_data_size": len(tail)}}]}).encode()
    headers = [("Inference-Header-Content-Length", str(len(head)).encode())]
    status, told = Door().ask(INFER, head + tail, headers)
    assert (status, "both in the JSON and elsewhere" in told["error"]) == (422, True)
