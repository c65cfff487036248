import asyncio
import time

import numpy as np
import pytest

from deployments.combiner import Combiner, CombinerSettings
from deployments.contract.batch import Work
from deployments.contract.errors import InferenceFailed, InvalidImage
from deployments.contract.item import Item, Note, Step
from deployments.contract.names import COMBINER, LABELER, TRANSFORMER
from deployments.contract.options import Options
from deployments.contract.preprocessing import Preprocessing
from deployments.pipeline.member_client import Member, QuorumSettings
from deployments.pipeline.pipeline import Combined, Ensemble, Pipeline
from deployments.transformer.transformer import JpegTransformer, TransformerSettings
from ensemble_features.cascade.audit import Audit
from ensemble_features.cascade.feature import Cascading
from ensemble_features.cascade.flow import Cascade, LoadShed, LoadState
from ensemble_features.cascade.section import CascadeSection
from ensemble_features.cascade.settings import CascadeSettings, UnderLoadSettings
from graph.composition import ensemble
from tests import pictures
from tests.batches import batch, errors


class Says:
    """A member that looks up what it says of an image by its pixel, and fails where there is nothing."""

    def __init__(self, name, says, version=7):
        self.name, self.says, self.version = name, says, version
        self.seen = []

    async def __call__(self, batch):
        self.seen.append(batch.payload.tolist())
        work = Work(f"predict {self.name}", batch)
        broken = {r: InferenceFailed(self.name) for r, p in enumerate(work.payload.tolist()) if p not in self.says}
        scores = [self.says[pixel] for pixel in work.payload.tolist() if pixel in self.says]
        told = {"versions": {self.name: self.version}}
        return work.done(np.array(scores, np.float32).reshape(-1, 2), lambda _: told, errors=broken)


class Hangs(Says):
    async def __call__(self, batch):
        self.seen.append(batch.payload.tolist())
        await asyncio.Event().wait()


class Combining(Cascade):
    """A cascade, and the node behind it."""

    async def __call__(self, batch):
        return await Pipeline(self, Combined(self._combiner))(batch)


def cascade(*members, exit_at=(0.9,), weights=None, combiner=None, flow=Combining, **asking):
    combiner = combiner or Combiner(CombinerSettings(), weights or {member.name: 1.0 for member in members})
    settings = CascadeSettings(order=[member.name for member in members], exit_at=exit_at)
    named = {member.name: Member(member, "small") for member in members}
    return flow(named, combiner, QuorumSettings(**asking), settings)


def side_by_side(members, combiner, asking, _):
    return Ensemble(members, combiner, asking)


def pixels(*values, items=()):
    return batch({"small": np.array(values, np.uint8), "large": np.zeros(len(values), np.uint8)}, *items)


def asked(batch):
    return [item.extras.get("asked", ()) for item in batch.items]


def shed(batch):
    noted = [item.note(LoadShed) is not None for item in batch.items]
    assert noted == [bool(item.extras["load_shed"]) for item in batch.items]
    return noted


SURE, UNSURE, OTHER = [0.95, 0.05], [0.6, 0.4], [0.1, 0.9]


async def test_only_the_images_that_the_first_is_not_sure_of_go_on():
    a, b = Says("a", {1: SURE, 2: UNSURE, 3: SURE, 4: UNSURE}), Says("b", {2: OTHER, 4: SURE})
    answer = await cascade(a, b)(pixels(1, 2, 3, 4))
    assert (a.seen, b.seen) == ([[1, 2, 3, 4]], [[2, 4]])
    np.testing.assert_allclose(answer.payload, [SURE, [0.35, 0.65], SURE, [0.775, 0.225]], rtol=1e-5)
    assert asked(answer) == [("a",), ("a", "b"), ("a",), ("a", "b")]
    assert [dict(item.versions) for item in answer.items] == [{"a": 7}, {"a": 7, "b": 7}, {"a": 7}, {"a": 7, "b": 7}]
    assert [list(item.predictions) for item in answer.items] == [["a"], ["a", "b"], ["a"], ["a", "b"]]
    nodes = [[step.note.node for step in item.steps] for item in answer.items]
    assert nodes[:2] == [["predict a", "combine"], ["predict a", "predict b", "combine"]]


async def test_three_stages_are_decided_by_what_was_said_so_far_together():
    a = Says("a", {1: [0.7, 0.3], 2: [0.7, 0.3], 3: [0.91, 0.09]})
    b = Says("b", {1: [0.99, 0.01], 2: [0.8, 0.2]})
    c = Says("c", {2: [0, 1]})
    answer = await cascade(a, b, c, exit_at=(0.9, 0.84))(pixels(1, 2, 3))
    assert asked(answer) == [("a", "b"), ("a", "b", "c"), ("a",)]
    np.testing.assert_allclose(answer.payload, [[0.845, 0.155], [0.5, 0.5], [0.91, 0.09]], rtol=1e-5)


async def test_where_all_are_sure_nobody_else_is_asked_and_a_threshold_is_reached_by_itself():
    a, b = Says("a", {1: [0.75, 0.25], 2: SURE}), Says("b", {})
    answer = await cascade(a, b, exit_at=(0.75,))(pixels(1, 2))
    assert (b.seen, asked(answer)) == ([], [("a",)] * 2)


async def test_what_every_member_is_asked_of_is_answered_as_by_the_ensemble():
    a, b = Says("a", {1: UNSURE, 2: SURE}), Says("b", {1: OTHER, 2: OTHER})
    full = Item(options=Options(quality="full"))
    answer = await cascade(a, b)(pixels(1, 2, items=(full, full)))
    whole = await cascade(a, b, flow=side_by_side)(pixels(1, 2))
    np.testing.assert_array_equal(answer.payload, whole.payload)
    assert asked(answer) == [("a", "b")] * 2


async def test_who_asks_for_full_quality_goes_on_alone():
    a, b = Says("a", {1: SURE, 2: SURE}), Says("b", {2: SURE})
    answer = await cascade(a, b)(pixels(1, 2, items=(Item(), Item(options=Options(quality="full")))))
    assert (b.seen, asked(answer)) == ([[2]], [("a",), ("a", "b")])


async def test_a_gate_can_end_the_question_and_has_no_say_when_it_does_not():
    gate, b = Says("gate", {1: SURE, 2: [0.8, 0.2]}), Says("b", {2: OTHER})
    answer = await cascade(gate, b, weights={"gate": 0.0, "b": 1.0})(pixels(1, 2))
    np.testing.assert_allclose(answer.payload, [SURE, OTHER])
    assert asked(answer) == [("gate",), ("gate", "b")]


async def test_what_had_failed_before_stays_failed_and_is_not_asked():
    a, b = Says("a", {1: UNSURE, 3: SURE}), Says("b", {1: SURE})
    items = (Item(), Item(error=InvalidImage("x")), Item())
    answer = await cascade(a, b)(batch({"small": np.array([1, 3], np.uint8)}, *items))
    assert list(errors(answer)) == [1]
    assert asked(answer)[::2] == [("a", "b"), ("a",)]
    np.testing.assert_allclose(answer.payload, [[0.775, 0.225], SURE], rtol=1e-5)


async def test_with_a_quorum_a_member_that_fails_is_missing_and_the_image_goes_on():
    a, b = Says("a", {1: SURE}), Says("b", {2: OTHER})
    answer = await cascade(a, b, quorum=1)(pixels(1, 2, 3))
    assert {position: error.message for position, error in errors(answer).items()} == {2: "a"}
    assert b.seen == [[2, 3]]
    assert [dict(item.missing) for item in answer.items] == [{}, {"a": "inference_failed"}, {}]
    np.testing.assert_allclose(answer.payload, [SURE, OTHER])


async def test_where_a_member_fails_the_ones_before_are_not_judged_by_its_lower_threshold():
    a, b = Says("a", {1: [0.7, 0.3], 2: [0.7, 0.3]}), Says("b", {2: [0.7, 0.3]})
    c = Says("c", {1: OTHER})
    answer = await cascade(a, b, c, exit_at=(0.9, 0.6), quorum=1)(pixels(1, 2))
    assert (c.seen, asked(answer)) == ([[1]], [("a", "b", "c"), ("a", "b")])
    assert [dict(item.missing) for item in answer.items] == [{"b": "inference_failed"}, {}]


async def test_without_a_quorum_an_image_fails_with_the_first_member_that_fails_on_it():
    a, b = Says("a", {1: SURE, 3: UNSURE}), Says("b", {2: SURE})
    answer = await cascade(a, b)(pixels(1, 2, 3))
    assert {position: error.message for position, error in errors(answer).items()} == {1: "a", 2: "b"}
    assert b.seen == [[3]]


async def test_a_late_member_is_passed_over_until_it_is_back():
    late, b = Hangs("a", {}), Says("b", {1: OTHER})
    flow = cascade(late, b, quorum=1, patience_ms=20)
    for _ in range(2):
        answer = await flow(pixels(1))
        assert dict(answer.items[0].missing) == {"a": "deadline_exceeded"}
        np.testing.assert_allclose(answer.payload, [OTHER])
    # The second time nobody waited for it.
    assert asked(answer) == [("b",)]


async def test_an_image_whose_ballots_the_combiner_fails_has_failed_alone():
    class Fails(Combiner):
        async def __call__(self, batch):
            answer = await super().__call__(batch)
            rows = answer.payload[:, 0]
            return answer.fail({p: InvalidImage("x") for r, p in zip(rows, answer.live, strict=True) if r > 0.9})

    weights = {"a": 1.0, "b": 1.0}
    flow = cascade(
        Says("a", {1: SURE, 2: OTHER, 3: UNSURE}),
        Says("b", {3: UNSURE}),
        combiner=Fails(CombinerSettings(), weights),
    )
    answer = await flow(pixels(1, 2, 3))
    assert list(errors(answer)) == [0]
    np.testing.assert_allclose(answer.payload, [OTHER, UNSURE])


@pytest.mark.parametrize("values", [(1, 2, 3, 4), (4, 3, 2, 1), (2, 4), (1, 3)])
async def test_ballots_are_what_was_combined(values):
    says = {1: SURE, 2: UNSURE, 3: SURE, 4: UNSURE}
    a, b = Says("a", says), Says("b", {2: OTHER, 4: SURE})
    combined = await cascade(a, b)(pixels(*values))
    ballots = await cascade(a, b, flow=Cascade)(pixels(*values))
    again = await Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})(ballots)
    np.testing.assert_array_equal(again.payload, combined.payload)
    assert asked(ballots) == asked(combined)


async def test_leaving_cancels_the_call_under_way():
    class Counts(Hangs):
        cancelled = 0

        async def __call__(self, batch):
            try:
                await super().__call__(batch)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

    a = Counts("a", {})
    task = asyncio.create_task(cascade(a, Says("b", {}))(pixels(1)))
    while not a.seen:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert a.cancelled == 1


def audited(*members, share=1.0, exit_at=(0.9,), **asking):
    names = [member.name for member in members]
    settings = CascadeSettings(order=names, exit_at=exit_at)
    audit = Audit(names[:-1], exit_at, share, None, False)
    combiner = Combiner(CombinerSettings(), {name: 1.0 for name in names})
    by_name = {member.name: Member(member, "small") for member in members}
    flow = Combining(by_name, combiner, QuorumSettings(**asking), settings, audit)
    return flow, audit._audited.counts


async def ended(flow):
    await asyncio.gather(flow._audits._task)


async def test_an_audit_asks_the_others_of_exits_and_changes_no_answer():
    a, b = Says("a", {1: SURE, 2: UNSURE, 3: SURE}), Says("b", {1: SURE, 2: OTHER, 3: [0.0, 1.0]})
    flow, results = audited(a, b)
    answer = await flow(pixels(1, 2, 3))
    assert asked(answer) == [("a",), ("a", "b"), ("a",)]
    np.testing.assert_allclose(answer.payload[[0, 2]], [SURE, SURE])
    await ended(flow)
    assert results == {("a", "agrees"): 1, ("a", "differs"): 1}
    assert sorted(b.seen) == [[1, 3], [2]]


async def test_an_answer_does_not_wait_for_its_audit_and_meanwhile_others_are_dropped():
    flow, results = audited(Says("a", {1: SURE}), Hangs("b", {}), quorum=1, patience_ms=50)
    for _ in range(2):
        assert asked(await flow(pixels(1))) == [("a",)]
        await asyncio.sleep(0)
    assert results == {("a", "dropped"): 1}
    await ended(flow)
    # The one under way came to nothing, and no member is late for it.
    assert results == {("a", "dropped"): 2}
    assert not any(member.breaker.is_open for member in flow._members.clients)


async def test_an_audit_that_a_member_fails_on_is_dropped():
    flow, results = audited(Says("a", {1: SURE, 2: SURE}), Says("b", {1: SURE}))
    assert errors(await flow(pixels(1, 2))) == {}
    await ended(flow)
    assert results == {("a", "agrees"): 1, ("a", "dropped"): 1}


async def test_an_exit_at_the_second_stage_is_compared_with_all_three():
    a, b = Says("a", {1: UNSURE, 2: SURE}), Says("b", {1: SURE, 2: SURE})
    c = Says("c", {1: [0.0, 1.0], 2: SURE})
    flow, results = audited(a, b, c, exit_at=(0.9, 0.7))
    assert asked(await flow(pixels(1))) == [("a", "b")]
    await ended(flow)
    assert results == {("b", "agrees"): 1}
    assert a.seen == [[1]]
    c.says[1] = [0.0, 1.0]
    b.says[1] = [0.85, 0.15]
    await flow(pixels(1))
    await ended(flow)
    assert results == {("b", "agrees"): 1, ("b", "differs"): 1}


async def test_under_load_lower_thresholds_hold_and_what_they_shortened_says_so():
    a, b = Says("a", {1: SURE, 2: UNSURE, 3: [0.55, 0.45]}), Says("b", {2: OTHER, 3: OTHER})
    load = LoadState(UnderLoadSettings(exit_at=(0.58,)))
    settings = CascadeSettings(order=["a", "b"], exit_at=[0.9])
    combiner = Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})
    loads = load, LoadState(UnderLoadSettings(exit_at=(0.58,)))
    flow = Combining(
        {"a": Member(a, "small"), "b": Member(b, "small")}, combiner, QuorumSettings(), settings, loads=loads
    )
    assert shed(await flow(pixels(1, 2, 3))) == [False] * 3
    load.is_on = True
    answer = await flow(pixels(1, 2, 3))
    assert asked(answer) == [("a",), ("a",), ("a", "b")]
    assert shed(answer) == [False, True, False]
    np.testing.assert_allclose(answer.payload[1], UNSURE)


async def test_the_lower_class_gets_the_lower_thresholds_first():
    settings = CascadeSettings(order=["a", "b"], exit_at=[0.9])
    under_load = UnderLoadSettings(exit_at=[0.5], from_queue_ms=100)
    members = {"a": Member(Says("a", {1: UNSURE}), "small"), "b": Member(Says("b", {1: OTHER}), "small")}
    loads = [LoadState(under_load) for _ in range(2)]
    combiner = Combiner(CombinerSettings(), {"a": 1.0, "b": 1.0})
    flow = Combining(members, combiner, QuorumSettings(), settings, loads=loads)
    # The lower class has waited for 200 ms, and the usual one for nothing.
    for priority, waited_ns, expected in ((0, 0, ("a", "b")), (2, 2 * 10**8, ("a",)), (0, 0, ("a", "b"))):
        step = Step(Note("decode", 10**9 + waited_ns, 0, {}, ("", 0)))
        item = Item(options=Options(priority=priority), queued_ns=10**9, steps=(step,))
        assert asked(await flow(pixels(1, items=[item]))) == [expected]


async def test_under_load_a_refused_wish_for_every_member_is_called_load_shed():
    load = LoadState(UnderLoadSettings(exit_at=(0.58,), full_share=0.0))
    flow, _ = audited(Says("a", {1: SURE}), Says("b", {1: SURE}))
    flow._loads, load.is_on = (load, load), True
    full = Item(options=Options(quality="full"))
    answer = await flow(pixels(1, 1, items=[full, Item()]))
    assert asked(answer) == [("a",), ("a",)]
    assert shed(answer) == [True, False]


async def test_under_load_nothing_is_audited():
    load = LoadState(UnderLoadSettings(exit_at=(0.5,)))
    flow, results = audited(Says("a", {1: SURE}), Says("b", {1: SURE}))
    flow._loads, load.is_on = (load, load), True
    await flow(pixels(1))
    assert results == {("a", "dropped"): 1}


class Waits(Says):
    """A member that answers when it is let."""

    def __init__(self, *args):
        super().__init__(*args)
        self.let = asyncio.Event()

    async def __call__(self, batch):
        await self.let.wait()
        return await super().__call__(batch)


async def labelled(batch):
    """A node behind the cascade: the most probable class of each row."""
    return Work("label", batch).done(batch.payload.argmax(axis=1).tolist())


async def test_an_early_exit_passes_what_is_behind_before_the_others_are_answered():
    a, b = Says("a", {1: SURE, 2: UNSURE, 3: OTHER, 4: UNSURE}), Waits("b", {2: OTHER})
    graph, left = Pipeline(Pipeline(cascade(a, b, quorum=2), Combined(None)), labelled), []

    async def take():
        async for positions, part in graph.parts(pixels(1, 2, 3, 4)):
            left.append((list(positions), part.payload, part.live))

    passing = asyncio.create_task(take())
    async with asyncio.timeout(5):
        while not left:
            await asyncio.sleep(0)
    # The image that b will fail on waits as long as the other.
    assert left == [([0, 2], [0, 1], [0, 1])]
    assert not passing.done()
    b.let.set()
    await passing
    assert left[1:] == [([1, 3], [1], [0])]


async def test_a_row_of_nodes_of_which_none_can_part_leaves_together():
    async def left(graph, batch):
        return [(list(positions), part.payload) async for positions, part in graph.parts(batch)]

    assert await left(Pipeline(labelled), batch(np.array([SURE, OTHER], np.float32))) == [([0, 1], [0, 1])]
    # Nothing is left to ask the cascade about.
    broken = [Item(error=InvalidImage("broken"))] * 2
    a = Says("a", {})
    graph = Pipeline(labelled, cascade(a, Says("b", {})))
    assert (await left(graph, pixels(1, 2, items=broken)), a.seen) == ([([0, 1], [])], [])


async def test_a_callers_short_deadline_does_not_make_a_member_late_for_others():
    flow = cascade(Says("a", {1: UNSURE}), Hangs("b", {}), quorum=1, patience_ms=60_000)
    await flow(pixels(1, items=[Item(deadline=time.time() + 0.015)]))
    assert not any(member.breaker.is_open for member in flow._members.clients)


class Sized(Says):
    """Says the same of every image, and notes the shape of what it gets."""

    async def __call__(self, batch):
        work = Work(f"predict {self.name}", batch)
        self.seen.append(work.payload.shape)
        return work.done(np.array([self.says[level] for level in work.payload[:, 0, 0, 0].tolist()], np.float32))


async def test_pixels_are_made_only_of_images_that_go_on():
    sure, unsure = [0.95, 0.05], [0.6, 0.4]
    first, second = (Sized(name, {10: sure, 90: unsure}) for name in ("first", "second"))
    section = CascadeSection(cascade={"order": ["first", "second"], "exit_at": [0.9]})
    combiner = Combiner(CombinerSettings(), {"first": 1.0, "second": 1.0})
    wanted = {"small": Preprocessing((8, 8)), "large": Preprocessing((16, 16)), "other": Preprocessing((4, 4))}
    transformer = JpegTransformer(TransformerSettings(), wanted, 1)
    feature = Cascading.__new__(Cascading)
    feature._quorum, feature._settings = QuorumSettings(), section.cascade
    feature._under_load = feature._audit = feature._ladder = None
    nodes = {TRANSFORMER: transformer, COMBINER: combiner, LABELER: passes, "first": first, "second": second}
    graph = ensemble({"first": "small", "second": "large"}, QuorumSettings(), nodes, [feature])
    answer = await graph(batch([pictures.encode(pictures.grey(level)) for level in (10, 90, 10, 90)]))
    assert asked(answer) == [("first",), ("first", "second")] * 2
    assert (first.seen, second.seen) == ([(4, 8, 8, 3)], [(2, 16, 16, 3)])
    assert [[step.note.node for step in item.steps].count("resize") for item in answer.items] == [0, 1] * 2


async def passes(batch):
    return batch
