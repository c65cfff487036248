import pickle
import time

import msgspec
import numpy as np
import pytest

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import DeadlineExceeded, InvalidImage
from deployments.contract.item import Item
from tests.batches import batch, errors, notes


def test_failing_takes_rows_out_of_arrays_and_lists():
    error = InvalidImage("no")
    for payload in (np.arange(4), [0, 1, 2, 3]):
        failed = batch(payload).fail({1: error}).fail({3: error})
        assert list(failed.payload) == [0, 2]
        assert failed.live == [0, 2]
        assert errors(failed) == {1: error, 3: error}


def test_the_first_error_of_an_image_stays():
    first, second = InvalidImage("first"), InvalidImage("second")
    assert errors(batch([1]).fail({0: first}).fail({0: second})) == {0: first}


def test_two_holders_of_a_batch_do_not_see_each_others_failures():
    held = batch([1, 2])
    held.fail({0: InvalidImage("no")})
    assert held.live == [0, 1]


def test_expired_images_leave():
    now = time.time()
    left = Work("", batch([1, 2, 3], Item(deadline=now - 1), Item(deadline=now + 60), Item())).batch
    assert left.payload == [2, 3]
    assert isinstance(errors(left)[0], DeadlineExceeded)


def test_a_batch_travels():
    sent = Batch(np.ones((1, 2, 2, 3), np.uint8), (Item("t"), Item("u", error=InvalidImage("no"))))
    copy = pickle.loads(pickle.dumps(sent))
    np.testing.assert_array_equal(copy.payload, sent.payload)
    assert type(copy.items[1].error) is InvalidImage
    assert copy.items[1].error.to_dict() == {"code": "invalid_image", "message": "no"}
    assert copy.items[0] == sent.items[0]


PAYLOADS = {
    "list": ["a", "b", "c"],
    "array": np.array([[1.0, 2], [3, 4], [5, 6]], np.float32),
    "arrays": {"x": np.array([[1.0], [2], [3]], np.float32), "y": np.array([[4.0], [5], [6]], np.float32)},
}


def same(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        return all(same(left[name], right[name]) for name in left)
    return np.array_equal(left, right)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_what_is_split_joins_again(payload):
    error = InvalidImage("no")
    whole = batch(payload, *(Item(str(i)) for i in range(3)))
    whole = Batch(whole.payload, (*whole.items[:1], Item("bad", error=error), *whole.items[1:]))
    for positions in ([0, 1, 2, 3], [3], [2, 0], [1], []):
        others = [i for i in range(4) if i not in positions]
        first, second = whole.split(positions), whole.split(others)
        assert [item.trace_parent for item in first.items] == [whole.items[i].trace_parent for i in positions]
        joined = Batch.join([(positions, first), (others, second)])
        assert joined.items == whole.items
        assert same(joined.payload, whole.payload)


def test_images_that_failed_before_there_was_a_payload_join_those_that_have_one():
    failed = Batch([], (Item("bad", error=InvalidImage("no")),))
    joined = Batch.join([([0], failed), ([1], batch(np.ones((1, 2), np.float32)))])
    assert same(joined.payload, np.ones((1, 2), np.float32))
    assert joined.live == [1]


def test_what_a_part_lacks_of_named_arrays_is_no_number():
    first = batch({"x": np.ones((2, 3), np.float32)})
    second = batch({"x": np.zeros((1, 3), np.float32), "y": np.ones((1, 3), np.float32)})
    joined = Batch.join([([0, 2], first), ([1], second)])
    assert joined.payload["x"][:, 0].tolist() == [1, 0, 1]
    assert np.isnan(joined.payload["y"]).all(1).tolist() == [True, False, True]


def test_images_that_fail_in_a_part_fail_in_the_whole():
    error = InvalidImage("no")
    whole = batch(["a", "b", "c"])
    part = whole.split([2, 0]).fail({1: error})
    joined = Batch.join([([2, 0], part), ([1], whole.split([1]))])
    assert errors(joined) == {0: error}
    assert joined.payload == ["b", "c"]


def test_work_is_noted_on_each_image_that_took_part():
    error, late = InvalidImage("no"), Item(deadline=time.time() - 1)
    before = Batch(["a", "b", "c"], (Item("gone", error=error), Item("x"), late, Item("y")))
    work = Work("think", before)
    assert work.payload == ["a", "c"]
    after = work.done(["A"], lambda row: {"image_size": (row, row)}, errors={1: error}, attributes={"deep": 1})
    assert after.payload == ["A"]
    [note] = notes(after)
    assert (note.node, note.attributes) == ("think", {"deep": 1, "ensemble.batch.size": 3})
    assert [len(item.steps) for item in after.items] == [0, 1, 1, 1]
    assert [item.image_size for item in after.items] == [None, (0, 0), None, None]
    failures = [step.failure and step.failure[0] for item in after.items for step in item.steps]
    assert failures == [None, "deadline_exceeded", "invalid_image"]
    assert before.items[1].steps == ()


def test_what_was_noted_before_is_put_before_what_was_noted_elsewhere():
    before = Work("one", batch(["a", "b"])).done(["a", "b"])
    elsewhere = pickle.loads(pickle.dumps(Work("two", before.outbound()).done([1, 2])))
    assert [note.node for note in notes(elsewhere)] == ["two"]
    after = elsewhere.after(before)
    assert [[step.note.node for step in item.steps] for item in after.items] == [["one", "two"]] * 2
    # Shared as it was, so that a trace has one span of it.
    assert len(notes(after)) == 2


def test_a_line_of_a_log_names_the_traces_of_images_that_have_not_failed():
    items = [Item(f"00-{number:032x}-{1:016x}-00") for number in (1, 1, 2, 3)]
    items[3] = msgspec.structs.replace(items[3], error=InvalidImage("no"))
    assert Batch([0, 0, 0], tuple(items)).traces == f"traces {1:032x}, {2:032x}"
    many = Batch(list(range(20)), tuple(Item(f"00-{number:032x}-{1:016x}-00") for number in range(20)))
    assert many.traces.endswith(f"{15:032x} and 4 more")
