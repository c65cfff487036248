import asyncio
import itertools
import json
import math
from contextlib import asynccontextmanager

import pytest

from scripts.lab.faults import refusals
from scripts.lab.faults.refusals import OK, REFUSED, Result, closed, opened


@asynccontextmanager
async def server(monkeypatch, answer):
    """One that answers each request with a status, by its connection's number."""

    numbers = itertools.count()

    async def talk(reader, writer):
        number = next(numbers)
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.split(b": ", 1) for line in head.strip().split(b"\r\n")[1:] if b": " in line)
            await reader.readexactly(int(fields[b"Content-Length"]))
            status = answer(number)
            body = json.dumps({"error": {"retry_after_ms": 10}} if status == REFUSED else {}).encode()
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body)

    async def quietly(reader, writer):
        try:
            await talk(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    running = await asyncio.start_server(quietly, "127.0.0.1", 0)
    monkeypatch.setattr(refusals, "HTTP_PORT", running.sockets[0].getsockname()[1])
    async with running:
        yield


async def test_clients_that_obey_wait_and_come_again(monkeypatch):
    refused = set()

    def answer(number):
        if number in refused:
            refused.remove(number)
            return OK
        refused.add(number)
        return REFUSED

    async with server(monkeypatch, answer):
        seen = await closed([b"a", b"b"], 3, 0.3, obey=True)
    assert seen.retries == seen.admitted == len(seen.latencies) == seen.statuses[OK] >= 3
    assert seen.statuses[REFUSED] >= seen.retries
    assert set(seen.statuses) == {OK, REFUSED}


async def test_clients_that_ignore_it_are_seen_to_be_refused_again(monkeypatch):
    async with server(monkeypatch, lambda number: REFUSED):
        seen = await closed([b"a"], 2, 0.2, obey=False)
    assert seen.retries == 2
    assert seen.admitted == 0
    assert seen.statuses[REFUSED] > 2


async def test_an_open_loop_counts_other_answers_and_broken_connections(monkeypatch):
    statuses = iter([OK, 500, 504] + [OK] * 1000)
    async with server(monkeypatch, lambda number: next(statuses)):
        seen = await opened([b"a"], 200, 0.2)
    assert (seen.statuses[500], seen.statuses[504]) == (1, 1)
    assert seen.statuses[OK] == len(seen.latencies) > 0
    lost = await opened([b"a"], 100, 0.1)
    assert set(lost.statuses) == {0}


async def test_what_comes_after_the_end_is_no_part_of_the_rate_and_nobody_waits_beyond_it(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(refusals.time, "monotonic", lambda: clock[0])

    def answer(number):
        # The fourth is asked for in time, and answered when the time is over.
        clock[0] += 0.3
        return OK

    async with server(monkeypatch, answer):
        seen = await closed([b"a"], 1, 1.0, obey=True)
    assert (len(seen.latencies), seen.in_time) == (4, 3)

    def refuse(number):
        clock[0] += 1.0
        return REFUSED

    monkeypatch.setattr(refusals.asyncio, "sleep", slept := Slept())
    async with server(monkeypatch, refuse):
        await closed([b"a"], 1, 1.0, obey=True)
    assert slept.seconds == [0.0]


class Slept:
    def __init__(self):
        self.seconds = []

    async def __call__(self, seconds):
        self.seconds.append(seconds)


@pytest.mark.parametrize(("share", "told"), [(0.5, "50.0%"), (math.nan, "")])
def test_a_line_of_the_table(share, told):
    result = Result("a load", 10.4, 0.951, 1234, 0, {}, 1500.2, share, 3.6)
    assert result.cells() == ["a load", "10", "0.95", "1,234", "0", "1,500", told, "+4 MB"]
