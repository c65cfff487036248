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
    assert predictions == {
        # Without `a` the answer would be the class of `b`.
        "a": MemberPrediction(0, pytest.approx(0.6), without=1),
        "b": MemberPrediction(1, pytest.approx(0.8)),
    }


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


@pytest.mark.parametrize(
    "method", ["mean", "geometric_mean", "majority_vote", "tests.unit.deployments.test_combiner:last"]
)
@pytest.mark.parametrize("weights", [{"a": 1.0, "b": 1.0, "c": 1.0}, {"a": 3.0, "b": 1.0, "c": 0.0}])
async def test_each_member_knows_the_class_without_it(method: str, weights: dict[str, float]) -> None:
    """As an ensemble of the others answers, also where a member has not answered."""
    random = np.random.default_rng(4)
    scores = {name: random.dirichlet(np.full(4, 0.4), 500).astype(np.float32) for name in "abc"}
    scores["c"][::3] = np.nan
    combiner = Combiner(CombinerSettings(method=method), weights)
    batch = await combiner(ballots(**scores))
    classes, changes = batch.payload.argmax(axis=1), 0
    for row, item in enumerate(batch.items):
        answered = [name for name in "abc" if not np.isnan(scores[name][row, 0])]
        for name in answered:
            rest = [other for other in answered if other != name]
            given = [weights[other] for other in rest]
            others = combine(
                [scores[other][row : row + 1] for other in rest], given if any(given) else [1.0] * len(rest), method
            )
            changed = int(others.argmax()) if others.argmax() != classes[row] else None
            assert item.predictions[name].without == changed
            changes += changed is not None
    assert changes > 50


async def test_a_member_by_itself_cannot_be_left_out() -> None:
    batch = await Combiner(CombinerSettings(), {"a": 1.0})(ballots(a=A))
    assert batch.items[0].predictions["a"].without is None


def last(members: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Answer a class that no member has: what a combination of somebody else's may do."""
    least = np.tensordot(weights, 1 - members, axes=1)
    return (least / least.sum(axis=1, keepdims=True)).astype(np.float32)
