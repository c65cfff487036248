import numpy as np
import pytest

from deployments.combiner import Combiner, CombinerSettings, combine
from deployments.contract.batch import Batch
from deployments.contract.errors import ConfigurationError
from deployments.contract.item import Item, MemberPrediction
from deployments.contract.options import Options

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


def ballots(**members):
    return Batch(members, (Item(),) * len(next(iter(members.values()))))


async def test_outputs_are_matched_to_weights_by_name():
    batch = await Combiner(CombinerSettings(), {"a": 3.0, "b": 1.0})(ballots(b=B, a=A))
    np.testing.assert_allclose(batch.payload, 0.75 * A + 0.25 * B, rtol=1e-6)
    predictions = batch.items[0].predictions
    assert predictions == {"a": MemberPrediction(0, pytest.approx(0.6)), "b": MemberPrediction(1, pytest.approx(0.8))}


async def test_a_members_whole_row_goes_with_the_vote_only_where_members_are_asked_for():
    items = (Item(options=Options(members=True)), Item())
    batch = await Combiner(CombinerSettings(), {"a": 1.0})(Batch({"a": A}, items))
    asked, plain = (item.predictions["a"] for item in batch.items)
    np.testing.assert_array_equal(np.frombuffer(asked.row, np.float32), A[0])
    assert plain.row == b""


async def test_an_image_is_combined_of_those_that_answered_it():
    some = B.copy()
    some[1] = np.nan
    for method in ("mean", "geometric_mean", "majority_vote"):
        combiner = Combiner(CombinerSettings(method=method), {"a": 3.0, "b": 1.0})
        batch = await combiner(ballots(a=A, b=some))
        np.testing.assert_allclose(batch.payload[:1], combine([A[:1], B[:1]], [3, 1], method), rtol=1e-6)
        np.testing.assert_allclose(batch.payload[1:], combine([A[1:]], [1], method), rtol=1e-6)
        assert [set(item.predictions) for item in batch.items] == [{"a", "b"}, {"a"}]


async def test_who_has_no_weight_speaks_where_nobody_else_does():
    nobody = np.full_like(A, np.nan)
    combiner = Combiner(CombinerSettings(), {"gate": 0.0, "b": 1.0})
    np.testing.assert_allclose((await combiner(ballots(gate=A, b=B))).payload, B)
    np.testing.assert_allclose((await combiner(ballots(gate=A, b=nobody))).payload, A)


async def test_members_that_disagree_on_classes_are_named():
    combiner = Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})
    with pytest.raises(ConfigurationError, match=r"'a': 3, 'b': 2"):
        await combiner(ballots(a=A, b=B[:, :2]))


@pytest.mark.parametrize("weights", [{"c": 1.0}, {"a": 0.0, "b": 0.0}, {"a": 0.0}])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ConfigurationError, match="weights"):
        Combiner(CombinerSettings(weights=weights), {"a": 1.0, "b": 1.0})


def test_where_the_outcome_must_tell_how_sure_members_are_votes_are_refused():
    combiner = Combiner(CombinerSettings(), {"a": 1.0}, graded=True)
    combiner.check(CombinerSettings(method="geometric_mean"))
    with pytest.raises(ConfigurationError, match="votes don't tell"):
        combiner.check(CombinerSettings(method="majority_vote"))
    with pytest.raises(ConfigurationError, match="votes don't tell"):
        Combiner(CombinerSettings(method="majority_vote"), {"a": 1.0}, graded=True)
