import asyncio

import pytest

from ensemble_serving.transports import Request
from lab.faults.hostile.inputs import Input, classify
from lab.faults.hostile.sending import Sender, is_whole
from lab.faults.hostile.siege import Siege, Verdict, WellMeaning, besiege, families, told

OK = b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 16\r\n\r\n{"label": "cat"}'


class Server:
    """Answers each connection by what its bytes ask for."""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _answer(self, reader, writer):
        asked = await reader.read(100_000)
        if b"fail" in asked:
            writer.write(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n")
        elif b"full" in asked:
            writer.write(b"HTTP/1.1 503 Full\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
        elif b"hurry" in asked:
            writer.write(b"HTTP/1.1 504 Late\r\nContent-Length: 0\r\n\r\n")
        elif b"leave" not in asked:
            writer.write(OK)
        writer.close()


INPUTS = {
    "good": ({"content": classify(b"x")}, "200", None),
    "failed": ({"content": classify(b"fail")}, "500", "500"),
    "refused": ({"content": classify(b"full")}, "503", None),
    "late": ({"content": classify(b"hurry")}, "504", "504"),
    "late as asked": ({"content": classify(b"hurry"), "due": frozenset({"504"})}, "504", None),
    "left": ({"content": classify(b"leave")}, "closed", "without an answer"),
    "left with half a request": ({"content": classify(b"leave it")[:-2], "whole": False}, "closed", None),
    "not gRPC": ({"content": b"", "way": "grpc"}, "UNAVAILABLE", "UNAVAILABLE"),
    "frames": ({"content": b"leave", "way": "http2"}, "closed", None),
}


@pytest.mark.parametrize("name", INPUTS)
async def test_what_comes_back_is_judged(name):
    fields, status, failure = INPUTS[name]
    async with Server() as server:
        outcome = await Sender("127.0.0.1", server.port, server.port).send(Input(name, **fields))
    assert outcome.status == status
    assert (outcome.failure is None) == (failure is None)
    if failure is not None:
        assert failure in outcome.failure


async def test_a_server_that_is_not_there_has_failed():
    async with Server() as server:
        port = server.port
    outcome = await Sender("127.0.0.1", port, port).send(Input("x", classify(b"x")))
    assert (outcome.status, outcome.failure) == ("refused", "the connection was refused")


async def test_a_siege_has_a_verdict_of_each_kind_and_asks_well_meant_in_between():
    async with Server() as server:
        url = f"http://127.0.0.1:{server.port}"
        well_meaning = await asyncio.to_thread(WellMeaning, url, b"x")
        sent = [
            (number, Input(f"some: {number % 2}", classify(b"fail" if number % 2 else b"x"))) for number in range(9)
        ]
        count = []
        sender = Sender("127.0.0.1", server.port, server.port)
        siege = await besiege(sender, sent, well_meaning, at_once=3, rest_s=0, done=lambda: count.append(1))
    assert len(count) == 9
    assert dict(siege.verdicts["some: 0"].statuses) == {"200": 5}
    assert sorted(siege.verdicts["some: 1"].failures) == [1, 3, 5, 7]
    assert siege.well_meant > 0
    assert not siege.wrong
    [(name, family)] = families(siege).items()
    assert (name, told(family.statuses), len(family.failures)) == ("some", "200 (5), 500 (4)", 4)
    assert len(siege.failures) == 4


async def test_a_wrong_answer_to_a_well_meant_request_is_told():
    async with Server() as server:
        well_meaning = await asyncio.to_thread(WellMeaning, f"http://127.0.0.1:{server.port}", b"x")
        well_meaning._request = Request("/classify", b"fail")
        sender = Sender("127.0.0.1", server.port, server.port)
        siege = await besiege(sender, [(0, Input("a: b", classify(b"x")))], well_meaning, rest_s=0)
    assert siege.failures[0].startswith("a well formed request was answered 500")
    assert Siege({"a: b": Verdict()}).failures == []


def test_when_an_answer_is_whole():
    assert is_whole(OK)
    assert not is_whole(OK[:-1])
    assert not is_whole(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert is_whole(b"HTTP/1.1 100 Continue\r\n\r\n" + OK)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert not is_whole(chunked + b"1\r\nx\r\n")
    assert is_whole(chunked + b"1\r\nx\r\n0\r\n\r\n")
