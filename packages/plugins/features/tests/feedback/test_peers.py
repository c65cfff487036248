"""A true label finds the replica that answered, and each label is counted once."""

import asyncio
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from deployments.contract.batch import Batch
from deployments.contract.errors import AlreadyLabelled, DeadlineExceeded, UnknownLabel, UnknownRequest
from deployments.contract.item import Item
from deployments.rpc.wire import VERSION
from ensemble_features.feedback import feature as peers
from ensemble_features.feedback.feature import Peers
from packages.plugins.features.tests.feedback.test_store import book, seen


class Replica:
    """One of the ingress, that remembers the answer to a request of its own name."""

    def __init__(self, folder, name):
        self.book = book()
        self.book.remember(name, 0, seen())
        self.peers = Peers(self.book, folder, name)

    @property
    def results(self):
        return self.book.figures().labels


@pytest.fixture
def folder():
    """A folder with a short path."""
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary) / "labels"


@pytest.fixture
async def replicas(folder):
    """Two of them, which find each other."""
    both = [Replica(folder, name) for name in ("a", "b")]
    for each in both:
        await each.peers.listen()
    yield both
    for each in both:
        await each.peers._listener.close()


async def test_a_label_of_another_replicas_answer_is_taken_there(replicas):
    here, _ = replicas
    await here.peers("b", "dog", 0, "")
    await here.peers("a", 1, 0, "")
    assert [each.book.figures().ensemble.count for each in replicas] == [1, 1]
    assert [each.results for each in replicas] == [{"accepted": 1}] * 2


async def test_what_is_wrong_is_told_as_if_it_had_been_answered_here(replicas):
    here, there = replicas
    with pytest.raises(UnknownLabel, match="'bird' is no class"):
        await here.peers("b", "bird", 0, "")
    await here.peers("b", "dog", 0, "")
    with pytest.raises(AlreadyLabelled):
        await here.peers("b", "dog", 0, "")
    with pytest.raises(UnknownRequest, match="never given here"):
        await here.peers("c", "dog", 0, "")
    with pytest.raises(UnknownRequest):
        await here.peers("b", "dog", 1, "")
    assert here.results == {"unknown_label": 1, "unknown_request": 2}
    assert there.results == {"accepted": 1, "already_labelled": 1}


async def test_a_label_that_is_no_number_of_a_class_is_told(replicas):
    here, there = replicas
    for label in (10**30, -1, "bird"):
        with pytest.raises(UnknownLabel):
            await here.peers("b", label, 0, "")
    # What numpy finds by `argmax` is one.
    await here.peers("b", np.int64(1), 0, "")
    assert (here.results, there.results) == ({"unknown_label": 3}, {"accepted": 1})


async def test_a_replica_that_has_died_is_not_waited_for(replicas, folder):
    here, _ = replicas
    # What a killed process leaves: a socket that nobody listens on.
    dead = await asyncio.start_unix_server(lambda *_: None, folder / "dead")
    (folder / "dead").rename(folder / f"0.{VERSION}")
    dead.close()
    await here.peers("b", "dog", 0, "")
    with pytest.raises(UnknownRequest):
        await here.peers("c", "dog", 0, "")
    assert not (folder / f"0.{VERSION}").exists()


@pytest.mark.parametrize("ends", [False, True])
async def test_a_silent_replica_may_know_so_the_label_can_be_told_again(replicas, folder, monkeypatch, ends):
    monkeypatch.setattr(peers, "PATIENCE_S", 1.0)
    here, _ = replicas
    asked, over = [], asyncio.Event()

    async def silent(_, writer):
        asked.append(writer)
        if ends:
            writer.close()
        await over.wait()

    async with await asyncio.start_unix_server(silent, folder / f"0.{VERSION}"):
        await here.peers("b", "dog", 0, "")
        with pytest.raises(DeadlineExceeded, match="try again"):
            await here.peers("c", "dog", 0, "")
        # The label, and a ping while there is no answer.
        first = len(asked)
        assert 1 <= first <= 2
        for _ in range(2):
            with pytest.raises(DeadlineExceeded, match="try again"):
                await here.peers("c", "dog", 0, "")
        # Of many labels only the first waits for it.
        assert len(asked) == first
        over.set()


async def test_a_label_that_comes_too_late_is_not_taken(replicas, monkeypatch):
    here, there = replicas
    monkeypatch.setattr(peers, "time", SimpleNamespace(time=lambda: 0.0, monotonic=time.monotonic))
    told = Batch([msgspec.msgpack.encode(("b", "dog", 0, "", -1.0))], (Item(),))
    with pytest.raises(DeadlineExceeded):
        await there.peers._handed(told)
    assert there.results == {}
    await here.peers("b", "dog", 0, "")


async def test_without_a_folder_a_replica_is_alone():
    alone = Replica(None, "a")
    await alone.peers.listen()
    await alone.peers("a", "dog", 0, "")
    with pytest.raises(UnknownRequest):
        await alone.peers("b", "dog", 0, "")


async def test_a_folder_that_cannot_be_made_costs_the_others_labels_alone(folder, caplog):
    folder.parent.joinpath("labels").write_text("a file")
    alone = Replica(folder, "a")
    await alone.peers.listen()
    await alone.peers.listen()
    assert caplog.text.count("no other replica can hand on labels") == 1
    await alone.peers("a", "dog", 0, "")


async def test_a_label_of_another_key_is_not_taken_for_the_same_id(replicas):
    here, there = replicas
    there.book.remember("both", 0, seen(), "mine")
    here.book.remember("both", 0, seen(), "yours")
    await here.peers("both", "dog", 0, "mine")
    with pytest.raises(UnknownRequest):
        await here.peers("both", "dog", 0, "")
    assert (there.results, here.results) == ({"accepted": 1}, {"unknown_request": 1})
