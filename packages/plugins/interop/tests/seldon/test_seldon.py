"""Seldon's API without a server: what is taken, in which form it is answered, and what is refused before the work."""

import base64
import json
import math

import cv2
import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.ingress.grpc.server import GrpcServer
from deployments.ingress.open_inference.tensors import MOST_NUMBERS
from ensemble_interop.seldon import seldon_pb2 as pb
from ensemble_interop.tensorflow_serving import tensorflow_serving_pb2 as tf
from tests.door import CLASSES, LABELS, Door
from tests.unit.deployments.ingress.grpc.test_server import Context

PATH = "/api/v1.0/predictions"
PIXELS = np.random.default_rng(1).integers(0, 256, (2, 3, 5, 3))
SHAPE = list(PIXELS.shape)
RAW = base64.b64encode(PIXELS.astype(np.uint8).tobytes()).decode()
DIMS = {"dim": [{"size": str(extent)} for extent in SHAPE]}
# Each in another form; in protobuf's JSON a number of 64 bits is a text.
DATA = {
    "tensor": {"shape": SHAPE, "values": PIXELS.ravel().tolist()},
    "ndarray": PIXELS.tolist(),
    "tftensor": {"dtype": "DT_UINT8", "tensorShape": DIMS, "tensorContent": RAW},
}
FLOATS = {"dtype": "DT_FLOAT", "tensorShape": DIMS, "floatVal": PIXELS.ravel().tolist()}
INTEGERS = {"dtype": "DT_INT64", "tensorShape": DIMS, "int64Val": PIXELS.ravel().tolist()}


# As protobuf's own writer of JSON has integers of 64 bits.
TEXTS = {**INTEGERS, "int64Val": [str(value) for value in INTEGERS["int64Val"]]}
ONE = {"dtype": "DT_INT64", "tensorShape": {"dim": [{"size": extent} for extent in "1113"]}}


def ask(door, message):
    return door.ask(PATH, json.dumps(message).encode(), chunk=10**6)


async def call(door, message):
    context = Context()
    answer = await GrpcServer(door.service)("seldon.protos.Seldon/Predict", message.SerializeToString(), context)
    return context.code, context.details, answer


def proto(**fields):
    message = pb.SeldonMessage()
    if "ndarray" in fields:
        message.data.ndarray.extend(fields["ndarray"])
        return message
    return pb.SeldonMessage(data=fields)


def decoded(image):
    return cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]


@pytest.mark.parametrize(
    ("form", "value"), [*DATA.items(), *(("tftensor", each) for each in (FLOATS, INTEGERS, TEXTS))]
)
def test_pixels_over_rest_are_answered_in_their_form(form, value):
    door = Door()
    status, told = ask(door, {"data": {"names": ["x"], form: value}, "meta": {"puid": "own", "tags": {"a": 1}}})
    assert (status, told["meta"]["puid"], told["data"]["names"]) == (200, "own", list(LABELS))
    assert set(told["data"]) == {"names", form}
    np.testing.assert_array_equal([decoded(image) for image in door.images], PIXELS)
    found = told["data"][form]
    if form == "ndarray":
        assert np.shape(found) == (2, CLASSES)
    elif form == "tensor":
        assert (found["shape"], found["values"]) == ([2, CLASSES], pytest.approx([0.2] * 2 * CLASSES))
    else:
        assert [dim["size"] for dim in found["tensorShape"]["dim"]] == ["2", str(CLASSES)]
        np.testing.assert_allclose(np.frombuffer(base64.b64decode(found["tensorContent"]), "<f4"), 0.2)


def test_encoded_images_are_taken_as_they_are():
    door = Door()
    assert ask(door, {"binData": base64.b64encode(b"image").decode()})[1]["data"]["tensor"]["shape"] == [1, CLASSES]
    texts = [base64.b64encode(image).decode() for image in (b"one", b"two")]
    two = {"dtype": "DT_STRING", "tensorShape": {"dim": [{"size": 2}]}, "stringVal": texts}
    assert ask(door, {"data": {"tftensor": two}})[0] == 200
    assert sorted(door.images) == [b"image", b"one", b"two"]


@pytest.mark.parametrize(
    "message",
    [
        proto(tensor={"shape": SHAPE, "values": PIXELS.ravel()}),
        proto(ndarray=PIXELS.tolist()),
        *(
            proto(
                tftensor={
                    "dtype": dtype,
                    "tensor_shape": {"dim": [{"size": extent} for extent in SHAPE]},
                    "tensor_content": PIXELS.astype(kind).tobytes(),
                }
            )
            for dtype, kind in ((tf.DT_UINT8, "u1"), (tf.DT_FLOAT, "<f4"), (tf.DT_DOUBLE, "<f8"), (tf.DT_INT64, "<i8"))
        ),
    ],
    ids=lambda message: message.data.WhichOneof("data_oneof"),
)
async def test_pixels_over_grpc_are_answered_in_their_form(message):
    door = Door()
    code, _, answer = await call(door, message)
    assert code == grpc.StatusCode.OK
    form = message.data.WhichOneof("data_oneof")
    assert (answer.data.WhichOneof("data_oneof"), answer.meta.puid) == (form, answer.meta.tags["trace_id"].string_value)
    np.testing.assert_array_equal([decoded(image) for image in door.images], PIXELS)


async def test_an_encoded_image_over_grpc_and_its_id():
    door = Door()
    message = pb.SeldonMessage(binData=b"image", meta={"puid": "own"})
    code, _, answer = await call(door, message)
    assert (code, answer.meta.puid, list(answer.data.tensor.shape)) == (grpc.StatusCode.OK, "own", [1, CLASSES])
    assert door.images == [b"image"]


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        ({}, "binData"),
        ({"strData": "a"}, "binData"),
        ({"data": {}}, "binData"),
        ({"data": DATA}, "binData"),
        ({"data": {"ndarray": []}, "binData": "eA=="}, "binData"),
        ({"binData": "%"}, "binData must be base64"),
        ({"binData": "eA==", "meta": {"puid": "x" * 257}}, "puid"),
        ({"binData": "eA==", "meta": {"puid": "\ud800"}}, "no text"),
        ({"data": {"tensor": {"shape": [2, 3, 5, 3], "values": [1.0]}}}, "1 elements"),
        ({"data": {"tensor": {"shape": [1], "values": [1.0]}}}, "[N,H,W,3]"),
        ({"data": {"tensor": {"shape": [1, 3, 5, 5], "values": [1.0]}}}, "[N,H,W,3]"),
        ({"data": {"tensor": {"shape": [1, 0, 5, 3], "values": []}}}, "[N,H,W,3]"),
        ({"data": {"tensor": {"shape": [-1, 2, 5, 3], "values": []}}}, "[N,H,W,3]"),
        ({"data": {"tensor": {"shape": [65, 1, 1, 3], "values": []}}}, "1 to 64 images"),
        ({"data": {"tensor": {"shape": [1, 1, 1, 3], "values": [0.5, 0.5, 0.5]}}}, "whole numbers"),
        ({"data": {"tensor": {"shape": [1, 1, 1, 3], "values": [1, 2, 256]}}}, "whole numbers"),
        ({"data": {"tensor": {"shape": [1, 1, 1, 3], "values": [1, 2, -1]}}}, "whole numbers"),
        ({"data": {"tensor": {"shape": [1, 1, 1, 3], "values": [1, 2, 1e300]}}}, "whole numbers"),
        ({"data": {"ndarray": [[[["a", "b", "c"]]]]}}, "numbers"),
        ({"data": {"ndarray": [[[[1, 2, 3], [1, 2]]]]}}, "equal lists"),
        ({"data": {"ndarray": [[[[1, 2, None]]]]}}, "numbers"),
        ({"data": {"ndarray": "a"}}, "JSON object"),
        ({"data": {"tftensor": {"dtype": "DT_HALF", "tensorShape": DIMS}}}, "DT_FLOAT"),
        ({"data": {"tftensor": {"dtype": "DT_UINT8", "tensorShape": {"dim": [{"size": "x"}]}}}}, "dim[0].size"),
        *(
            ({"data": {"tftensor": {**ONE, "int64Val": [value, "0", "0"]}}}, "int64Val[0]")
            for value in ("", "x", "1.0", "1e1", "1_0", " 1", "1\n", "+1", "\u0661", "0" * 21, "1" * 5000, 1.5, None)
        ),
        ({"data": {"tftensor": {**ONE, "int64Val": ["-1", "0", "0"]}}}, "whole numbers"),
        ({"data": {"tftensor": {**ONE, "int64Val": ["9" * 20, "0", "0"]}}}, "no INT64"),
        ({"data": {"tftensor": {"dtype": "DT_UINT8", "tensorShape": {"dim": [{"size": 2**70}]}}}}, "[N,H,W,3]"),
        ({"data": {"tftensor": {"dtype": "DT_UINT8", "tensorShape": DIMS, "tensorContent": "eA=="}}}, "1 came"),
        ({"data": {"tftensor": {"dtype": "DT_STRING", "stringVal": ["eA=="] * 65}}}, "1 to 64 images"),
    ],
)
def test_a_mistake_has_seldon_s_status(message, hint):
    door = Door()
    status, told = ask(door, message)
    assert (status, told["status"]["code"], told["status"]["status"]) == (422, 422, "FAILURE")
    assert (told["status"]["reason"], hint in told["status"]["info"]) == ("invalid_parameter", True), told
    assert door.images == []


def test_another_version_is_no_path_and_is_answered_in_seldon_s_way():
    status, told = Door().ask("/api/v0.1/predictions")
    assert (status, told["status"]["reason"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (pb.SeldonMessage(), "binData"),
        (pb.SeldonMessage(strData="a"), "binData"),
        (proto(tensor={"shape": [1, 2, 2, 3], "values": [math.nan] * 12}), "whole numbers"),
        (proto(tensor={"shape": [1] * 500, "values": []}), "[N,H,W,3]"),
        (proto(ndarray=[[[[1, 2, None]]]]), "numbers"),
        (proto(ndarray=[[[[1, 2, {}]]]]), "numbers"),
        (proto(ndarray=[]), "binData"),
        (proto(ndarray=[[]]), "[N,H,W,3]"),
        (proto(tftensor={"dtype": 23}), "DT_STRING"),
        (proto(tftensor={"dtype": tf.DT_DOUBLE, "tensor_shape": {"dim": [{"size": 1}] * 4}}), "[N,H,W,3]"),
        (proto(tftensor={"dtype": tf.DT_STRING, "string_val": [b"x"] * 65}), "1 to 64 images"),
    ],
)
async def test_a_mistake_over_grpc(message, hint):
    door = Door()
    code, details, _ = await call(door, message)
    assert (code, hint in details) == (grpc.StatusCode.INVALID_ARGUMENT, True), details
    assert door.images == []


def lists():
    return np.zeros((1, 112, 112, 3), np.uint8).tolist()


def test_elements_are_counted_before_they_are_read():
    door = Door()
    status, told = ask(door, {"data": {"ndarray": lists()}})
    assert (status, "more than 32768 commas" in told["status"]["info"]) == (422, True)
    assert door.images == []
    assert ask(Door(max_elements=200_000), {"data": {"ndarray": lists()}})[0] == 200


async def test_numbers_and_fields_are_counted_before_they_are_read():
    door = Door()
    many = proto(tensor={"shape": [1, MOST_NUMBERS, 1, 3], "values": np.zeros(3 * MOST_NUMBERS)})
    code, details, _ = await call(door, many)
    assert (code, "more than 1000000 elements" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, details, _ = await call(door, proto(ndarray=lists()))
    assert (code, "more than 32768 fields" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert door.images == []
    assert (await call(Door(max_elements=200_000), proto(ndarray=lists())))[0] == grpc.StatusCode.OK


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=8,
)
FIELDS = ("data", "tensor", "ndarray", "tftensor", "binData", "meta", "puid", "shape", "values", "dtype", "tensorShape")


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES | st.dictionaries(st.sampled_from(FIELDS), VALUES), max_size=3))
def test_any_message_is_answered_or_refused(message):
    status, told = ask(Door(), message)
    assert status == 200 or (400 <= status < 500 and told["status"]["info"])
