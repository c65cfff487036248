"""What a request cost, and what is told of it."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace

from lab.faults.amplification import command, report
from lab.faults.amplification.bystander import Bystander
from lab.faults.amplification.measure import Cost
from lab.faults.amplification.memory import Memory, private_bytes

CHEAP = Cost(3, "POST /classify", "nothing", True, 100, "400", 0.1, 0.1, 0.0, 0)


def test_the_bars():
    assert not CHEAP.is_finding
    assert replace(CHEAP, wait_s=0.3).is_finding
    assert replace(CHEAP, failure="500").is_finding
    grown = replace(CHEAP, memory=20_000_000)
    assert not grown.is_finding
    assert replace(grown, with_key=False).is_finding
    assert not replace(grown, with_key=False, size=10_000_000).is_finding
    assert CHEAP.record()["wait_s_per_byte"] == 0.001


def test_the_worst_come_first_and_failures_before_them():
    costs = [CHEAP, replace(CHEAP, index=4, what="JSON: zeros", wait_s=9.0)]
    costs += [replace(CHEAP, index=6, what="images: zeros, by gzip", wait_s=8.0)]
    costs += [replace(CHEAP, index=5, what="a bomb", failure="500 oh")]
    assert [line[0] for line in report.worst(costs).lines] == ["5", "4", "3"]
    told = report.told([*costs, replace(CHEAP, with_key=False)], 1, 10, 2)
    assert "3 broke a bar" in told
    assert "500 oh" in told
    assert "Of 2 routes and methods 1 were sent requests with a key, 1 without." in told


def test_what_breaks_a_bar_by_chance_is_told_as_it_was_without():
    class Measures:
        def __init__(self, *waits):
            self.waits = list(waits)

        def cost(self, index, asked):
            return replace(CHEAP, index=index, wait_s=self.waits.pop(0))

    class Makes:
        def made(self, index):
            return None

    assert command.least(Measures(0.1), Makes(), 7).wait_s == 0.1
    assert command.least(Measures(0.9, 0.1), Makes(), 7).wait_s == 0.1
    assert command.least(Measures(0.9, 0.8, 0.7), Makes(), 7).wait_s == 0.7


TAKES = "print(flush=True); input(); taken = b'x' * 50_000_000; print(flush=True); input()"


def test_the_peak_of_memory_is_seen():
    """Of a process that does nothing else; one that tests may free as much as it takes."""
    assert private_bytes(2**22 + 1) == 0
    command = [sys.executable, "-c", TAKES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        memory = Memory(lambda: [process.pid])
        before = memory.begin()
        assert before > 0
        memory.start()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        give_up = time.monotonic() + 60
        while memory.peak < before + 45_000_000:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        memory.stop()
        process.kill()


async def test_a_bystander_tells_what_was_wrong():
    answers = [b"200 OK", b"503 Full"]

    async def answer(reader, writer):
        while not reader.at_eof():
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"authorization: bearer k" in head.lower()
            await reader.readexactly(5)
            writer.write(b"HTTP/1.1 " + answers.pop(0) if answers else b"HTTP/1.1 200 OK")
            writer.write(b"\r\nContent-Length: 2\r\n\r\n{}")

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    bystander = Bystander("127.0.0.1", server.sockets[0].getsockname()[1], b"image", "k")
    await asyncio.to_thread(bystander.__enter__)
    told = []
    while answers or not any("503" in wrong for _, wrong in told):
        told.append(await asyncio.to_thread(bystander.told))
    assert all(wait_s >= 0 for wait_s, _ in told)
    await asyncio.to_thread(bystander.__exit__)
    server.close()
