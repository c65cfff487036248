"""What each member adds to the answers, counted while they are given, equals what an offline computation finds."""

from collections import Counter

import numpy as np
from msgspec.structs import replace

from deployments.combiner import Combiner, CombinerSettings, combine
from deployments.contract.answer import Answer, Classification
from deployments.contract.batch import Batch
from deployments.contract.item import Item
from deployments.pipeline.pipeline import Intercepted
from ensemble_features.contribution import CHANGED, LABELLED, MENDED, SAME, SPOILED, ContributionCounts
from ensemble_features.record import records
from tests.batches import batch

IMAGES, CLASSES = 2_000, 5
WEIGHTS = {"a": 1.0, "b": 2.0, "c": 1.5}
RANDOM = np.random.default_rng(11)
TRUTH = RANDOM.integers(0, CLASSES, IMAGES)


def predicted() -> dict[str, np.ndarray]:
    """Members that are often right, one of which answers only two thirds of the images."""
    scores = {}
    for name in WEIGHTS:
        powers = np.exp(RANDOM.normal(size=(IMAGES, CLASSES)) + 1.5 * np.eye(CLASSES)[TRUTH])
        scores[name] = (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)
    scores["c"][::3] = np.nan
    return scores


class Graph:
    """Combines what is predicted for the images, which are their numbers."""

    def __init__(self, scores):
        self._scores, self._combiner = scores, Combiner(CombinerSettings(), WEIGHTS)

    async def __call__(self, batch):
        rows = [int(image) for image in batch.payload]
        versions = {"a": 2, "b": 1, "c": 1}
        items = tuple(
            replace(item, versions=versions if row % 2 else {**versions, "a": 3})
            for item, row in zip(batch.items, rows, strict=True)
        )
        combined = await self._combiner(Batch({name: each[rows] for name, each in self._scores.items()}, items))
        answers = [answer(int(row.argmax())) for row in combined.payload]
        return Batch(answers, combined.items)


def answer(index):
    return Answer(Classification(str(index), index, 0.5, top=(), model_versions={}, trace_id=""), np.zeros(CLASSES))


def offline(scores):
    """Count by brute force what each version of a member does to each answer."""
    counts = Counter()
    for row in range(IMAGES):
        names = [name for name in WEIGHTS if not np.isnan(scores[name][row, 0])]
        together = label(scores, names, row)
        for name in names:
            version = "3" if name == "a" and row % 2 == 0 else "2" if name == "a" else "1"
            others = label(scores, [other for other in names if other != name], row)
            counts[name, version, SAME if others == together else CHANGED] += 1
            counts[name, version, LABELLED] += 1
            if others != together and TRUTH[row] in (together, others):
                counts[name, version, MENDED if TRUTH[row] == together else SPOILED] += 1
    return counts


def label(scores, names, row):
    return int(
        combine([scores[name][row : row + 1] for name in names], [WEIGHTS[name] for name in names], "mean").argmax()
    )


async def test_counts_equal_those_of_an_offline_computation():
    scores = predicted()
    counts, kept = ContributionCounts(), Kept()
    flow = Intercepted(Graph(scores), [counts, kept])
    for start in range(0, IMAGES, 16):
        rows = range(start, min(start + 16, IMAGES))
        sent = batch([b"%d" % row for row in rows], *(Item(queued_ns=1 + row) for row in rows))
        counts.batch(await flow(sent), 0.0)
    for row, record in kept.records.items():
        record.set_label(int(TRUTH[row]))
    expected = offline(scores)
    assert expected[("a", "3", MENDED)] > 20
    assert expected[("c", "1", SPOILED)] > 20
    assert counts._counter.counts == +expected
    found = counts.figures()
    assert found["a"]["3"].mended == expected["a", "3", MENDED]
    assert found["c"]["1"].changed.total == IMAGES - len(range(0, IMAGES, 3))


class Kept:
    """Keeps the records of answers by the numbers of their images."""

    sees_all, option = True, ""

    def __init__(self):
        self.records = {}

    def on_request(self, batch):
        pass

    def on_part(self, batch, positions, part):
        for position, record in records(batch).items():
            self.records[batch.sent.items[position].queued_ns - 1] = record
        return part

    def on_end(self, batch):
        pass


async def test_a_member_by_itself_and_what_warms_up_are_not_counted():
    scores = {"a": predicted()["a"]}
    counts, kept = ContributionCounts(), Kept()
    counts.batch(await Intercepted(Graph(scores), [counts, kept])(batch([b"1"], Item(queued_ns=1))), 0.0)
    kept.records.pop(0).set_label(1)
    # What warms up is no request's, so no batch is observed of it.
    await Intercepted(Graph(predicted()), [counts, kept])(batch([b"1"], Item()))
    assert (counts.figures(), kept.records) == ({}, {})
