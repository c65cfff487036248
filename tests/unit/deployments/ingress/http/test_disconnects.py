"""Clients that leave before they have their answer, where Serve does not look."""

import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import Response

from deployments.ingress.http import server
from deployments.ingress.http.bodies import WHOLE


class Client:
    """A request whose body has come, and whose client leaves when it is told to."""

    def __init__(self, whole=True):
        self.gone = asyncio.Event()
        self.asked = 0
        self.request = Request({"type": "http", "headers": []} | ({WHOLE: True} if whole else {}), self._receive)

    async def _receive(self):
        self.asked += 1
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Work:
    """Answers when it is told to."""

    def __init__(self):
        self.may_end = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = False

    async def __call__(self, request):
        self.begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return Response("done")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(server, "AFTER_S", 0)


async def test_who_leaves_is_worked_for_no_more():
    client, work = Client(), Work()
    client.gone.set()
    response = await asyncio.wait_for(server.DisconnectWatcher().answered(client.request, work), 30)
    assert (response.status_code, work.cancelled) == (499, True)


async def test_who_stays_has_an_answer_and_is_looked_after_no_longer():
    client, work = Client(), Work()
    task = asyncio.create_task(server.DisconnectWatcher().answered(client.request, work))
    while not client.asked:
        await asyncio.sleep(0)
    work.may_end.set()
    assert (await task).body == b"done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_while_a_body_comes_who_reads_it_is_told():
    client, work = Client(whole=False), Work()
    task = asyncio.create_task(server.DisconnectWatcher().answered(client.request, work))
    await work.begun.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert client.asked == 0
    client.request.scope[WHOLE] = True
    client.gone.set()
    assert (await task).status_code == 499


async def test_a_timeout_of_the_work_is_its_own():
    async def work(request):
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await server.DisconnectWatcher().answered(Client().request, work)


async def test_who_cancels_the_request_cancels_the_work():
    client, work = Client(), Work()
    task = asyncio.create_task(server.DisconnectWatcher().answered(client.request, work))
    await work.begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled
