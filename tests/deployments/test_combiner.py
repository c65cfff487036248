import numpy as np
import pytest

from deployments.combiner import Combiner, combine
from graph.batch import Batch, Request
from graph.config import CombinerSettings
from graph.errors import ConfigurationError, InferenceFailed

A = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]], np.float32)
B = np.array([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], np.float32)


def test_mean_is_weighted():
    np.testing.assert_allclose(combine([A, B], [3, 1], "mean"), 0.75 * A + 0.25 * B, rtol=1e-6)


def test_geometric_mean_is_weighted_and_normalized():
    product = A**0.75 * B**0.25
    expected = product / product.sum(1, keepdims=True)
    np.testing.assert_allclose(combine([A, B], [3, 1], "geometric_mean"), expected, rtol=1e-5)


def test_geometric_mean_survives_zeros():
    zeros = np.array([[1, 0, 0]], np.float32), np.array([[0, 1, 0]], np.float32)
    combined = combine(list(zeros), [1, 1], "geometric_mean")
    assert np.isfinite(combined).all()
    assert combined.sum() == pytest.approx(1)


def test_majority_vote_counts_weight():
    votes = combine([A, A, B], [1, 1, 3], "majority_vote")
    np.testing.assert_allclose(votes, [[0.4, 0.6, 0], [0, 0.4, 0.6]], atol=1e-4)


def test_majority_vote_ties_go_to_the_larger_mean():
    assert combine([A, B], [1, 1], "majority_vote").argmax(1).tolist() == [1, 2]


@pytest.mark.parametrize("method", ["mean", "geometric_mean", "majority_vote"])
def test_rows_sum_to_one(method):
    rows = np.random.default_rng(0).dirichlet(np.ones(10), (3, 50)).astype(np.float32)
    np.testing.assert_allclose(combine(list(rows), [1, 2, 0.5], method).sum(1), 1, rtol=1e-5)


async def test_outputs_are_matched_to_weights_by_name():
    requests = [Request(""), Request("")]
    combiner = Combiner(CombinerSettings(), {"a": 3.0, "b": 1.0})
    outputs = {"b": Batch(B, requests, versions={"b": 2}), "a": Batch(A, requests, versions={"a": 1})}
    batch = await combiner(outputs)
    np.testing.assert_allclose(batch.payload, 0.75 * A + 0.25 * B, rtol=1e-6)
    assert batch.versions == {"a": 1, "b": 2}
    assert requests[0].votes == {"a": (0, pytest.approx(0.6)), "b": (1, pytest.approx(0.8))}


async def test_what_failed_in_one_member_has_failed():
    requests = [Request("") for _ in range(3)]
    error = InferenceFailed("x")
    a = Batch(np.stack([A[0], A[1], A[0]]), requests)
    b = Batch(B, requests, errors={1: error})
    batch = await Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})({"a": a, "b": b})
    assert batch.errors == {1: error}
    np.testing.assert_allclose(batch.payload, [(A[0] + B[0]) / 2, (A[0] + B[1]) / 2], rtol=1e-6)


async def test_members_that_disagree_on_classes_are_named():
    requests = [Request(""), Request("")]
    combiner = Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})
    with pytest.raises(ConfigurationError, match=r"'a': 3, 'b': 2"):
        await combiner({"a": Batch(A, requests), "b": Batch(B[:, :2], requests)})


@pytest.mark.parametrize("weights", [{"c": 1.0}, {"a": 0.0, "b": 0.0}, {"a": 0.0}])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ConfigurationError, match="weights"):
        Combiner(CombinerSettings(weights=weights), {"a": 1.0, "b": 1.0})


async def test_a_member_that_failed_on_everything_leaves_its_own_error():
    requests = [Request(""), Request("")]
    error = InferenceFailed("x")
    failed = Batch(np.empty((0, 0), np.float32), requests, errors={0: error, 1: error})
    batch = await Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})({"a": failed, "b": Batch(B, requests)})
    assert batch.errors == {0: error, 1: error}
    assert len(batch.payload) == 0
