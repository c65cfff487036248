import numpy as np
import pytest

from deployments.contract.answer import Answer, Classification, ClassProbability, MemberAnswer
from deployments.contract.batch import Batch, Work
from deployments.contract.errors import InvalidImage
from deployments.contract.image_probe import ImageProbe, Jpeg
from deployments.contract.item import Item, ItemNote, MemberPrediction
from deployments.contract.options import Options
from deployments.rpc import wire
from tests.batches import batch, errors, notes

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def travelled(sent):
    """A batch after a way over the wire."""
    return wire.decode(memoryview(bytearray(wire.encode(sent))))


def answer(label):
    best, member = ClassProbability(label, 1, 0.5), MemberAnswer(label, 1, 0.5, probabilities=(0.5,))
    classification = Classification(
        label, 1, 0.5, top=(best,), model_versions={"a": 2}, trace_id="0" * 32, members={"a": member}
    )
    return Answer(classification, np.array([0.5, 0.5], np.float32))


PAYLOADS = {
    "blobs": [b"one", b"", b"three"],
    "array": np.arange(24, dtype=np.uint8).reshape(3, 2, 4),
    "floats": np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3),
    "named": {"x": np.ones((3, 5), np.uint8), "y": np.full((3, 2), np.nan, np.float32), "jpeg": [b"a", b"bc", b"d"]},
    "nothing": np.empty((0, 0), np.float32),
    "no blobs": [],
    "a column": np.asfortranarray(np.arange(9, dtype=np.float32).reshape(3, 3))[:, ::2],
}


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_a_payload_travels(payload):
    again = travelled(Batch(payload, ())).payload
    for name in payload if isinstance(payload, dict) else [None]:
        left, right = (payload, again) if name is None else (payload[name], again[name])
        assert type(left) is type(right)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)
        else:
            assert left == right


def test_answers_travel():
    again = travelled(Batch([answer("cat"), answer("dog")], ())).payload
    assert [each.classification for each in again] == [answer("cat").classification, answer("dog").classification]
    np.testing.assert_array_equal(again[1].probabilities, [0.5, 0.5])


def test_items_travel_with_all_they_hold():
    item = Item(
        trace_parent=TRACE,
        deadline=12.5,
        options=Options(top_k=3, members=True, timeout_ms=5),
        image_size=(640, 480),
        versions={"local": 2, "remote": "v7"},
        missing={"late": "deadline_exceeded"},
        queued_ns=7,
        probe=ImageProbe(12, True, 0, Jpeg(4, 3)),
        extras={"asked": ["a", "b"]},
        predictions={"local": MemberPrediction(3, 0.5)},
        error=InvalidImage("no image", retry_after_s=2.5),
    )
    [again] = travelled(Batch([], (item,))).items
    assert type(again.error) is InvalidImage
    assert (again.error.message, again.error.retry_after_s) == ("no image", 2.5)
    assert {name: getattr(again, name) for name in item.__struct_fields__ if name != "error"} == {
        name: getattr(item, name) for name in item.__struct_fields__ if name != "error"
    }


class Noted(ItemNote, frozen=True):
    """A feature's note."""

    words: tuple[str, ...]
    number: int = 0


def test_what_a_feature_notes_travels_and_is_of_its_type_again():
    sent = batch([b"a"], Item().with_note(Noted(("x", "y"), 3), mine=7))
    [again] = travelled(sent).items
    assert again.note(Noted) == Noted(("x", "y"), 3)
    # The node that it was sent to can read it, and not change it.
    changed = Batch([b"a"], (again.with_note(Noted(()), mine=8),))
    [back] = travelled(changed).after(sent).items
    assert (back.notes, back.extras) == (sent.items[0].notes, {"mine": 7})


def test_a_note_that_images_share_is_one_note_again():
    noted = Work("think", batch(["a", "b", "c"])).done(["a", "b"], errors={1: InvalidImage("no")}, attributes={"n": 1})
    again = travelled(Work("more", noted).done([b"a", b"b"]))
    assert notes(again) == notes(travelled(again))
    assert [note.node for note in notes(again)] == ["think", "more"]
    assert [[step.failure for step in item.steps] for item in again.items] == [
        [None, None],
        [("invalid_image", "no")],
        [None, None],
    ]
    assert set(errors(again)) == {1}


def test_what_lies_about_its_length_is_refused():
    memory = memoryview(np.ones((2, 3), np.float32).view(np.uint8).reshape(-1))
    for shape in ([2**40, 3], [3, 3], [2, 2]):
        content = wire.ENCODER.encode(wire.Message((), wire.Array("float32", shape, memory)))
        with pytest.raises(ValueError, match="reshape"):
            wire.decode(memoryview(content))
    whole = wire.encode(batch(np.ones((2, 3), np.float32)))
    for garbage in (b"", b"\x93", whole[:-1], whole + b"x", b"cposix\nsystem\n"):
        with pytest.raises(ValueError):  # noqa: PT011
            wire.decode(memoryview(garbage))


def test_an_array_is_not_copied_and_may_be_written_to():
    arrived = memoryview(bytearray(wire.encode(batch(np.zeros((2, 3), np.uint8)))))
    array = wire.decode(arrived).payload
    array[:] = 7
    assert bytes(arrived).count(7) == 6
