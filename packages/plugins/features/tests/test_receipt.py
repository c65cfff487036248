"""What a receipt says, and that nodes are metered for those that ask for one alone."""

import asyncio

import numpy as np
import pytest

from deployments.combiner import Combiner, CombinerSettings
from deployments.contract.answer import NodeCost
from deployments.contract.batch import Work
from deployments.contract.errors import InvalidImage
from deployments.contract.item import PROCESS, Item, Note, Step
from deployments.contract.options import Options
from deployments.labeler import Labeler, LabelerSettings
from deployments.pipeline.member_client import Member
from deployments.pipeline.pipeline import Ensemble, Intercepted, Pipeline
from ensemble_features.receipt import Receipts, costs
from tests.batches import batch
from tests.unit.deployments.contract.test_cpu_accounting import spin

ASKS, DOES_NOT = Item(options=Options(receipt=True), queued_ns=1), Item(queued_ns=1)


class Transformer:
    """Makes four bytes of an image; of a bad one it makes none."""

    async def __call__(self, batch):
        work = Work("decode", batch)
        self.metered = [item.metered for item in work.batch.items]
        with work.elsewhere(1):
            await asyncio.to_thread(spin, 0.005)
        errors = {row: InvalidImage("bad") for row, image in enumerate(work.payload) if image == b"bad"}
        return work.done({"small": np.zeros((len(work.payload) - len(errors), 4), np.uint8)}, errors=errors)


class Model:
    """A member; of another server, its note says which."""

    def __init__(self, name, **attributes):
        self.name, self.attributes = name, attributes

    async def __call__(self, batch):
        work = Work(f"predict {self.name}", batch)
        spin(0.002)
        scores = np.full((len(work.payload), 2), 0.5, np.float32)
        return work.done(scores, lambda _: {"versions": {self.name: 1}}, attributes=self.attributes)


@pytest.fixture
def flow():
    here, far = Model("here"), Model("far", **{"server.address": "far.example"})
    members = {each.name: Member(each, "small") for each in (here, far)}
    combiner = Combiner(CombinerSettings(), dict.fromkeys(members, 1.0))
    transformer, labeler = Transformer(), Labeler(LabelerSettings(), ("x", "y"))
    graph = Pipeline(transformer, Ensemble(members, combiner), labeler)
    return Intercepted(graph, [Receipts(None).interceptor]), transformer


async def test_a_receipt_has_each_nodes_share_and_the_batch(flow):
    graph, transformer = flow
    answer = await graph(batch([b"abc", b"bad", b"abcde"], ASKS, ASKS, DOES_NOT))
    assert transformer.metered == [True, True, False]
    first, other = (each.classification.receipt for each in answer.payload)
    assert other is None
    assert (first.batch_size, first.position) == (3, 0)
    by_node = {each.node: each for each in first.nodes}
    assert list(by_node) == ["decode", "predict here", "predict far", "combine", "label", "ingress"]
    # A third of 11 bytes and of two images' pixels; then halves of two images.
    assert [(each.bytes_in, each.bytes_out) for each in first.nodes] == [
        (4, 3), (4, 8), (4, 8), (16, 8), (8, None), (3, None),
    ]  # fmt: skip
    assert by_node["decode"].cpu_ms >= 5 / 3
    assert by_node["predict here"].cpu_ms >= 1
    # What a server elsewhere takes is not known, and so not here.
    assert by_node["predict far"].cpu_ms is None
    assert by_node["predict far"].calling_cpu_ms >= 1
    assert by_node["ingress"].cpu_ms > 0


async def test_where_nobody_asks_nothing_is_metered(flow):
    graph, transformer = flow
    answer = await graph(batch([b"a"], DOES_NOT))
    assert (transformer.metered, answer.payload[0].classification.receipt) == ([False], None)
    assert "ensemble.cpu_ms" not in answer.items[0].steps[0].note.attributes


async def test_the_ingress_share_is_taken_whether_or_not_a_batch_asks(flow):
    graph, _ = flow
    await graph(batch([b"a"], ASKS))
    spin(0.02)
    await graph(batch([b"a", b"b"], DOES_NOT, DOES_NOT))
    [answer] = (await graph(batch([b"a"], ASKS))).payload
    [own] = [each for each in answer.classification.receipt.nodes if each.node == "ingress"]
    assert own.cpu_ms < 15


async def test_a_batch_that_is_cancelled_leaves_nothing_behind(flow):
    graph, _ = flow
    call = asyncio.ensure_future(graph(batch([b"a"], ASKS)))
    await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert graph._interceptors[0]._metered == {}


def test_a_node_that_worked_on_an_image_twice_has_both_shares_and_one_that_noted_nothing_none():
    def step(node, **noted):
        return Step(Note(node, 0, 1, {f"ensemble.{name}": value for name, value in noted.items()}, PROCESS))

    first = {"cpu_ms": 4.0, "bytes_in": 8, "bytes_out": 4, "batch.size": 4}
    again = {"cpu_ms": 2.0, "bytes_in": 4, "batch.size": 2}
    item = Item(steps=(step("predict a", **first), step("combine", **{"batch.size": 4}), step("predict a", **again)))
    assert costs(item) == [NodeCost("predict a", cpu_ms=2.0, bytes_in=4), NodeCost("combine")]
