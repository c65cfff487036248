import numpy as np

from deployments.labeler import Labeler
from graph.batch import Batch, ClassProbability, Request
from graph.config import LabelerSettings

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ROWS = np.array([[0.1, 0.6, 0.3], [0.5, 0.0, 0.5]], np.float32)


async def label(requests, settings=None):
    labeler = Labeler(settings or LabelerSettings(), ("cat", "dog", "ship"))
    return (await labeler(Batch(ROWS, requests, versions={"a": 2}))).payload


async def test_top_one_by_default():
    first, second = await label([Request(TRACE), Request(TRACE)])
    assert (first.label, first.index, round(first.probability, 4)) == ("dog", 1, 0.6)
    assert first.top == (ClassProbability("dog", 1, first.probability),)
    assert second.label == "cat"
    assert first.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert first.model_versions == {"a": 2}
    assert first.members is None
    assert first.probabilities is None


async def test_top_k_is_the_requests_own_and_descends():
    first, second = await label([Request(TRACE, top_k=2), Request(TRACE, top_k=3)])
    assert [item.label for item in first.top] == ["dog", "ship"]
    assert [item.label for item in second.top] == ["cat", "ship", "dog"]


async def test_top_k_by_default_is_the_settings():
    first, _ = await label([Request(TRACE), Request(TRACE)], LabelerSettings(top_k=2))
    assert len(first.top) == 2


async def test_members_and_probabilities_on_request():
    votes = {"a": (2, 0.9)}
    first, second = await label([Request(TRACE, members=True, votes=votes), Request(TRACE, probabilities=True)])
    assert first.members == {"a": ClassProbability("ship", 2, 0.9)}
    np.testing.assert_array_equal(second.probabilities, ROWS[1])


async def test_the_json_has_the_fields_of_the_contract():
    first, _ = await label([Request(TRACE, members=True, votes={"a": (2, 0.9)}), Request(TRACE)])
    assert first.to_dict() == {
        "label": "dog",
        "index": 1,
        "probability": 0.6,
        "top": [{"label": "dog", "index": 1, "probability": 0.6}],
        "members": {"a": {"label": "ship", "index": 2, "probability": 0.9}},
        "model_versions": {"a": 2},
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }
