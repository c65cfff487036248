import msgspec
import numpy as np

from deployments.contract.answer import ClassProbability, MemberAnswer
from deployments.contract.batch import Batch
from deployments.contract.item import Item, MemberPrediction
from deployments.contract.options import Options
from deployments.labeler import Labeler, LabelerSettings
from ensemble_serving.answer import CacheStatus

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROWS = np.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5]], np.float32)


async def label(*options, settings=None, predictions=None):
    labeler = Labeler(settings or LabelerSettings(), ("cat", "dog", "ship"))
    items = tuple(Item(TRACE, options=asked, versions={"a": 2}, predictions=predictions or {}) for asked in options)
    return [answer.classification for answer in (await labeler(Batch(ROWS, items))).payload]


async def test_top_one_by_default():
    first, second = await label(Options(), Options())
    assert (first.label, first.index, round(first.probability, 4)) == ("dog", 1, 0.6)
    assert first.top == (ClassProbability("dog", 1, first.probability),)
    assert second.label == "cat"
    assert first.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert first.model_versions == {"a": 2}
    assert first.members is None


async def test_top_k_is_the_requests_own_and_descends():
    first, second = await label(Options(top_k=2), Options(top_k=3))
    assert [item.label for item in first.top] == ["dog", "ship"]
    assert [item.label for item in second.top] == ["cat", "ship", "dog"]


async def test_top_k_by_default_is_the_settings():
    first, _ = await label(Options(), Options(), settings=LabelerSettings(top_k=2))
    assert len(first.top) == 2


async def test_members_on_request():
    row = np.array([0.06, 0.04, 0.9], np.float32).tobytes()
    first, second = await label(
        Options(members=True, top_k=2), Options(), predictions={"a": MemberPrediction(2, 0.9, row)}
    )
    # The member's probabilities of the classes that the answer lists.
    assert [item.label for item in first.top] == ["dog", "ship"]
    told = MemberAnswer(label="ship", index=2, probability=0.9, probabilities=(0.04, 0.9))
    assert first.members == {"a": told}
    assert second.members is None


async def test_every_answer_carries_its_probabilities():
    answers = await Labeler(LabelerSettings(), ("cat", "dog", "ship"))(Batch(ROWS, (Item(TRACE), Item(TRACE))))
    np.testing.assert_array_equal([answer.probabilities for answer in answers.payload], ROWS)


async def test_the_json_has_the_fields_of_the_contract():
    first, _ = await label(Options(members=True), Options(), predictions={"a": MemberPrediction(2, 0.9)})
    assert msgspec.json.decode(msgspec.json.encode(first)) == {
        "label": "dog",
        "index": 1,
        "probability": 0.6,
        "top": [{"label": "dog", "index": 1, "probability": 0.6}],
        "members": {"a": {"label": "ship", "index": 2, "probability": 0.9}},
        "model_versions": {"a": 2},
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


async def test_who_was_asked_and_what_was_remembered_is_told_where_there_is_such_a_thing():
    labeler = Labeler(LabelerSettings(), ("cat", "dog", "ship"))
    items = (Item(TRACE), Item(TRACE, extras={"asked": ("a",), "cache": CacheStatus(True, 1.5), "mine": 7}))
    plain, cheap = [answer.classification for answer in (await labeler(Batch(ROWS, items))).payload]
    assert not {"asked", "cache"} & set(msgspec.to_builtins(plain))
    told = msgspec.to_builtins(cheap)
    assert (list(told["asked"]), told["cache"]) == (["a"], {"hit": True, "age_s": 1.5})
    # Fields that no answer has by itself are a feature's own.
    assert told["extras"] == {"mine": 7}


async def test_what_is_odd_about_a_file_is_in_its_answer():
    batch = Batch(ROWS, (Item(TRACE, warning="no end"), Item(TRACE)))
    answers = (await Labeler(LabelerSettings(), ("cat", "dog", "ship"))(batch)).payload
    assert [answer.classification.warning for answer in answers] == ["no end", None]
