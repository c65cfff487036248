"""Both ends of a direct edge, in one process: over asyncio's loop and over uvloop's, which replicas have."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import uvloop

from deployments.contract.batch import Batch, Work
from deployments.contract.errors import ConfigurationError, EnsembleError, InferenceFailed, NoReplica, Overloaded
from deployments.contract.item import Item
from deployments.rpc import cluster, wire
from deployments.rpc import replica as replica_module
from deployments.rpc.cluster import ClusterSize
from deployments.rpc.direct import DirectEdge
from deployments.rpc.listener import Caller, Listener
from deployments.rpc.replica import LOOK_EVERY_S, LOOKS, SILENT_S, Connection
from deployments.rpc.stand_in import StandIn
from deployments.rpc.wire import CALL, HEAD, VERSION
from tests.batches import batch


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


@pytest.fixture
def folder():
    """A folder with a short path."""
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary) / "edge"


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """One machine."""
    monkeypatch.setattr(cluster.ray, "nodes", lambda: [{"Alive": True}])


class Replica:
    """A node that doubles, and can be told to wait or to fail."""

    def __init__(self, folder, name="r1"):
        self.batches = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.cancelled = 0
        self.fault = None
        self.listener = Listener(self.work, folder, name)

    async def work(self, batch):
        self.batches.append(batch)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.fault is not None:
            raise self.fault
        return Work("double", batch).done(batch.payload * 2)


class Handle:
    """The way by handle."""

    def __init__(self):
        self.calls = 0

    async def __call__(self, batch):
        self.calls += 1
        return batch


def edge(folder, ways=None):
    handle = Handle()
    return DirectEdge(folder, handle, (ways if ways is not None else []).append, ClusterSize()), handle


async def until(check):
    give_up = time.monotonic() + 10
    while not check():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.005)


def rows(*values):
    return batch(np.array(values, np.float32))


def test_a_batch_goes_and_comes_back(run, folder):
    async def main():
        replica, ways = Replica(folder), []
        await replica.listener.keep_open()
        call, handle = edge(folder, ways)
        before = Work("before", rows(1, 2)).done(np.array([1, 2], np.float32))
        answer = await call(before)
        assert answer.payload.tolist() == [2, 4]
        assert [[step.note.node for step in item.steps] for item in answer.items] == [["before", "double"]] * 2
        assert replica.batches[0].items[0].steps == ()
        assert (ways, handle.calls, call.connections) == (["direct"], 0, 1)
        await call(rows(3))
        assert call.connections == 1

    run(main())


@pytest.mark.parametrize("size", [1, 16_384, 5_000_000])
def test_batches_of_any_size_arrive_whole(run, folder, size):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, _ = edge(folder)
        values = np.arange(size, dtype=np.float32)[None] % 251
        for _ in range(3):
            answer = await call(Batch(values, (Item(),)))
            np.testing.assert_array_equal(answer.payload, values * 2)

    run(main())


def test_many_images_arrive_whole(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, _ = edge(folder)
        items = tuple(Item(trace_parent=f"00-{i:032x}-{i:016x}-01") for i in range(3000))
        for _ in range(2):
            answer = await call(Batch(np.arange(3000, dtype=np.float32), items))
            assert [item.trace_parent for item in answer.items] == [item.trace_parent for item in items]
            np.testing.assert_array_equal(answer.payload, np.arange(3000) * 2)

    run(main())


def test_many_calls_at_once_are_not_mixed_up(run, folder):
    async def main():
        replicas = [Replica(folder, f"r{i}") for i in range(3)]
        for replica in replicas:
            await replica.listener.keep_open()
        call, _ = edge(folder)
        answers = await asyncio.gather(*(call(rows(*range(i))) for i in range(1, 60)))
        for i, answer in enumerate(answers, start=1):
            assert answer.payload.tolist() == [2 * value for value in range(i)]
        # The one with the fewest calls under way is asked.
        assert min(len(replica.batches) for replica in replicas) >= 15

    run(main())


def test_a_replica_that_comes_and_one_that_goes_are_seen(run, folder, monkeypatch):
    monkeypatch.setattr(replica_module, "READ_EVERY_S", 0)

    async def main():
        call, handle = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [1]
        assert handle.calls == 1
        first, second = Replica(folder, "r1"), Replica(folder, "r2")
        await first.listener.keep_open()
        assert (await call(rows(1))).payload.tolist() == [2]
        await second.listener.keep_open()
        await first.listener.close()
        assert (await call(rows(1))).payload.tolist() == [2]
        assert (handle.calls, len(first.batches), len(second.batches)) == (1, 1, 1)

    run(main())


def test_a_dead_replica_is_known_at_once_and_its_socket_removed(run, folder):
    async def main():
        replica, ways = Replica(folder), []
        await replica.listener.keep_open()
        call, handle = edge(folder, ways)
        replica.gate.clear()
        waiting = asyncio.create_task(call(rows(1)))
        await until(lambda: replica.batches)
        # As a kill does: every descriptor is closed, and the socket's file stays.
        replica.listener._server.close()
        for caller in list(replica.listener.callers):
            caller.abort()
        assert (await waiting).payload.tolist() == [1]
        assert (ways, handle.calls) == (["handle"], 1)
        assert list(folder.iterdir()) == []

    run(main())


def test_a_batch_that_does_not_wait_is_told_when_the_only_replica_dies(run, folder):
    async def main():
        replica, ways = Replica(folder), []
        await replica.listener.keep_open()
        call, handle = edge(folder, ways)
        hurried = batch(np.array([1], np.float32), Item(waits_for_replica=False))
        assert (await call(hurried)).payload.tolist() == [2]
        await until(lambda: call._cluster.is_alone is not None)
        replica.gate.clear()
        waiting = asyncio.create_task(call(hurried))
        await until(lambda: len(replica.batches) == 2)
        replica.listener._server.close()
        for caller in list(replica.listener.callers):
            caller.abort()
        with pytest.raises(NoReplica):
            await waiting
        with pytest.raises(NoReplica):
            await call(hurried)
        assert (ways, handle.calls) == (["direct"], 0)
        assert (await call(rows(1))).payload.tolist() == [1]
        assert handle.calls == 1
        again = Replica(folder, "r2")
        await again.listener.keep_open()
        assert (await call(hurried)).payload.tolist() == [2]

    run(main())


def test_a_dying_replica_that_still_accepts_connections_is_none(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, handle = edge(folder)
        hurried = batch(np.array([1], np.float32), Item(waits_for_replica=False))
        assert (await call(hurried)).payload.tolist() == [2]
        await until(lambda: call._cluster.is_alone is not None)
        # Every connection ends when a batch has come, and the socket stays.
        replica.fault = asyncio.CancelledError()
        with pytest.raises(NoReplica):
            await call(hurried)
        assert handle.calls == 0

    run(main())


@pytest.mark.parametrize("nodes", [2, None], ids=["two machines", "not counted yet"])
def test_where_a_replica_may_be_elsewhere_a_batch_that_does_not_wait_goes_by_handle(run, folder, monkeypatch, nodes):
    counted = []

    def told():
        counted.append(nodes)
        if nodes is None:
            raise ConnectionError
        return [{"Alive": True}] * nodes

    async def main():
        monkeypatch.setattr(cluster.ray, "nodes", told)
        call, handle = edge(folder)
        hurried = batch(np.array([1], np.float32), Item(waits_for_replica=False))
        await call(hurried)
        await until(lambda: counted)
        await call(hurried)
        assert handle.calls == 2

    run(main())


def test_a_batch_whose_replica_died_goes_to_another_and_no_further(run, folder):
    async def main():
        call, handle = edge(folder)
        replicas = [Replica(folder, f"r{i}") for i in range(3)]
        for replica in replicas:
            await replica.listener.keep_open()
            replica.gate.clear()

        async def kill():
            asked = []
            while len(asked) < 2:
                await until(lambda: any(r.batches and r not in asked for r in replicas))
                victim = next(r for r in replicas if r.batches and r not in asked)
                asked.append(victim)
                for caller in list(victim.listener.callers):
                    caller.abort()

        killer = asyncio.create_task(kill())
        assert (await call(rows(1))).payload.tolist() == [1]
        await killer
        # A batch that kills who works on it is not offered to all of them.
        assert sum(bool(replica.batches) for replica in replicas) == 2
        assert handle.calls == 1

    run(main())


def test_a_replica_that_stops_finishes_what_it_has_and_takes_no_more(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, handle = edge(folder)
        await call(rows(1))
        replica.gate.clear()
        waiting = asyncio.create_task(call(rows(2)))
        await until(lambda: len(replica.batches) == 2)
        closing = asyncio.create_task(replica.listener.close())
        await until(lambda: replica.listener.closing)
        # Its socket is gone, but this caller has not looked since.
        assert (await call(rows(3))).payload.tolist() == [3]
        assert handle.calls == 1
        assert not closing.done()
        replica.gate.set()
        assert (await waiting).payload.tolist() == [4]
        await closing
        await until(lambda: call.connections == 0)

    run(main())


def test_a_caller_that_leaves_frees_the_node(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, _ = edge(folder)
        replica.gate.clear()
        waiting = asyncio.create_task(call(rows(1)))
        await until(lambda: replica.batches)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: replica.cancelled == 1)
        replica.gate.set()
        assert (await call(rows(2))).payload.tolist() == [4]

    run(main())


@pytest.mark.parametrize(
    ("fault", "raised", "message"),
    [
        (InferenceFailed("it broke"), InferenceFailed, "it broke"),
        (Overloaded("later", retry_after_s=1.5), Overloaded, "later"),
        (ConfigurationError("members disagree"), RuntimeError, "its log has the cause"),
        (ZeroDivisionError("secret"), RuntimeError, "its log has the cause"),
    ],
)
def test_a_nodes_failure_is_the_callers_and_its_inside_is_not_told(run, folder, fault, raised, message):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, handle = edge(folder)
        replica.fault = fault
        with pytest.raises(raised, match=message) as caught:
            await call(rows(1))
        assert isinstance(caught.value, EnsembleError) == isinstance(fault, EnsembleError)
        replica.fault = None
        assert (await call(rows(1))).payload.tolist() == [2]
        assert handle.calls == 0

    run(main())


def test_another_version_of_the_code_is_not_talked_to(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        [path] = folder.iterdir()
        assert path.suffix == f".{VERSION}"
        path.rename(path.with_suffix(".012345"))
        call, handle = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [1]
        assert handle.calls == 1

    run(main())


def test_only_this_user_comes_in(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    run(main())


def test_a_folder_that_others_may_enter_is_not_used(run, folder):
    async def main():
        folder.mkdir()
        folder.chmod(0o777)
        with pytest.raises(PermissionError, match="not a folder of this user alone"):
            await Replica(folder).listener.keep_open()
        folder.rmdir()
        folder.symlink_to(folder.parent)
        with pytest.raises(OSError, match="edge"):
            await Replica(folder).listener.keep_open()

    run(main())


def test_a_replica_that_accepts_nobody_any_more_is_passed_over(run, folder):
    async def main():
        folder.mkdir(mode=0o700)
        full = socket.socket(socket.AF_UNIX)
        full.bind(str(folder / f"r1.{VERSION}"))
        full.listen(0)
        filling = []
        with contextlib.suppress(BlockingIOError):
            while True:
                filling.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
                filling[-1].connect(str(folder / f"r1.{VERSION}"))
        call, handle = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [1]
        assert handle.calls == 1
        for end in (*filling, full):
            end.close()

    run(main())


def test_a_socket_whose_name_is_gone_is_opened_again(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        [path] = folder.iterdir()
        path.unlink()
        await replica.listener.keep_open()
        call, handle = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [2]
        assert handle.calls == 0

    run(main())


def test_the_last_replica_removes_the_folder_and_one_that_comes_makes_it(run, folder):
    async def main():
        outer = folder / "outer"
        first, second = (Replica(outer / "edge", name).listener for name in ("r1", "r2"))
        folder.mkdir(mode=0o700)
        (folder / "other").touch()
        await first.keep_open()
        await second.keep_open()
        await first.close()
        assert len(list((outer / "edge").iterdir())) == 1
        await second.close()
        assert [path.name for path in folder.iterdir()] == ["other"]
        third = Replica(outer / "edge").listener
        await third.keep_open()
        assert len(list((outer / "edge").iterdir())) == 1

    run(main())


def test_a_node_whose_work_is_cancelled_is_known_at_once(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        replica.fault = asyncio.CancelledError()
        call, handle = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [1]
        assert handle.calls == 1

    run(main())


def test_an_answer_that_is_being_read_is_sent_to_its_end(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, handle = edge(folder)
        replica.gate.clear()
        values = np.ones((1, 10_000_000), np.float32)
        waiting = asyncio.create_task(call(Batch(values, (Item(),))))
        await until(lambda: replica.batches)
        closing = asyncio.create_task(replica.listener.close())
        replica.gate.set()
        await closing
        np.testing.assert_array_equal((await waiting).payload, values * 2)
        assert (handle.calls, len(replica.batches)) == (0, 1)

    run(main())


def test_the_user_at_the_other_end_is_looked_at(run, folder, monkeypatch):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, handle = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [2]
        # Each end looks by itself: of two, one that finds the other a stranger is enough.
        own = os.getuid()
        for end in (Connection, Caller):

            def uid(end=end):
                return own + isinstance(sys._getframe(1).f_locals["self"], end)

            monkeypatch.setattr(wire.os, "getuid", uid)
            call, handle = edge(folder)
            assert (await call(rows(1))).payload.tolist() == [1]
            assert (handle.calls, len(replica.batches)) == (1, 1)

    run(main())


@pytest.mark.parametrize(
    "frame",
    [
        HEAD.pack(CALL, 2**50),
        HEAD.pack(7, 0),
        (HEAD.pack(CALL, 3) + b"bad") * 2,
        HEAD.pack(CALL, 3) + b"bad",
    ],
    ids=["length", "kind", "more", "malformed"],
)
def test_a_stranger_frame_costs_nothing(run, folder, frame):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        [path] = folder.iterdir()
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(frame)
        # Either the end, or an answer that the node failed.
        assert len(await asyncio.wait_for(reader.read(100), 10)) < 20
        writer.close()
        call, _ = edge(folder)
        assert (await call(rows(1))).payload.tolist() == [2]

    run(main())


FROZEN = """
import asyncio, sys
from pathlib import Path
from deployments.contract.batch import Work
from deployments.rpc.listener import Listener

async def main():
    async def work(batch):
        return Work("triple", batch).done(batch.payload * 3)
    listener = Listener(work, Path(sys.argv[1]), "frozen")
    await listener.keep_open()
    print("open", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def another(folder):
    """A replica in a process of its own, which triples."""
    command = [sys.executable, "-c", FROZEN, folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"open\n"
            yield process
        finally:
            process.kill()


def test_a_frozen_replicas_batches_go_elsewhere_until_it_answers(run, folder):
    async def main():
        ways = []
        call, handle = edge(folder, ways)
        assert (await call(rows(1))).payload.tolist() == [3]
        process.send_signal(signal.SIGSTOP)
        # The call that is on its way, and those that follow.
        answers = await asyncio.gather(*(call(rows(1)) for _ in range(3)))
        assert [answer.payload.tolist() for answer in answers] == [[1]] * 3
        assert (await call(rows(1))).payload.tolist() == [1]
        assert handle.calls == 4
        process.send_signal(signal.SIGCONT)
        [replica] = call._replicas.look().values()
        await until(lambda: not replica.is_frozen)
        assert (await call(rows(1))).payload.tolist() == [3]
        process.send_signal(signal.SIGSTOP)
        assert (await call(rows(1))).payload.tolist() == [1]
        # Killed while it is frozen: its socket refuses connections, and is removed.
        process.kill()
        await until(lambda: not replica.is_frozen)
        assert (await call(rows(1))).payload.tolist() == [1]
        assert list(folder.iterdir()) == []

    with another(folder) as process:
        run(main())


def test_a_replica_that_works_for_long_is_not_frozen(run, folder):
    async def main():
        replica = Replica(folder)
        await replica.listener.keep_open()
        call, handle = edge(folder)
        replica.gate.clear()
        waiting = asyncio.create_task(call(rows(1)))
        await asyncio.sleep(2 * SILENT_S + 2 * LOOKS * LOOK_EVERY_S)
        replica.gate.set()
        assert (await waiting).payload.tolist() == [2]
        assert handle.calls == 0

    run(main())


class Careful:
    """What a stand-in is made of: it says whether it takes suspects, and counts how often it was made."""

    def __init__(self):
        self.made = []
        self.fails = False

    def factory(self, is_careful):
        def make():
            if self.fails:
                raise ConnectionError("the controller is away")
            self.made.append(is_careful)

            async def node(batch):
                return Work("stand in", batch).done(batch.payload * (200 if is_careful else 100))

            return node

        return make

    def stand_in(self):
        return StandIn("double", (self.factory(False), self.factory(True)))


def test_a_stand_in_works_while_no_replica_does_and_with_care_on_what_may_have_ended_one(run, folder):
    async def main():
        careful, ways, handle = Careful(), [], Handle()
        call = DirectEdge(folder, handle, ways.append, ClusterSize(), careful.stand_in())
        replica = Replica(folder)
        await replica.listener.keep_open()
        assert (await call(rows(1))).payload.tolist() == [2]
        await until(lambda: call._cluster.is_alone is not None)
        replica.fault = asyncio.CancelledError()
        assert (await call(rows(1))).payload.tolist() == [200]
        await replica.listener.close()
        careful.fails = True
        with pytest.raises(ConnectionError):
            await call(rows(1))
        careful.fails = False
        for _ in range(2):
            assert (await call(rows(1))).payload.tolist() == [100]
        assert careful.made == [True, False]
        # One batch goes by handle, which has Serve start a replica of a node that had scaled to zero.
        assert handle.calls >= 1
        again = Replica(folder, "r2")
        await again.listener.keep_open()
        assert (await call(rows(1))).payload.tolist() == [2]
        assert set(ways) == {"direct", "inline"}

    run(main())
