"""True labels in Seldon's messages: whose they are, what is taken, and what each mistake is told."""

import json
from dataclasses import replace

import pytest

from deployments.contract.errors import InvalidParameter, UnknownRequest
from deployments.ingress.http.server import HttpServer
from deployments.ingress.protocol import Served, Serves
from deployments.observe.observer import Call, Trace
from ensemble_interop.seldon import graph
from ensemble_interop.seldon import seldon_pb2 as pb
from ensemble_interop.seldon.messages import DefaultData, SeldonMessage, SeldonTensor
from ensemble_interop.seldon.protocol import FEEDBACK_PATH, Seldon
from packages.plugins.features.tests.feedback.told import Told
from tests.door import NO_FEEDBACK, Door


def service(take):
    class TakesLabels(Serves):
        def serve(self, service):
            return Served(handles={"feedback": take})

    return replace(Door().service, labels=("a", "b", "c", "d"), features=[TakesLabels()])


def ask(message):
    told, door = Told(), Door()
    door._http = HttpServer(service(told))
    return *door.ask(FEEDBACK_PATH, json.dumps(message).encode()), told.labels


async def call(take, message):
    rpc = Seldon().calls(service(take))["seldon.protos.Seldon/SendFeedback"]
    return await rpc.handler(message, Call(Trace("")))


ANSWER = {"meta": {"puid": "r"}, "data": {"names": ["a"], "tensor": {"shape": [1, 1], "values": [1.0]}}}
BY = {
    "name": ({"strData": "cat"}, ["cat"]),
    "indices": ({"data": {"tensor": {"shape": [2, 1], "values": [3.0, 0.0]}}}, [3, 0]),
    "rows": ({"data": {"tensor": {"shape": [2, 4], "values": [0, 0, 1.0, 0, 1.0, 0, 0, 0]}}}, [2, 0]),
    "lists of rows": ({"data": {"ndarray": [[0, 0, 0, 1], [0, 1.0, 0, 0]]}}, [3, 1]),
    "lists": ({"data": {"ndarray": [["cat"], [2.0], "dog"]}}, ["cat", 2, "dog"]),
}


@pytest.mark.parametrize(("truth", "labels"), BY.values(), ids=BY)
def test_labels_are_of_the_answer_s_request(truth, labels):
    asked = {"request": {"binData": "eA=="}, "response": ANSWER, "reward": 1, "truth": truth}
    wanted = [("r", label, place, "") for place, label in enumerate(labels)]
    assert ask(asked) == (200, {"meta": {"puid": "r"}}, wanted)


@pytest.mark.parametrize(("truth", "labels"), BY.values(), ids=BY)
async def test_they_are_over_grpc(truth, labels):
    told, message = Told(), pb.Feedback(response={"meta": {"puid": "r"}}, reward=1)
    if "ndarray" in truth.get("data", ()):
        message.truth.data.ndarray.extend(truth["data"]["ndarray"])
    else:
        message.truth.MergeFrom(pb.SeldonMessage(**truth))
    assert (await call(told, message)).meta.puid == "r"
    assert told.labels == [("r", label, place, "") for place, label in enumerate(labels)]


def test_the_request_s_id_is_as_good():
    assert ask({"request": {"meta": {"puid": "own"}}, "truth": {"strData": "cat"}})[2] == [("own", "cat", 0, "")]


def test_of_several_the_others_are_taken():
    status, told, labels = ask({"response": ANSWER, "truth": {"data": {"ndarray": ["unicorn", "cat"]}}})
    assert (status, told["status"]["reason"], labels) == (422, "unknown_label", [("r", "cat", 1, "")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"response": ANSWER},
        {"response": ANSWER, "reward": 0.5, "truth": {}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [[1, 2]]}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [[0, 1, 0]]}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [[0, 1, 1, 0]]}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [[0, 0.4, 0.6, 0]]}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [[0, 0, 0, 0]]}}},
        {"response": ANSWER, "truth": {"data": {"tensor": {"shape": [2, 4], "values": [0, 1, 0, 0]}}}},
        {"response": ANSWER, "truth": {"data": {"tensor": {"shape": [1] * 9, "values": [1]}}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [1.5]}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": [None]}}},
        {"response": ANSWER, "truth": {"data": {"ndarray": ["cat"] * 4097}}},
        {"truth": {"strData": "cat"}},
        {"response": {"meta": {"puid": "x" * 257}}, "truth": {"strData": "cat"}},
    ],
)
def test_a_mistake_has_seldon_s_status(wrong):
    status, told, labels = ask(wrong)
    assert (status, told["status"]["reason"], labels) == (422, "invalid_parameter", [])


def test_rows_are_counted_before_they_are_made():
    class Values(list):
        def __getitem__(self, _):
            raise AssertionError("a row was made")

    many = DefaultData(tensor=SeldonTensor([5000, 2], Values([0.0] * 10_000)))
    with pytest.raises(InvalidParameter, match="1 to 4096 labels; this one has 5000"):
        graph._labels(SeldonMessage(data=many))


async def test_mistakes_over_grpc():
    for message in (pb.Feedback(), pb.Feedback(truth={"strData": "cat"})):
        with pytest.raises(InvalidParameter, match="truth"):
            await call(Told(), message)
    with pytest.raises(UnknownRequest, match="configure `feedback`"):
        await call(NO_FEEDBACK.feedback, pb.Feedback(response={"meta": {"puid": "r"}}, truth={"strData": "a"}))
