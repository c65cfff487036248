"""True labels over gRPC: what is taken, and what each mistake is told."""

import pytest

from deployments.contract.caller import ANYONE, MAX_ID, Caller
from deployments.contract.errors import InvalidParameter, UnknownRequest
from deployments.observe.observer import Call, Trace
from ensemble_features.feedback import feedback_pb2 as pb
from ensemble_features.feedback.labels import MAX_LABELS, MAX_PLACE, calls
from packages.plugins.features.tests.feedback.told import Told
from tests.door import NO_FEEDBACK


async def label(take, *labels, by=ANYONE):
    return await calls(take)["ensemble.FeedbackService/Label"].handler(
        pb.LabelRequest(labels=labels), Call(Trace(""), by)
    )


def true(request_id="r", **more):
    return pb.TrueLabel(request_id=request_id, **more)


async def test_one_label_is_taken_by_name_or_by_index():
    told = Told()
    assert await label(told, true(name="cat")) == pb.LabelResponse(accepted=1)
    assert await label(told, true(index=0, image=2)) == pb.LabelResponse(accepted=1)
    assert told.labels == [("r", "cat", 0, ""), ("r", 0, 2, "")]


async def test_of_many_each_is_told_what_became_of_it():
    told = Told()
    answer = await label(told, true(name="cat"), true(name="unicorn"), true(), true(index=3), by=Caller(name="mine"))
    assert (answer.accepted, [each.code for each in answer.results]) == (
        2,
        ["", "unknown_label", "invalid_parameter", ""],
    )
    assert told.labels == [("r", "cat", 0, "mine"), ("r", 3, 0, "mine")]


@pytest.mark.parametrize(
    "wrong",
    [true(), true("", name="cat"), true("r" * (MAX_ID + 1), name="cat"), true(name="cat", image=MAX_PLACE + 1)],
)
async def test_a_mistake_in_the_only_one_is_the_calls(wrong):
    told = Told()
    with pytest.raises(InvalidParameter):
        await label(told, wrong)
    assert told.labels == []


@pytest.mark.parametrize("count", [0, MAX_LABELS + 1])
async def test_labels_are_bounded_in_number(count):
    with pytest.raises(InvalidParameter, match="1 to 4096 labels"):
        await label(Told(), *[true(name="cat")] * count)


async def test_where_no_labels_are_taken_that_is_said():
    with pytest.raises(UnknownRequest, match="configure `feedback`"):
        await label(NO_FEEDBACK.feedback, true(name="cat"))
